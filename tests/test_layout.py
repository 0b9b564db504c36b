"""The rules of the source tree that no linter knows: a pure core, sizes, names, families of formats, locks."""

import ast
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).resolve().parents[1]
CORE = sorted((ROOT / "projections").rglob("*.py"))
SOURCES = [*CORE, *sorted((ROOT / "worker").rglob("*.py"))]

FUNCTION_LINES_MAX = 60
MODULE_LINES_MAX = 400
NAMES_THAT_SAY_NOTHING = {"utils", "util", "helpers", "common", "manager", "base", "types", "misc"}

# What a pure function cannot do and no import betrays.
IMPURE_CALLS = {"open", "print", "input", "breakpoint", "exec", "eval", "__import__"}
CLOCK_READINGS = {"now", "utcnow", "today"}

# Each format's modules start with its name; these are read by all formats.
SHARED_BY_FORMATS = {"assembly"}


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def impurities(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.AsyncFunctionDef() | ast.Await():
                yield f"{node.lineno}: async"
            case ast.Call(func=ast.Name(id=name)) if name in IMPURE_CALLS:
                yield f"{node.lineno}: {name}()"
            case ast.Call(func=ast.Attribute(attr=name)) if name in CLOCK_READINGS:
                yield f"{node.lineno}: .{name}()"
            case ast.Global():
                yield f"{node.lineno}: global"


@pytest.mark.parametrize("path", CORE, ids=named)
def test_the_core_reads_no_clock_and_does_no_io(path: Path) -> None:
    assert list(impurities(ast.parse(path.read_text(encoding="utf-8")))) == []


@pytest.mark.parametrize("path", SOURCES, ids=named)
def test_modules_and_functions_can_be_read_in_one_go(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) < MODULE_LINES_MAX
    too_long = [
        f"{function.name}: {lines} lines"
        for function in functions(ast.parse(text))
        if (lines := (function.end_lineno or function.lineno) - function.lineno + 1) >= FUNCTION_LINES_MAX
    ]
    assert too_long == []


def test_module_names_say_what_is_inside() -> None:
    parts = {part for path in SOURCES for part in path.relative_to(ROOT).with_suffix("").parts}
    assert parts & NAMES_THAT_SAY_NOTHING == set()


def test_formats_do_not_know_each_other() -> None:
    graph = grimp.build_graph("projections")
    children = {module.rpartition(".")[2] for module in graph.find_children("projections.formats")}
    # The shorter names first: a family is named by its module that no other module's name begins.
    families: list[str] = []
    for name in sorted(children - SHARED_BY_FORMATS):
        if not any(name.startswith(f"{family}_") for family in families):
            families.append(name)

    def family_of(name: str) -> str | None:
        return next((family for family in families if name == family or name.startswith(f"{family}_")), None)

    acquaintances = [
        f"{name} imports {other}"
        for name in sorted(children)
        for imported in graph.find_modules_directly_imported_by(f"projections.formats.{name}")
        if (other := imported.rpartition(".")[2]) in children
        and family_of(other) is not None
        and family_of(other) != family_of(name)
    ]
    assert {"claude_code", "codex", "robota"} <= set(families)
    assert acquaintances == []


def pins(lock: str) -> list[tuple[str, str]]:
    """List (distribution, version) of a lock; one that depends on the Python has a line for each."""
    return re.findall(r"^([a-z0-9._-]+)==([^ ;]+)", (ROOT / lock).read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.parametrize(
    "lock", ["requirements.lock", "deploy/runtime.lock", "deploy/build.lock", "tests/bench/peers.lock"]
)
def test_locks_pin_by_hash_and_name_no_host(lock: str) -> None:
    text = (ROOT / lock).read_text(encoding="utf-8")
    assert "://" not in text
    assert "--index-url" not in text
    starts = [match.start() for match in re.finditer(r"^[a-z]", text, re.MULTILINE)]
    assert len(starts) == len(pins(lock))
    assert all("--hash=sha256:" in text[start:end] for start, end in pairwise([*starts, len(text)]))


@pytest.mark.parametrize("lock", ["deploy/runtime.lock", "deploy/build.lock"])
def test_the_image_installs_what_was_tested(lock: str) -> None:
    assert set(pins(lock)) <= set(pins("requirements.lock"))


def test_the_image_installs_no_test_tools() -> None:
    installed = {name for name, _version in pins("deploy/runtime.lock")}
    assert installed & {"pytest", "hypothesis", "mypy", "hatchling"} == set()
