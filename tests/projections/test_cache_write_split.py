"""How long cache writes live travels beside the cost record, from the line that says so to whoever prices it."""

import itertools
from collections.abc import Sequence
from typing import Any

import orjson
import pytest

from projections.facts import Fact
from projections.fold import Change, Fold
from projections.records import parse_trace_record
from projections.sources import project_message

CONVERSATION = {"harness": "claude-code", "namespace": "host-a", "nativeId": "c-1"}
COST_ID = "cost:response:claude-code:host-a:c-1:msg_1"
SPLIT = {"ttl5m": 300, "ttl1h": 700}


def facts_of(*values: dict[str, Any]) -> list[Fact]:
    facts: list[Fact] = []
    for offset, value in enumerate(values):
        facts += project_message("transcripts", None, orjson.dumps(value), 0, offset).facts
    return facts


def line(offset: int, *, output: int = 40, creation: dict[str, int] | None = None) -> dict[str, Any]:
    """Give one line of the response msg_1; ``creation`` is the part of its usage that tells cache writes apart."""
    usage: dict[str, Any] = {"input_tokens": 7, "cache_read_input_tokens": 90, "cache_creation_input_tokens": 1000}
    usage |= {"output_tokens": output}
    if creation is not None:
        usage["cache_creation"] = creation
    message = {"id": "msg_1", "model": "claude-sonnet-5", "content": [], "usage": usage}
    native = {"type": "assistant", "uuid": f"u-{offset}", "requestId": "req_1", "message": message}
    native["timestamp"] = "2026-10-01T09:00:00.000Z"
    source = {**CONVERSATION, "sourceId": "claude-code:host-a:c-1", "format": "claude-code"}
    return {"source": source, "byteOffset": offset, "line": orjson.dumps(native).decode()}


def observation(index: int, *, split: object = None, sequence: int | None = None) -> dict[str, Any]:
    tokens = {"input": 1097, "output": 40, "cachedInput": 90, "cacheWriteInput": 1000, "reasoningOutput": None}
    measurement: dict[str, Any] = {"model": "claude-sonnet-5", "tokens": {**tokens, "total": 1137}, "cost": None}
    measurement["source"] = "observed"
    if sequence is None:
        measurement |= {"kind": "delta", "responseId": "msg_1"}
    else:
        measurement |= {"kind": "snapshot", "scope": "conversation", "scopeId": "c-1", "epoch": "e"}
        measurement["sequence"] = sequence
    usage: dict[str, Any] = {"kind": "usage", "measurement": measurement, "conversation": CONVERSATION}
    usage["id"] = {"sourceId": "claude-code:host-a:c-1", "byteOffset": index, "subrecordIndex": 0}
    usage["timestamp"] = "2026-10-01T09:00:00.000Z"
    if split is not None:
        usage["cacheWriteSplit"] = split
    return {"observation": usage}


def costs_of(*batches: Sequence[Fact]) -> list[Change]:
    """Fold batches one after the other; give every change of a cost record."""
    fold = Fold(generation=1, unbound="standalone")
    changes: list[Change] = []
    offset = 0
    for batch in batches:
        changes += fold.apply(list(enumerate(batch, start=offset))).changes
        offset += len(batch)
    return [change for change in changes if change.kind == "cost"]


def test_the_split_of_a_claude_line_stands_beside_its_record_and_never_inside() -> None:
    facts = facts_of(line(0, creation={"ephemeral_5m_input_tokens": 300, "ephemeral_1h_input_tokens": 700}))
    (change,) = costs_of(facts)
    assert (change.id, change.cache_write_split) == (COST_ID, SPLIT)
    assert change.record is not None
    record = orjson.loads(change.record)
    assert parse_trace_record(record) == record
    assert b"ttl" not in change.record
    assert b"ephemeral" not in change.record


def test_a_total_of_cache_writes_alone_is_no_split() -> None:
    (change,) = costs_of(facts_of(line(0)))
    assert change.cache_write_split is None


def test_a_split_that_comes_alone_changes_what_is_known_about_an_unchanged_record() -> None:
    before, after = facts_of(line(0)), facts_of(line(200, creation={"ephemeral_1h_input_tokens": 1000}))
    first, second = costs_of(before, after)
    assert first.record == second.record
    assert (first.cache_write_split, second.cache_write_split) == (None, {"ttl5m": 0, "ttl1h": 1000})
    assert costs_of(before, after, after) == [first, second], "the same line again says nothing new"


def test_the_split_is_that_of_the_line_whose_usage_counts_in_whatever_order_they_arrive() -> None:
    lines = [
        line(0, output=1, creation={"ephemeral_5m_input_tokens": 1000}),
        line(200, output=3),
        line(400, output=9, creation={"ephemeral_5m_input_tokens": 300, "ephemeral_1h_input_tokens": 700}),
    ]
    for order in itertools.permutations(lines):
        newest = costs_of(*[facts_of(value) for value in order])[-1]
        assert newest.cache_write_split == SPLIT
        assert newest.record is not None
        assert orjson.loads(newest.record)["measurement"]["tokens"]["output"] == 9


def test_a_binding_that_moves_a_cost_leaves_its_split_beside_it() -> None:
    transcript = facts_of(line(0, creation={"ephemeral_5m_input_tokens": 300, "ephemeral_1h_input_tokens": 700}))
    binding = Fact(
        "conversation:claude-code:host-a:c-1",
        "binding:exec-1",
        (1, 0),
        ["workflow:run-7:draft:0:0", "2026-10-01T08:00:00.000Z"],
    )
    changes = costs_of(transcript, [binding])
    assert [change.cache_write_split for change in changes] == [SPLIT, SPLIT]
    records = [orjson.loads(change.record or b"null") for change in changes]
    assert [record.get("attemptId") for record in records] == [None, "workflow:run-7:draft:0:0"]


def test_an_observation_brings_its_split_along() -> None:
    (change,) = costs_of(facts_of(observation(0, split=SPLIT)))
    assert change.cache_write_split == SPLIT


def test_of_a_response_that_is_reported_again_the_last_report_says_the_split() -> None:
    for first, second, expected in (({"ttl5m": 1000, "ttl1h": 0}, SPLIT, SPLIT), (SPLIT, None, None)):
        changes = costs_of(facts_of(observation(0, split=first), observation(200, split=second)))
        assert changes[-1].cache_write_split == expected


def test_of_a_counter_the_reading_that_is_shown_says_the_split() -> None:
    early, late = observation(0, split={"ttl5m": 1000, "ttl1h": 0}, sequence=1), observation(9, split=SPLIT, sequence=2)
    for order in ((early, late), (late, early)):
        assert costs_of(facts_of(*order))[-1].cache_write_split == SPLIT


@pytest.mark.parametrize(
    "split", [[300, 700], "300/700", {"ttl5m": 300}, {"ttl5m": "300", "ttl1h": 700}, {"ttl5m": -1, "ttl1h": 1001}]
)
def test_a_split_that_cannot_be_read_is_no_evidence_and_costs_nothing_else(split: object) -> None:
    (change,) = costs_of(facts_of(observation(0, split=split)))
    assert change.cache_write_split is None
    assert change.record is not None
