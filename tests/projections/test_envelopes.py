"""What a message comes in says nothing: a CloudEvent or a frame around a value means what the value means alone."""

import base64
import contextlib
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from projections.errors import ProjectionError
from projections.facts import encode_fact
from projections.sources import SOURCES, project_message
from projections.sources.cloud_events import is_cloud_event
from projections.sources.frames import is_framed
from tests.sizes import examples
from tests.worlds.cluster import clean_pass
from tests.worlds.envelopes import WRAPPINGS, event, event_base64, framed, with_schema
from tests.worlds.hostile import spoil
from tests.worlds.messages import CLAUDE, RUN, attempt_of, execution, gate, records, run, transitions
from tests.worlds.world import SourceMessage, World

Json = dict[str, Any]

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
SEEDS = st.integers(min_value=0, max_value=100_000)
PLACE = (3, 7)


class Said(NamedTuple):
    """All that came of a message, facts as the bytes they are stored as."""

    facts: list[tuple[bytes, bytes | None]]
    ignored: str | None
    issues: tuple[str, ...]
    refused: str | None


def said(source: str, key: bytes | None, value: bytes | None) -> Said:
    try:
        found = project_message(source, key, value, *PLACE)
    except ProjectionError as error:
        return Said([], None, (), error.reason)
    return Said([encode_fact(fact) for fact in found.facts], found.ignored, found.issues, None)


def refusal(source: str, value: bytes | None, key: bytes | None = None) -> tuple[str, str | None]:
    with pytest.raises(ProjectionError) as caught:
        project_message(source, key, value, *PLACE)
    return caught.value.reason, caught.value.field


# ---------------------------------------------------------------------------------------------- whatever is inside


@pytest.mark.parametrize("name", WRAPPINGS)
@settings(max_examples=examples(25), deadline=None)
@given(seed=SEEDS)
def test_every_message_of_a_world_gives_the_same_facts_in_an_envelope(name: str, seed: int) -> None:
    for source, key, value in World(seed).messages:
        if value is not None:
            assert said(source, key, WRAPPINGS[name](value)) == said(source, key, value)


@settings(max_examples=examples(100), deadline=None)
@given(seed=SEEDS, name=st.sampled_from(list(WRAPPINGS)))
def test_a_value_that_is_refused_alone_is_refused_for_the_same_reason_in_an_envelope(seed: int, name: str) -> None:
    for source, key, value in spoil(World(seed).messages, Random(seed)):
        if value is not None:
            assert said(source, key, WRAPPINGS[name](value)) == said(source, key, value)


@settings(max_examples=examples(25), deadline=None)
@given(seed=SEEDS)
def test_a_topic_may_hold_all_forms_beside_each_other(seed: int) -> None:
    random = Random(seed)
    plain = World(seed).messages
    forms = [*WRAPPINGS.values(), bytes]
    mixed = [
        message if message.value is None else message._replace(value=random.choice(forms)(message.value))
        for message in plain
    ]
    assert clean_pass(mixed).records == clean_pass(plain).records


@pytest.mark.parametrize("name", WRAPPINGS)
def test_every_sample_message_gives_the_same_facts_in_an_envelope(name: str) -> None:
    count = 0
    for source in SOURCES:
        for path in sorted(FIXTURES.glob(f"runs/*/{source}.jsonl")):
            for line in path.read_bytes().splitlines():
                assert said(source, None, WRAPPINGS[name](line)) == said(source, None, line)
                count += 1
    assert count > 100


# ------------------------------------------------------------------------------------------- what is no envelope


