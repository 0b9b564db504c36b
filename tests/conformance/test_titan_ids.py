"""Rows of titan/ids.jsonl and titan/id_patterns.jsonl."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from projections import ids
from projections.errors import ProjectionError
from tests.conformance.rows import Row, assert_rows, differs, load_rows

FUNCTIONS: dict[str, Callable[..., str]] = {
    "branch_ref": ids.branch_ref,
    "commit_ref": ids.commit_ref,
    "conversation_item_ref": ids.conversation_item_ref,
    "conversation_ref": ids.conversation_ref,
    "correlation_key": ids.correlation_key,
    "cost_id": ids.cost_id,
    "file_ref": ids.file_ref,
    "gate_id_for": ids.gate_id_for,
    "memo_key": ids.memo_key,
    "policy_gate_id": ids.policy_gate_id,
    "pr_ref": ids.pr_ref,
    "workflow_step_request_key": ids.attempt_id,
}
PATTERNS: dict[str, re.Pattern[str]] = {
    "attempt_id": ids.ATTEMPT_ID_PATTERN,
    "call_id": ids.CALL_ID_PATTERN,
    "commit_id": ids.COMMIT_ID_PATTERN,
    "commit_sha": ids.COMMIT_SHA_PATTERN,
    "conversation_ref": ids.CONVERSATION_REF_PATTERN,
    "cost_id": ids.COST_ID_PATTERN,
    "file_id": ids.FILE_ID_PATTERN,
    "human_gate_id": ids.HUMAN_GATE_ID_PATTERN,
    "policy_gate_id": ids.POLICY_GATE_ID_PATTERN,
    "pr_id": ids.PR_ID_PATTERN,
    "repo": ids.REPO_PATTERN,
    "sha256": ids.SHA256_PATTERN,
    "turn_ref": ids.TURN_REF_PATTERN,
}


def made(row: Row) -> dict[str, Any]:
    try:
        return {"ok": True, "value": FUNCTIONS[row["fn"]](*row["args"])}
    except ProjectionError as error:
        return {"ok": False, "reason": error.reason}


def check_id(row: Row) -> str | None:
    expected = row["expected"]
    wanted = expected if expected["ok"] else {"ok": False, "reason": expected["error"]["reason"]}
    return differs(made(row), wanted)


def test_every_id_is_made_or_refused_as_in_its_row(vectors: Path) -> None:
    assert_rows(load_rows(vectors, "titan/ids.jsonl"), check_id)


def test_every_text_fits_a_grammar_exactly_when_its_row_says_so(vectors: Path) -> None:
    assert_rows(
        load_rows(vectors, "titan/id_patterns.jsonl"),
        lambda row: differs(PATTERNS[row["pattern"]].fullmatch(row["value"]) is not None, row["expected"]),
    )
