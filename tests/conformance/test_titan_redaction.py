"""Rows of titan/redact.jsonl and titan/doc_run.jsonl, and the table titan/privacy_classes.json."""

import json
from pathlib import Path
from typing import Any

from projections.errors import ProjectionError
from projections.ids import CORRELATION_KEY_PATTERN
from projections.privacy import TRACE_FIELD_PRIVACY, redact_trace_record
from projections.records import parse_trace_record
from tests.conformance.rows import Row, assert_rows, differs, load_rows, same_json


def redacted(record: Any, options: dict[str, Any] | None) -> dict[str, Any]:
    given = options or {}
    try:
        value = redact_trace_record(record, given.get("publicRepos") or [], given.get("key", ""))
    except ProjectionError:
        return {"ok": False}
    return {"ok": True, "value": value}


def scope(record: dict[str, Any]) -> str:
    return f"artifact.{record['artifactKind']}" if record["kind"] == "artifact" else str(record["kind"])


def without_unknown_containers(value: Any, path: str, classes: dict[str, str]) -> Any:
    """The reference's output as it would be if it dropped unknown lists and objects whole, as we decided."""
    if f"{path}.*" in classes:
        return {key: item for key, item in value.items() if CORRELATION_KEY_PATTERN.fullmatch(key)}
    if isinstance(value, list):
        return [without_unknown_containers(item, f"{path}[]", classes) for item in value]
    if not isinstance(value, dict):
        return value
    kept = {}
    for key, item in value.items():
        inner = f"{path}.{key}" if path else key
        opening = f"{inner}[]." if isinstance(item, list) else f"{inner}."
        if not isinstance(item, dict | list) or any(known.startswith(opening) for known in classes):
            kept[key] = without_unknown_containers(item, inner, classes)
    return kept


def check(row: Row) -> str | None:
    expected, actual = row["expected"], redacted(row["record"], row["options"])
    if not expected["ok"]:
        return differs(actual, {"ok": False})
    if not row.get("quirk"):
        return differs(actual, expected)
    if same_json(actual, expected):
        return "copies a quirk that was decided against"
    decided = without_unknown_containers(expected["value"], "", dict(TRACE_FIELD_PRIVACY[scope(row["record"])]))
    return differs(actual, {"ok": True, "value": decided})


def check_export(row: Row) -> str | None:
    wrong = [differs(parse_trace_record(row["record"]), row["record"])]
    wrong += [
        differs(redacted(row["record"], export["options"]), {"ok": True, "value": export["redacted"]})
        for export in row["exports"]
    ]
    return next((text for text in wrong if text is not None), None)


def test_redaction_gives_what_each_row_says_and_drops_what_was_decided(vectors: Path) -> None:
    assert_rows(load_rows(vectors, "titan/redact.jsonl"), check)


def test_the_sample_run_parses_and_leaves_as_in_its_rows(vectors: Path) -> None:
    rows = load_rows(vectors, "titan/doc_run.jsonl")
    assert all(row["exports"] for row in rows)
    assert_rows(rows, check_export)


def test_the_privacy_table_is_the_published_one() -> None:
    table = Path(__file__).parents[2] / "fixtures" / "conformance" / "titan" / "privacy_classes.json"
    assert json.loads(table.read_bytes()) == TRACE_FIELD_PRIVACY