def objects(value: Any) -> Iterator[Json]:
    """Give every object inside a value, itself included."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            yield one
        if isinstance(one, dict | list):
            waiting += one.values() if isinstance(one, dict) else one


def test_no_row_of_the_fixtures_is_taken_for_an_envelope() -> None:
    count = 0
    # What feeds send is in envelopes.
    for path in sorted(set(FIXTURES.rglob("*.jsonl")) - set(FIXTURES.glob("feeds/**/*"))):
        for line in path.read_bytes().splitlines():
            # A killed writer leaves zero bytes in its own file; they come inside a message, never as one.
            assert not is_framed(line) or path.is_relative_to(FIXTURES / "transcripts")
            # The standard library, because rows hold texts that the parser under test refuses; some are no JSON at all.
            with contextlib.suppress(ValueError):
                for one in objects(json.loads(line)):
                    assert not is_cloud_event(one), path
                    count += 1
    assert count > 10_000


@settings(max_examples=examples(100), deadline=None)
@given(seed=SEEDS, is_spoilt=st.booleans())
def test_no_message_of_a_world_is_taken_for_an_envelope(seed: int, is_spoilt: bool) -> None:
    messages = World(seed).messages
    for _source, key, value in spoil(messages, Random(seed)) if is_spoilt else messages:
        assert not is_framed(key or b"")
        if value is not None:
            assert not is_framed(value)
            assert not any(is_cloud_event(one) for one in objects(json.loads(value)))


ROWS: list[tuple[str, Json]] = [
    ("workflow-runs", run(2)),
    ("gate-decisions", gate("r1/review")),
    ("ledger-changes", {"record": execution("e1", attempt_of("s"))}),
    (
        "transcripts",
        {
            "source": {**CLAUDE, "sourceId": "s"},
            "byteOffset": 0,
            "line": '{"type":"user","uuid":"u","message":{"content":"hi"}}',
        },
    ),
    ("erasures", {"run": RUN}),
]


@pytest.mark.parametrize(("source", "row"), ROWS)
@pytest.mark.parametrize("absent", ["specversion", "source", "type"])
@pytest.mark.parametrize("instead", [{}, None, 1])
def test_a_row_with_some_fields_of_an_event_stays_a_row(source: str, row: Json, absent: str, instead: Any) -> None:
    unknown = {"specversion": "1.0", "type": "row", "source": "table", "id": "x", "data": {"id": "another"}}
    unknown[absent] = instead
    assert said(source, None, orjson.dumps({**unknown, **row})) == said(source, None, orjson.dumps(row))
    assert said(source, None, orjson.dumps(row)).refused is None


def test_a_line_whose_source_says_whose_it_is_stays_a_line() -> None:
    line = dict(ROWS)["transcripts"]
    more = {"specversion": "1.0", "type": "line", "id": "x", "data": {}, **line}
    assert said("transcripts", None, orjson.dumps(more)) == said("transcripts", None, orjson.dumps(line))


def test_an_event_inside_an_event_is_no_row() -> None:
    inner = event(orjson.dumps(run(1)))
    assert refusal("workflow-runs", event(inner)) == refusal("workflow-runs", orjson.dumps({"id": "e-1"}))


# --------------------------------------------------------------------------------------------------- deletions


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("empty", [event(b"null"), framed(b"null"), event_base64(b"null"), framed(event(b"null"))])
def test_null_data_is_a_tombstone_of_the_message_key(source: str, empty: bytes) -> None:
    key = b"r1/review" if source == "gate-decisions" else b"r1"
    assert said(source, key, empty) == said(source, key, None)
    assert said(source, None, empty) == said(source, None, None)


@pytest.mark.parametrize(
    "key",
    [b'"r1"', b'{"id":"r1"}', b'{"schema":{"type":"struct"},"payload":{"id":"r1"}}'],
)
def test_a_key_in_a_frame_names_the_id_that_it_names_without_one(key: bytes) -> None:
    assert said("workflow-runs", framed(key), None) == said("workflow-runs", key, None)
    assert said("workflow-runs", framed(key), None) == said("workflow-runs", b"r1", None)
    gone = SourceMessage("workflow-runs", framed(key), None)
    assert records([SourceMessage("workflow-runs", framed(key), orjson.dumps(run(1))), gone], in_order=True) == {}


@pytest.mark.parametrize("key", [b"\x04r1", b"\x00\x04r1", b"\xff\xfe", b"", b"{"])
def test_a_key_of_avro_or_protobuf_is_refused_and_deletes_nothing(key: bytes) -> None:
    assert refusal("workflow-runs", None, framed(key)) == ("not_json_frame", "key")


def test_a_key_in_a_frame_must_be_an_id_all_the_same() -> None:
    for key in (b"7", b"null", b'" "', b'{"number":7}', b'["r1"]'):
        assert refusal("workflow-runs", None, framed(key)) == ("invalid_key", None)


@pytest.mark.parametrize("source", ["workflow-runs", "gate-decisions", "ledger-changes"])
def test_a_key_with_half_a_surrogate_pair_is_refused_as_an_id_with_one(source: str) -> None:
    for key in (rb'"r\ud83d"', framed(rb'"r\ud83d"')):
        assert refusal(source, None, key) == ("lone_surrogate", "key")


def test_an_id_shorter_than_a_frame_is_read_as_it_is() -> None:
    # Too short for a frame, so it is plain text, as it always was.
    assert said("ledger-changes", b"\x00abc", None).refused is None
    # An id that begins with a zero byte is named by a key in JSON.
    assert said("ledger-changes", b'"\\u0000abcd"', None).refused is None


def test_the_key_of_a_message_that_is_no_deletion_is_not_looked_at() -> None:
    assert said("workflow-runs", framed(b"\x04r1"), orjson.dumps(run(1))).refused is None


# ---------------------------------------------------------------------------------------------- captured changes


def change(operation: str, before: Json | None, after: Json | None) -> Json:
    return {"op": operation, "before": before, "after": after, "source": {"lsn": 7}, "ts_ms": 1}


CHANGES: list[tuple[str, Json]] = [
    ("workflow-runs", change("c", None, run(1))),
    ("workflow-runs", change("d", run(1), None)),
    ("workflow-runs", change("d", {"id": RUN}, None)),
    ("gate-decisions", change("u", None, gate("r1/review"))),
    ("gate-decisions", change("d", gate("r1/review"), None)),
    ("ledger-changes", change("r", None, transitions("e1", attempt_of("s"))[0])),
    ("ledger-changes", change("d", transitions("e1", attempt_of("s"))[0], None)),
    ("workflow-runs", change("t", None, None)),
]


@pytest.mark.parametrize(("source", "row"), CHANGES)
@pytest.mark.parametrize("name", WRAPPINGS)
def test_a_captured_change_is_unwrapped_inside_an_envelope_too(source: str, row: Json, name: str) -> None:
    plain = orjson.dumps(row)
    for inner in (plain, with_schema(plain)):
        assert said(source, b"r1", WRAPPINGS[name](inner)) == said(source, b"r1", plain)


@pytest.mark.parametrize(("source", "row"), CHANGES)
@pytest.mark.parametrize("has_schema", [False, True])
def test_an_event_of_debezium_has_its_operation_beside_the_data(source: str, row: Json, has_schema: bool) -> None:
    data: Json = {"before": row["before"], "after": row["after"]}
    if has_schema:
        data = {"schema": {"type": "struct"}, "payload": data}
    converted = {
        "id": 'name:ledger;lsn:29274832;txId:565;sequence:[null,"29274832"]',
        "source": "/debezium/postgresql/ledger",
        "specversion": "1.0",
        "type": "io.debezium.connector.postgresql.DataChangeEvent",
        "time": "2026-10-01T09:00:00.738Z",
        "datacontenttype": "application/json",
        "iodebeziumop": row["op"],
        "iodebeziumtable": "workflow_run",
        "iodebeziumxmin": None,
        "data": data,
    }
    assert said(source, b"r1", orjson.dumps(converted)) == said(source, b"r1", orjson.dumps(row))


def test_the_operation_beside_a_row_that_is_no_change_enters_nothing() -> None:
    row = transitions("e1", attempt_of("s"))[0]
    # A transition's fact holds a digest of the whole row.
    flat = {"specversion": "1.0", "id": "e", "source": "/d", "type": "t", "iodebeziumop": "u", "data": row}
    assert said("ledger-changes", None, orjson.dumps(flat)) == said("ledger-changes", None, orjson.dumps(row))
    assert said("ledger-changes", None, orjson.dumps(flat)).facts


# -------------------------------------------------------------------------------------------------- what is refused


def bare(**more: Any) -> bytes:
    return orjson.dumps({"specversion": "1.0", "id": "e-1", "source": "/ledger", "type": "row", **more})


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(
    ("value", "reason", "field"),
    [
        (bare(), "missing_data", "data"),
        (bare(data_base64=None), "missing_data", "data"),
        (bare(datacontenttype="application/json", subject=RUN), "missing_data", "data"),
        (bare(specversion="0.3", data={"id": RUN}), "unknown_specversion", "specversion"),
        (bare(specversion="", data={"id": RUN}), "unknown_specversion", "specversion"),
        (bare(data='{"id":"r1"}'), "not_an_object", "data"),
        (bare(data=[{"id": RUN}]), "not_an_object", "data"),
        (bare(data=7, datacontenttype="text/plain"), "not_an_object", "data"),
        (bare(data={"schema": {}, "payload": 7}), "not_an_object", "payload"),
        (bare(data_base64="e30", data=None), "invalid_field", "data_base64"),
        (bare(data_base64="e30*"), "invalid_field", "data_base64"),
        (bare(data_base64=""), "invalid_json", "data_base64"),
        (bare(data_base64="ä"), "invalid_field", "data_base64"),
        (bare(data_base64={}), "invalid_field", "data_base64"),
        (bare(data_base64="e30=", data={}), "invalid_field", "data_base64"),
        (bare(data_base64=base64.b64encode(b"\x04r1").decode()), "invalid_json", "data_base64"),
        (bare(data_base64=base64.b64encode(b"\xff\xfe").decode()), "invalid_utf8", "data_base64"),
        (bare(data_base64=base64.b64encode(b"[" * 200 + b"]" * 200).decode()), "too_deep", "data_base64"),
        (bare(data_base64=base64.b64encode(b"[]").decode()), "not_an_object", "data"),
        (b"[" + bare(data={"id": RUN}) + b"]", "not_an_object", None),
        # Avro: a record of texts and a union; Protobuf: the message's place in its schema, then its fields.
        (framed(b"\x04r1\x00\x1cdoc-change\x02"), "not_json_frame", None),
        (framed(b"\x00\x0a\x02r1\x12\x0adoc-change"), "not_json_frame", None),
        (framed(b"\x02\xff\xfe"), "not_json_frame", None),
        (framed(b""), "not_json_frame", None),
        (framed(b'{"id":'), "not_json_frame", None),
        # A frame with an id of eight bytes.
        (b"\x00" + struct.pack(">Q", 10) + b'{"id":"r1"}', "not_json_frame", None),
        (framed(framed(b'{"id":"r1"}')), "not_json_frame", None),
        (framed(b"[" * 200 + b"]" * 200), "too_deep", None),
        (framed(b'{"id":1e999}'), "number_out_of_range", None),
        (framed(b'"r1"'), "not_an_object", None),
        (b"\x00\x00\x00\x00", "invalid_json", None),
        (b"\x01" + bytes(16) + b'{"id":"r1"}', "invalid_json", None),
        (b"Obj\x01", "invalid_json", None),
    ],
)
def test_what_an_envelope_cannot_give_is_refused_by_a_reason_of_its_own(
    source: str, value: bytes, reason: str, field: str | None
) -> None:
    assert refusal(source, value, b"r1") == (reason, field)


def test_the_nesting_that_is_allowed_is_that_of_the_whole_message() -> None:
    value = b'{"a":' * 126 + b"1" + b"}" * 126
    assert refusal("workflow-runs", event(value)) == ("invalid_field", "id")
    assert refusal("workflow-runs", event(b'{"a":' + value + b"}")) == ("too_deep", None)
    assert refusal("workflow-runs", framed(b'{"a":' + value + b"}")) == ("invalid_field", "id")
