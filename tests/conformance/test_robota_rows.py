"""Rows of robota/*.jsonl, ``mapping_examples`` excepted: what the readers and reports of the reference gave."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from projections.errors import ProjectionError
from projections.formats.robota import READS
from projections.formats.robota_live import LiveBatch
from projections.formats.robota_prices import model_cost
from projections.formats.robota_session import normalize_session
from projections.formats.robota_spans import prompt_spans
from projections.reports.robota_gauges import usage_gauges
from projections.reports.robota_order import locale_sort
from projections.reports.robota_personal import UsageRequest, personal_usage
from projections.reports.robota_sources import usage_by_source
from projections.reports.robota_timing import session_timing
from projections.reports.robota_totals import fold_cost_status
from tests.conformance.rows import Row, assert_rows, differs, load_rows

# How the reference calls what we refuse.
ERRORS = {"unknown_time_zone": "RangeError", "invalid_root": "invalid_root"}
NO_READABLE_USAGE = "none"


def personal(given: Row) -> Row:
    request = UsageRequest(given["request"]["period"], given["request"]["timezone"], given["now"])
    try:
        report = personal_usage(
            given["records"],
            request,
            corrupt_session_ids=given.get("corruptSessionIds", ()),
            unsupported_session_ids=given.get("unsupportedSessionIds", ()),
        )
    except ProjectionError as error:
        return {"error": ERRORS[error.reason]}
    return {"report": report}


def without_cost_proof(value: Any) -> Any:
    """The report without ``costExact`` and ``everyTurnPriced``, which the rows keep apart."""
    if isinstance(value, dict):
        return {
            name: without_cost_proof(part)
            for name, part in value.items()
            if name not in ("costExact", "everyTurnPriced")
        }
    return [without_cost_proof(part) for part in value] if isinstance(value, list) else value


def by_source(given: Row) -> Row:
    report = usage_by_source(given)
    priced = {
        "session": report["everyTurnPriced"],
        "bySource": [[row["key"], row["everyTurnPriced"]] for row in report["bySource"]],
    }
    return {"report": without_cost_proof(report), "everyTurnPriced": priced}


def live(given: Row) -> Row:
    batch = LiveBatch()
    takers: dict[str, Callable[[Any], Any]] = {
        "provider": batch.add_provider,
        "tool": batch.add_tool,
        "permission": batch.add_permission,
        "omit": batch.omit,
    }
    taken = [(kind, takers[kind](value)) for step in given["steps"] for kind, value in step.items()]
    kept = {"toolKept": [was_kept for kind, was_kept in taken if kind == "tool"]}
    try:
        return {"batch": batch.finish(given["finish"]), **kept}
    except ProjectionError as error:
        return {"error": ERRORS[error.reason], **kept}


def folded(given: Row) -> Row:
    statuses = [None if status == NO_READABLE_USAGE else status for status in given["statuses"]]
    return {"costStatus": fold_cost_status(statuses)}


OPERATIONS: dict[str, tuple[str, Callable[[Row], Any]]] = {
    "usage_by_source": ("usageBySource", by_source),
    "normalized": ("normalizeSession", lambda given: normalize_session(given).as_json()),
    "personal_usage": ("personalUsage", personal),
    "cost_status": ("foldCostStatus", folded),
    "usage_gauges": ("usageGauges", lambda given: usage_gauges(given["records"])),
    "prompt_spans": (
        "promptSpans",
        lambda given: prompt_spans(given["recordsJson"] if "recordsJson" in given else given["records"]),
    ),
    "live_batch": ("liveBatch", live),
    "model_cost": ("modelCost", lambda given: model_cost(**snake_keys(given))),
    "collation": ("localeSort", lambda given: {"sorted": locale_sort(given["keys"])}),
    "session_timing": ("sessionTiming", session_timing),
}


def snake_keys(given: Row) -> Row:
    names = {"modelId": "model_id", "promptTokens": "prompt_tokens", "completionTokens": "completion_tokens"}
    return {names[name]: value for name, value in given.items()}


@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_every_row_gives_what_the_reference_gave(vectors: Path, name: str) -> None:
    operation, run = OPERATIONS[name]
    rows = [{"name": row["id"], **row} for row in load_rows(vectors, f"robota/{name}.jsonl")]
    assert {row["op"] for row in rows} == {operation}

    def check(row: Row) -> str | None:
        given = run(row["input"])
        # Rows without a tool step, and some with one, leave the flags out.
        if "toolKept" not in row["expect"]:
            given.pop("toolKept", None)
        return differs(given, row["expect"])

    assert_rows(rows, check)


def test_no_file_of_rows_is_left_out(vectors: Path) -> None:
    names = {path.stem for path in (vectors / "robota").glob("*.jsonl")}
    assert names <= {*OPERATIONS, "field_classes", "mapping_examples"}


def test_field_classes_name_what_never_leaves_a_session(vectors: Path) -> None:
    rows = load_rows(vectors, "robota/field_classes.jsonl")
    assert {row["trace"] for row in rows} <= {"id", "fact", "count", "drop", "never"}
    assert {row["format"] for row in rows} == {"robota"}
    never = {(row["entry"], row["path"]) for row in rows if row["trace"] == "never"}
    assert never >= {
        ("record", "cwd"),
        ("record", "name"),
        ("record", "messages"),
        ("record", "systemPrompt"),
        ("usage-observation", "source.label"),
        ("provider-call-trace", "providerRequestId"),
        ("tool-start", "firstArg"),
    }


def test_no_field_that_becomes_a_fact_is_classed_as_content(vectors: Path) -> None:
    classes = {(row["entry"], row["path"]): row["trace"] for row in load_rows(vectors, "robota/field_classes.jsonl")}
    read = {(entry, name) for entry, names in READS.items() for name in names}
    assert {path for path in read if classes.get(path) == "never"} == set()
    assert {classes[path] for path in read if path in classes} <= {"id", "fact", "count"}
