"""Rows of titan/{lifecycle,lifecycle_sequences,correlations,ledger,worker_facts,pricing}.jsonl and price_table.json."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

from projections.lifecycle import (
    ExecutionLedger,
    ExecutionTransitionError,
    LedgerOutcome,
    reduce_execution_transition,
    validate_correlations,
)
from projections.price_table import BUILT_IN_PRICES
from projections.prices import find_price
from projections.pricing import price_request, quote_usage
from projections.worker_facts import WorkerFactsError, parse_worker_facts
from tests.conformance.rows import Row, assert_rows, differs, load_rows


def shown_error(error: ExecutionTransitionError) -> Row:
    """Write an error as the rows do."""
    if error.reason == "type_error":
        # The reference crashes here; the port refuses with the code that the reference's ledger gives.
        assert error.code == "invalid_transition"
        return {"type": "TypeError", "reason": "type_error"}
    return {"type": "ExecutionTransitionError", "code": error.code, "reason": error.reason, **place(error)}


def place(error: ExecutionTransitionError | LedgerOutcome) -> Row:
    if error.field is not None:
        return {"field": error.field if error.key is None else f"{error.field}[{error.key}]"}
    return {} if error.key is None else {"key": error.key}


def reduced(current: Any, transition: Any, options: Any) -> Row:
    before = deepcopy((current, transition, options))
    try:
        shown: Row = {"ok": True, "record": reduce_execution_transition(current, transition, options)}
    except ExecutionTransitionError as error:
        shown = {"ok": False, "error": shown_error(error)}
    assert (current, transition, options) == before, "an argument was changed"
    return shown


def reduced_in_turn(row: Row) -> Row:
    record: Any = None
    steps = []
    for transition in row["transitions"]:
        step = reduced(record, transition, row["options"])
        record = step.pop("record", record)
        steps.append({**step, "phase": record["phase"], "revision": record["revision"]} if step["ok"] else step)
    return {"steps": steps, "record": record}


def correlated(row: Row) -> Row:
    assert row["fn"] == "validate_correlations"
    try:
        return {"ok": True, "value": validate_correlations(row["value"])}
    except ExecutionTransitionError as error:
        return {"ok": False, "error": shown_error(error)}


def shown_outcome(outcome: LedgerOutcome) -> Row:
    if not outcome.ok:
        return {"ok": False, "kind": outcome.kind, "reason": outcome.reason, **place(outcome)}
    assert outcome.record is not None
    record = outcome.record
    return {"ok": True, "applied": outcome.applied, "phase": record["phase"], "revision": record["revision"]}


def applied(row: Row) -> Row:
    ledger = ExecutionLedger()
    results = [shown_outcome(ledger.apply(op["transition"], op["now"])) for op in row["ops"]]
    given = [op["transition"]["executionId"] for op in row["ops"] if isinstance(op["transition"], dict)]
    stored = [execution_id for execution_id in dict.fromkeys(given) if ledger.get(execution_id) is not None]
    return {
        "results": results,
        "records": {execution_id: ledger.get(execution_id) for execution_id in stored},
        "event_counts": {execution_id: len(ledger.events(execution_id)) for execution_id in stored},
    }


def checked_facts(row: Row) -> Row:
    try:
        return {"ok": True, "value": parse_worker_facts(row["input"])}
    except WorkerFactsError as error:
        return {"ok": False, "issues": error.issues}


def priced(row: Row) -> Any:
    if row["fn"] == "find_price":
        return find_price(row["model"], row["ts"], row.get("table"))
    if row["fn"] == "price_request":
        return price_request(row["tokens"], row["model"], row["ts"], row.get("table"))
    assert row["fn"] == "quote_precedence"
    given = row["given"]
    quote = quote_usage(given["tokens"], model=given["model"], at=given["eventTime"], existing=given["existing"])
    if quote.basis == "unavailable":
        assert quote.reason is not None, "an unavailable quote says why"
        return {"usd": quote.usd, "unavailable": True}
    return {"usd": quote.usd, "basis": quote.basis}


def test_one_transition_reduces_or_is_refused_as_in_each_row(vectors: Path) -> None:
    rows = load_rows(vectors, "titan/lifecycle.jsonl")
    assert_rows(rows, lambda row: differs(reduced(row["current"], row["transition"], row["options"]), row["expected"]))


def test_transitions_in_turn_give_the_steps_and_the_record_of_each_row(vectors: Path) -> None:
    rows = load_rows(vectors, "titan/lifecycle_sequences.jsonl")
    assert_rows(rows, lambda row: differs(reduced_in_turn(row), row["expected"]))


def test_correlations_are_accepted_or_refused_as_in_each_row(vectors: Path) -> None:
    rows = load_rows(vectors, "titan/correlations.jsonl")
    assert_rows(rows, lambda row: differs(correlated(row), row["expected"]))


def test_the_ledger_answers_and_stores_as_in_each_row(vectors: Path) -> None:
    rows = load_rows(vectors, "titan/ledger.jsonl")
    assert_rows(rows, lambda row: differs(applied(row), row["expected"]))


def test_worker_facts_are_accepted_or_refused_as_in_each_row(vectors: Path) -> None:
    rows = load_rows(vectors, "titan/worker_facts.jsonl")
    assert_rows(rows, lambda row: differs(checked_facts(row), row["expected"]))


def test_prices_and_quotes_are_those_of_each_row_to_the_last_digit(vectors: Path) -> None:
    rows = load_rows(vectors, "titan/pricing.jsonl")
    assert_rows(rows, lambda row: differs(priced(row), row["expected"]))


def test_the_built_in_price_table_is_the_published_one(vectors: Path) -> None:
    assert json.loads((vectors / "titan" / "price_table.json").read_text(encoding="utf-8")) == BUILT_IN_PRICES
