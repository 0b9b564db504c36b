"""What every sink promises, for every sink in the table."""

import asyncio
import itertools
import json
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sizes import examples
from tests.worker.sinks.destinations import DESTINATIONS, DOC_RUN, Destination, deletion, full_disk, run_record, upsert
from worker.sink import (
    APPEND_ONLY,
    SINKS,
    RecordKey,
    Sink,
    SinkRefused,
    Upsert,
    newest_by_id,
    open_sink,
    split_sink_url,
)

KEPT = [name for name, destination in DESTINATIONS.items() if destination.is_kept_between_opens]
FILES = [name for name, destination in DESTINATIONS.items() if destination.is_file]

RUNNING = run_record("r1")
DONE = run_record("r1", status="completed", completedAt="2026-09-28T11:00:00.000Z")
KEY = ("run", "r1")


@pytest.fixture(params=list(DESTINATIONS))
def destination(request: pytest.FixtureRequest, tmp_path: Path) -> Destination:
    return DESTINATIONS[request.param](tmp_path)


@pytest.fixture(params=KEPT)
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Destination:
    return DESTINATIONS[request.param](tmp_path)


@pytest.fixture(params=FILES)
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Destination:
    return DESTINATIONS[request.param](tmp_path)


def test_every_scheme_in_the_table_is_tested_here() -> None:
    assert DESTINATIONS.keys() | APPEND_ONLY == SINKS.keys()
    assert not DESTINATIONS.keys() & APPEND_ONLY


def test_twice_equals_once(destination: Destination) -> None:
    batch = [upsert(record, offset) for offset, record in enumerate(DOC_RUN)]
    assert destination.write(batch, batch) == {item.key: item.json for item in batch}


def test_an_older_version_never_replaces_a_newer(destination: Destination) -> None:
    assert destination.write([upsert(DONE, 7)], [upsert(RUNNING, 3)])[KEY] == upsert(DONE, 7).json


def test_a_newer_version_replaces_an_older(destination: Destination) -> None:
    assert destination.write([upsert(RUNNING, 3)], [upsert(DONE, 7)])[KEY] == upsert(DONE, 7).json


def test_a_generation_outranks_every_offset_of_the_one_before(destination: Destination) -> None:
    batches = [upsert(DONE, 1, generation=2)], [upsert(RUNNING, 9_999, generation=1)]
    assert destination.write(*batches)[KEY] == upsert(DONE, 1).json


def test_an_equal_version_changes_nothing(destination: Destination) -> None:
    assert destination.write([upsert(DONE, 7)], [upsert(RUNNING, 7)])[KEY] == upsert(DONE, 7).json


@pytest.mark.parametrize("known", [[], [upsert(RUNNING, 1)]], ids=["absent", "present"])
@pytest.mark.parametrize("order", [1, -1], ids=["older first", "newer first"])
def test_of_one_id_twice_in_a_batch_the_newest_stays(destination: Destination, known: list[Upsert], order: int) -> None:
    batch = [upsert(RUNNING, 3), upsert(DONE, 7)][::order]
    assert destination.write(known, batch) == {KEY: upsert(DONE, 7).json}


def test_a_deleted_record_is_gone(destination: Destination) -> None:
    assert destination.write([upsert(RUNNING, 1), upsert(run_record("r2"), 2)], [deletion(RUNNING, 3)]).keys() == {
        ("run", "r2")
    }


def test_an_older_deletion_does_nothing(destination: Destination) -> None:
    assert destination.write([upsert(DONE, 7)], [deletion(DONE, 3)]).keys() == {KEY}


def test_deleted_then_newer_lives(destination: Destination) -> None:
    assert destination.write([upsert(RUNNING, 1)], [deletion(RUNNING, 3)], [upsert(DONE, 7)]).keys() == {KEY}


def test_deleted_then_older_stays_deleted(destination: Destination) -> None:
    assert destination.write([deletion(RUNNING, 7)], [upsert(RUNNING, 3)], [upsert(DONE, 7)]) == {}


def test_an_older_deletion_does_not_weaken_a_newer_one(destination: Destination) -> None:
    assert destination.write([deletion(RUNNING, 7)], [deletion(RUNNING, 3)], [upsert(DONE, 5)]) == {}


@pytest.mark.parametrize("order", [1, -1], ids=["older first", "newer first"])
@pytest.mark.parametrize("deleted_at", [3, 9])
def test_a_record_and_its_deletion_in_one_batch_follow_their_versions(
    destination: Destination, order: int, deleted_at: int
) -> None:
    batch = [upsert(DONE, 7), deletion(DONE, deleted_at)][::order]
    assert destination.write(batch).keys() == ({KEY} if deleted_at < 7 else set())


def test_deleting_what_was_never_there_does_nothing(destination: Destination) -> None:
    assert destination.write([deletion(RUNNING, 3)]) == {}


def test_records_of_two_kinds_under_one_id_are_two_records(destination: Destination) -> None:
    gate = next(record for record in DOC_RUN if record["kind"] == "gate")
    run = run_record(gate["id"])
    assert destination.write([upsert(run, 1), upsert(gate, 2)]).keys() == {("run", gate["id"]), ("gate", gate["id"])}
    assert destination.write([upsert(run, 1), upsert(gate, 2), deletion(run, 3)]).keys() == {("gate", gate["id"])}


