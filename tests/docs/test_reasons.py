"""The table of reasons is complete: each that a message can be refused for is in it, and no other."""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from projections.errors import ProjectionError
from projections.sources import project_message
from tests.docs.pages import DOCS, ROOT, section
from tests.worlds.messages import CLAUDE, result, run

CORE = ROOT / "projections"
# What reads messages. Of the checks of lifecycle only those are asked that the ledger's feed imports.
READERS = [
    *sorted((CORE / "sources").glob("*.py")),
    *(CORE / "formats" / f"{name}.py" for name in ("claude_code", "codex_lines", "ct_agents", "harn", "robota")),
    CORE / "fields.py",
    CORE / "decode.py",
    CORE / "lifecycle" / "ledger_feed.py",
    ROOT / "worker" / "roles" / "project.py",
]
CHECKS = CORE / "lifecycle" / "checks.py"


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def reasons_in(tree: ast.AST) -> Iterator[str]:
    """Give the reasons that stand in a piece of code as texts."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id="ProjectionError" | "invalid"), args=[ast.Constant(value=str(reason)), *_]):
                yield reason
            case ast.Call(func=ast.Attribute(attr="refuse"), args=[_, ast.Constant(value=str(reason))]):
                yield reason
            case ast.keyword(arg="dead", value=ast.Constant(value=str(reason))):
                yield reason


def reasons_of_checks() -> Iterator[str]:
    feed = tree_of(CORE / "lifecycle" / "ledger_feed.py")
    asked = {
        name.name
        for node in ast.walk(feed)
        if isinstance(node, ast.ImportFrom) and node.module == "projections.lifecycle.checks"
        for name in node.names
    }
    for node in tree_of(CHECKS).body:
        if isinstance(node, ast.FunctionDef) and node.name in asked:
            yield from reasons_in(node)


def told() -> set[str]:
    rows = re.findall(r"^\| (`.+?) \|", section(DOCS / "topics.md", "Why a message is refused"), re.MULTILINE)
    return {reason for row in rows for reason in re.findall(r"`(\w+)`", row)}


def test_every_reason_is_in_the_table() -> None:
    there = {reason for path in READERS for reason in reasons_in(tree_of(path))} | set(reasons_of_checks())
    assert len(there) > 25
    assert sorted(there - told()) == []


def test_every_reason_of_the_table_is_one() -> None:
    texts = "\n".join(
        path.read_text(encoding="utf-8") for name in ("projections", "worker") for path in (ROOT / name).rglob("*.py")
    )
    assert sorted(reason for reason in told() if not reason.endswith("_") and f'"{reason}"' not in texts) == []


def test_reasons_are_put_together_from_those_of_the_table() -> None:
    broken = {"titan.trace.gates": [7], "titan.trace.artifacts": [7]}
    steps = [result("s", data=broken), {"stepId": "t"}, 7]
    snapshot = run(1, active=[{"stepId": "s"}]) | {"stepResults": steps}
    found = {*project_message("workflow-runs", None, json.dumps(snapshot).encode(), 0, 0).issues}
    line = {"source": {**CLAUDE, "sourceId": "s"}, "byteOffset": 0, "line": "{"}
    with pytest.raises(ProjectionError) as caught:
        project_message("transcripts", None, json.dumps(line).encode(), 0, 0)
    found.add(caught.value.reason)
    beginnings = {reason for reason in told() if reason.endswith("_")}
    used = {beginning for beginning in beginnings for reason in found if reason.startswith(beginning)}
    assert used == beginnings
    rests = {reason.removeprefix(next((one for one in used if reason.startswith(one)), "")) for reason in found}
    assert sorted(rests - told()) == []
