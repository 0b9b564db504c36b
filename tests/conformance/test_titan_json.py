"""Rows of titan/canonical_json.jsonl."""

from pathlib import Path
from typing import Any

from projections.canonical import canonical_json
from projections.errors import ProjectionError
from tests.conformance.rows import Row, assert_rows, differs, load_rows


def canonical(row: Row) -> dict[str, Any]:
    try:
        return {"ok": True, "value": canonical_json(row["value"]).decode("utf-8")}
    except ProjectionError:
        return {"ok": False}


def check(row: Row) -> str | None:
    expected = row["expected"]
    return differs(canonical(row), expected if expected["ok"] else {"ok": False})


def test_canonical_json_is_the_text_of_each_row(vectors: Path) -> None:
    assert_rows(load_rows(vectors, "titan/canonical_json.jsonl"), check)