def test_an_empty_batch_does_nothing(destination: Destination) -> None:
    assert destination.write([], [upsert(RUNNING, 1)], []).keys() == {KEY}


def test_a_batch_that_cannot_be_written_has_no_effect_and_leaves_the_sink_writable(destination: Destination) -> None:
    async def work(sink: Sink) -> None:
        await sink.write([upsert(RUNNING, 1)])
        bad = Upsert("run", "r2", 1, 2, run_record("r2"), None)
        with pytest.raises(AssertionError):
            await sink.write([upsert(DONE, 2), bad])
        await sink.write([upsert(run_record("r3"), 3)])

    assert destination.run(work) == {KEY: upsert(RUNNING, 1).json, ("run", "r3"): upsert(run_record("r3"), 3).json}


def test_a_full_disk_loses_nothing_and_leaves_the_sink_writable(file: Destination) -> None:
    # Random digits, which no storage compresses away.
    digits = random.Random(1).randbytes(2_000_000).hex()
    big = [upsert(run_record(f"big-{n}", error=digits[n * 400_000 : (n + 1) * 400_000]), 10 + n) for n in range(10)]

    async def work(sink: Sink) -> None:
        await sink.write([upsert(RUNNING, 1)])
        with full_disk(1_500_000), pytest.raises(Exception, match=r"[Ff]ile too large|failed: IO Error"):
            await sink.write([*big, deletion(RUNNING, 30)])
        await sink.write([upsert(run_record("r3"), 3)])

    after_failure = file.run(work)
    assert after_failure.keys() == {KEY, ("run", "r3")}
    assert file.write(big).keys() == {KEY, ("run", "r3"), *(item.key for item in big)}


def test_what_was_written_is_there_after_reopening(kept: Destination) -> None:
    first = [upsert(record, offset) for offset, record in enumerate(DOC_RUN)]
    kept.write(first)
    assert kept.write([upsert(RUNNING, 100)]) == {item.key: item.json for item in [*first, upsert(RUNNING, 100)]}


def test_guards_hold_after_reopening(kept: Destination) -> None:
    kept.write([upsert(DONE, 7), upsert(run_record("r2"), 8)], [deletion(run_record("r2"), 9)])
    assert kept.write([upsert(RUNNING, 3), upsert(run_record("r2"), 8)]) == {KEY: upsert(DONE, 7).json}
    assert kept.write([upsert(run_record("r2"), 10)]).keys() == {KEY, ("run", "r2")}


def test_opening_says_whether_anything_was_ever_written(kept: Destination) -> None:
    seen = []

    async def look(sink: Sink) -> None:
        seen.append(await sink.open())

    kept.run(look)
    kept.run(look)
    kept.write([deletion(RUNNING, 1)])
    kept.run(look)
    assert seen == [True, True, False]


def test_another_policy_is_refused_and_nothing_is_changed(kept: Destination) -> None:
    before = kept.write([upsert(RUNNING, 1)])
    sink = open_sink(kept.url, "policy-b")
    with pytest.raises(SinkRefused, match=r"another policy|another name"):
        asyncio.run(sink.open())
    asyncio.run(sink.close())
    assert kept.records() == before
    assert kept.write([upsert(DONE, 2)])[KEY] == upsert(DONE, 2).json


def test_closing_a_sink_twice_or_unopened_is_harmless(kept: Destination) -> None:
    sink = open_sink(kept.url, "policy-a")
    for step in (sink.close, sink.open, sink.close, sink.close):
        asyncio.run(step())


ODD_TEXTS = {
    "NUL escape": rb'"x\u0000y"',
    "lone surrogate escape": rb'"cut \ud83d"',
    "surrogate pair escape": rb'"ok \ud83d\ude00"',
    "emoji": '"ok 😀"'.encode(),
    "separators": '"a\u2028b\u0085c\u2029"'.encode(),
    "quotes and backslashes": rb'"\"\\u0000\n\t\\ud83d\""',
    "very long": b'"' + b"x" * 3_000_000 + b'"',
}


def _odd_record(name: str, error: bytes) -> Upsert:
    record = run_record(name, error="MARK")
    data = json.dumps(record, separators=(",", ":")).encode().replace(b'"MARK"', error)
    return upsert({**record, "error": json.loads(error)}, 1, json_bytes=data)


def test_odd_texts_keep_their_bytes_and_their_neighbours(destination: Destination) -> None:
    odd = [_odd_record(f"odd-{n}", error) for n, error in enumerate(ODD_TEXTS.values())]
    batch = [upsert(RUNNING, 1), *odd, upsert(run_record("last"), 1)]
    assert destination.write(batch) == {item.key: item.json for item in batch}


@pytest.mark.parametrize(
    "record_id", ["a\u00e9/\u2028b", "x" * 100_000, "'); DROP TABLE trace_run; --", '"', "a%2Fb", "\x00"]
)
def test_odd_ids_are_ids(destination: Destination, record_id: str) -> None:
    record = run_record(record_id)
    data = json.dumps(record, separators=(",", ":")).encode()
    batches = [upsert(record, 1, json_bytes=data), upsert(RUNNING, 2)], [upsert(record, 3, json_bytes=data)]
    stored = {record_id: json_bytes for (_, record_id), json_bytes in destination.write(*batches).items()}
    assert set(stored.values()) == {data, upsert(RUNNING, 2).json}
    assert len(stored) == 2


def test_the_greatest_count_is_the_same_number_everywhere(destination: Destination) -> None:
    cost = next(record for record in DOC_RUN if record["kind"] == "cost")
    tokens = dict.fromkeys(cost["measurement"]["tokens"], 2**53 - 1)
    record = {**cost, "measurement": {**cost["measurement"], "tokens": tokens}}
    stored = destination.write([upsert(record, 1)])[("cost", cost["id"])]
    assert json.loads(stored)["measurement"]["tokens"] == tokens


def test_all_sinks_hold_equal_bytes(tmp_path: Path) -> None:
    batches = [
        [upsert(record, offset) for offset, record in enumerate(DOC_RUN)],
        [deletion(DOC_RUN[3], 100), upsert(DONE, 101)],
        [_odd_record(f"odd-{n}", error) for n, error in enumerate(ODD_TEXTS.values())],
    ]
    held = []
    for name, destination in DESTINATIONS.items():
        if not destination.is_here():
            continue
        (tmp_path / name).mkdir()
        held.append(destination(tmp_path / name).write(*batches))
    assert held[0]
    assert all(other == held[0] for other in held)


VERSIONS = st.dictionaries(
    st.tuples(st.sampled_from(["r1", "r2", "r3"]), st.integers(1, 2), st.integers(0, 9)),
    st.booleans(),
    min_size=1,
    max_size=14,
)


def _upsert_of(version: tuple[str, int, int], world: str, *, is_living: bool) -> Upsert:
    name, generation, offset = version
    record = run_record(f"{world}/{name}", error=f"{generation}/{offset}")
    if is_living:
        return upsert(record, offset, generation=generation)
    return deletion(record, offset, generation=generation)


def _newest_living(items: Sequence[Upsert]) -> dict[RecordKey, bytes]:
    newest: dict[RecordKey, Upsert] = {}
    for item in sorted(items, key=lambda item: item.version):
        newest[item.key] = item
    return {key: item.json for key, item in newest.items() if item.json is not None}


@pytest.mark.parametrize("name", list(DESTINATIONS))
def test_any_order_batching_and_repetition_leaves_the_same_content(name: str, tmp_path: Path) -> None:
    # One destination for all worlds, each with ids of its own: making a database is what takes time here.
    destination = DESTINATIONS[name](tmp_path)
    worlds = itertools.count()

    @settings(max_examples=examples(25 if name in ("clickhouse", "delta", "duckdb", "parquet", "postgresql") else 100))
    @given(VERSIONS, st.data())
    def check(versions: dict[tuple[str, int, int], bool], data: st.DataObject) -> None:
        world = f"world-{next(worlds)}"
        items = [_upsert_of(version, world, is_living=is_living) for version, is_living in versions.items()]
        again = data.draw(st.lists(st.sampled_from(items), max_size=6))
        schedule = data.draw(st.permutations([*items, *again]))
        cuts = sorted(data.draw(st.lists(st.integers(0, len(schedule)), max_size=3)))
        batches = [schedule[i:j] for i, j in itertools.pairwise([0, *cuts, len(schedule)])]
        if destination.is_kept_between_opens and data.draw(st.booleans()):
            for batch in batches[:-1]:
                destination.write(batch)
            batches = batches[-1:]
        held = destination.write(*batches)
        assert {key: line for key, line in held.items() if key[1].startswith(f"{world}/")} == _newest_living(items)

    check()


def test_newest_by_id_keeps_the_first_of_equal_versions_and_the_order_of_first_appearance() -> None:
    other = run_record("r0")
    batch = [upsert(RUNNING, 1), upsert(other, 2), upsert(DONE, 5), upsert(RUNNING, 5), upsert(RUNNING, 4)]
    assert newest_by_id(batch) == [upsert(DONE, 5), upsert(other, 2)]


@pytest.mark.parametrize("url", ["", "traces.duckdb", "ftp:x", "sqlite:///x", "postgres://user:ZZSECRETZZ@host/db"])
def test_a_url_without_a_known_scheme_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(SinkRefused) as caught:
        open_sink(url, "p")
    assert "duckdb:" in str(caught.value)
    assert "ZZSECRETZZ" not in str(caught.value)


@pytest.mark.parametrize("url", ["duckdb:", "jsonl:", "stdout:file"])
def test_a_location_that_a_sink_cannot_use_is_refused(url: str) -> None:
    with pytest.raises(SinkRefused):
        open_sink(url, "p")


@pytest.mark.parametrize("url", ["-", "jsonl:-", "stdout:"])
def test_a_dash_is_standard_output(url: str) -> None:
    assert split_sink_url(url) == ("stdout", "")
