"""The JSONL file: order, crashes at every byte, and files that something else has changed."""

import asyncio
import errno
import itertools
import json
import os
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest

from tests.worker.sinks.destinations import (
    DOC_RUN,
    POLICY,
    JsonlDestination,
    by_key,
    deletion,
    full_disk,
    run_record,
    upsert,
)
from worker.sink import Sink, SinkBusy, SinkRefused, Upsert, open_sink
from worker.sinks import jsonl
from worker.sinks.memory import StdoutSink

RUNS = [run_record(f"r{number}") for number in range(4)]
FIRST = [upsert(record, 1) for record in RUNS[:3]]
SECOND = [upsert({**RUNS[0], "status": "completed"}, 5), deletion(RUNS[1], 6), upsert(RUNS[3], 7)]
AFTER_FIRST = {item.key: item.json for item in FIRST}
AFTER_SECOND = {item.key: item.json for item in [SECOND[0], FIRST[2], SECOND[2]]}


@pytest.fixture
def file(tmp_path: Path) -> JsonlDestination:
    return JsonlDestination(tmp_path)


def copy_of(file: JsonlDestination, name: str) -> JsonlDestination:
    directory = file.directory / name
    directory.mkdir()
    for path in (file.path, file.state_path):
        shutil.copyfile(path, directory / path.name)
    return JsonlDestination(directory)


def test_after_a_clean_stop_lines_stand_in_the_order_of_their_ids_utf8(file: JsonlDestination) -> None:
    ids = ["b", "a", "\uff5e", "\U0001f600", "Z", "é", "a/1"]
    file.write([upsert(run_record(name), number) for number, name in enumerate(ids)])
    found = [json.loads(line)["id"] for line in file.path.read_bytes().splitlines()]
    assert found == sorted(ids, key=str.encode)
    assert found[-2:] == ["\uff5e", "\U0001f600"], "UTF-16 units would put them the other way round"


def test_the_same_upserts_give_the_same_two_files_in_whatever_order(tmp_path: Path) -> None:
    forwards, backwards = JsonlDestination(tmp_path / "a"), JsonlDestination(tmp_path / "b")
    for directory in (forwards.directory, backwards.directory):
        directory.mkdir()
    forwards.write(FIRST, SECOND)
    for item in [*FIRST, *SECOND][::-1]:
        backwards.write([item])
    assert forwards.path.read_bytes() == backwards.path.read_bytes()
    assert forwards.state_path.read_bytes() == backwards.state_path.read_bytes()


def test_the_file_holds_records_and_nothing_else_while_it_is_written(file: JsonlDestination) -> None:
    async def work(sink: Sink) -> None:
        await sink.write(FIRST)
        assert by_key(file.path.read_bytes()) == AFTER_FIRST
        await sink.write(SECOND)
        lines = file.path.read_bytes().splitlines()
        assert set(lines) == {item.json for item in [*FIRST, *SECOND] if item.json is not None}

    assert file.run(work) == AFTER_SECOND


def test_both_files_are_for_their_owner_alone(file: JsonlDestination) -> None:
    file.write(FIRST)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in file.directory.iterdir()}
    assert modes == {"traces.jsonl": 0o600, "traces.jsonl.state": 0o600}


def test_writing_what_is_known_already_touches_no_byte(file: JsonlDestination) -> None:
    file.write(FIRST, SECOND)
    before = [(path.stat().st_mtime_ns, path.stat().st_ino) for path in (file.path, file.state_path)]
    file.write(FIRST, SECOND)
    assert [(path.stat().st_mtime_ns, path.stat().st_ino) for path in (file.path, file.state_path)] == before


def _crashed_after(file: JsonlDestination, *batches: list[Upsert]) -> list[JsonlDestination]:
    """Copies of the files as a crash after each batch would leave them."""
    copies = []

    async def work(sink: Sink) -> None:
        for number, batch in enumerate(batches):
            await sink.write(batch)
            copies.append(copy_of(file, f"crash-{number}"))

    file.run(work)
    return copies


def test_a_crash_between_writes_loses_nothing(file: JsonlDestination) -> None:
    first, second = _crashed_after(file, FIRST, SECOND)
    assert first.write([]) == AFTER_FIRST
    assert second.write([]) == AFTER_SECOND
    assert second.path.read_bytes() == file.path.read_bytes()


@pytest.mark.parametrize("torn", ["state", "lines"])
def test_a_crash_at_any_byte_of_a_write_leaves_it_done_or_undone(file: JsonlDestination, torn: str) -> None:
    first, second = _crashed_after(file, FIRST, SECOND)
    lines, state = second.path.read_bytes(), second.state_path.read_bytes()
    lines_before, state_before = first.path.read_bytes(), first.state_path.read_bytes()
    cuts = range(len(state_before), len(state)) if torn == "state" else range(len(lines_before), len(lines), 7)
    for cut in cuts:
        # Lines come first: while they are being written the state is still the old one.
        second.path.write_bytes(lines if torn == "state" else lines[:cut])
        second.state_path.write_bytes(state[:cut] if torn == "state" else state_before)
        assert second.write([]) == AFTER_FIRST
        assert second.write(SECOND) == AFTER_SECOND


@pytest.mark.parametrize("tail", [b"\0" * 512, b'["run","r', b'["run","r9",1,9,true]\n', b"\0\0\n\0"])
def test_what_stands_behind_the_last_commit_never_happened(file: JsonlDestination, tail: bytes) -> None:
    (crashed,) = _crashed_after(file, FIRST)
    for path in (crashed.path, crashed.state_path):
        with path.open("ab") as open_file:
            open_file.write(tail)
    assert crashed.write(SECOND) == AFTER_SECOND


def test_a_crash_between_the_two_renames_of_a_compaction_loses_nothing(file: JsonlDestination) -> None:
    _, crashed = _crashed_after(file, FIRST, SECOND)
    crashed.path.write_bytes(file.path.read_bytes())
    assert crashed.write([]) == AFTER_SECOND
    assert crashed.write([upsert(RUNS[1], 6), upsert(RUNS[0], 4)]) == AFTER_SECOND
    assert crashed.state_path.read_bytes() == file.state_path.read_bytes()


def test_a_compaction_that_fails_leaves_the_file_writable(file: JsonlDestination) -> None:
    sink = open_sink(file.url, POLICY)
    digits = "0123456789" * 2_000
    batch = [upsert(run_record(f"r{number}", error=digits), number) for number in range(10)]

    async def work() -> None:
        await sink.open()
        await sink.write([*batch, upsert(run_record("a", error=digits), 1)])
        await sink.write([deletion(run_record("a"), 2)])
        with full_disk(100_000), pytest.raises(OSError, match="File too large"):
            await sink.close()

    asyncio.run(work())
    assert {path.name for path in file.directory.iterdir()} == {"traces.jsonl", "traces.jsonl.state"}
    assert file.write([upsert(RUNS[0], 100)]).keys() == {("run", f"r{number}") for number in range(10)}


@pytest.mark.parametrize("failing_sync", [1, 2], ids=["lines", "state"])
def test_a_write_that_was_not_made_durable_leaves_nothing_for_the_next_commit(
    file: JsonlDestination, monkeypatch: pytest.MonkeyPatch, failing_sync: int
) -> None:
    crashed = []
    calls = itertools.count(1)
    fsync = os.fsync

    def fail_once(descriptor: int) -> None:
        if next(calls) == failing_sync:
            raise OSError(errno.EIO, "Input/output error")
        fsync(descriptor)

    async def work(sink: Sink) -> None:
        await sink.write(FIRST)
        monkeypatch.setattr(os, "fsync", fail_once)
        with pytest.raises(OSError, match="Input/output error"):
            await sink.write([deletion(record, 20 + n) for n, record in enumerate([*RUNS[:3], *DOC_RUN])] + [SECOND[2]])
        monkeypatch.setattr(os, "fsync", fsync)
        await sink.write(SECOND[:1])
        assert set(by_key_of_last(file.path.read_bytes())) == {item.json for item in [SECOND[0], *FIRST[1:]]}
        crashed.append(copy_of(file, "crashed"))

    file.run(work)
    assert set(crashed[0].write([]).values()) == {item.json for item in [SECOND[0], *FIRST[1:]]}


def by_key_of_last(lines: bytes) -> list[bytes]:
    """The last line of each record, as a reader of an open file takes it."""
    return list({json.loads(line)["id"]: line for line in lines.splitlines()}.values())


def test_superseded_lines_are_compacted_away_while_the_file_is_open(
    file: JsonlDestination, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jsonl, "COMPACT_BYTES_MIN", 10_000)
    sizes = []

    async def work(sink: Sink) -> None:
        for offset in range(200):
            await sink.write([upsert({**RUNS[offset % 4], "error": str(offset)}, offset)])
            sizes.append(file.path.stat().st_size)

    held = file.run(work)
    assert max(sizes) < 12_000
    assert {json.loads(line)["error"] for line in held.values()} == {"196", "197", "198", "199"}


def test_a_second_writer_is_put_off(file: JsonlDestination) -> None:
    async def work(_sink: Sink) -> None:
        other = open_sink(file.url, POLICY)
        with pytest.raises(SinkBusy) as caught:
            await other.open()
        assert caught.value.delay_s > 0
        await other.close()

    file.run(work)
    assert file.write(FIRST) == AFTER_FIRST


def test_the_lock_outlives_a_compaction(file: JsonlDestination, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl, "COMPACT_BYTES_MIN", 0)

    async def work(sink: Sink) -> None:
        for offset in range(5):
            await sink.write([upsert(RUNS[0], offset)])
        with pytest.raises(SinkBusy):
            await open_sink(file.url, POLICY).open()

    file.run(work)


def test_a_file_that_was_there_before_is_refused_and_left_as_it_is(file: JsonlDestination) -> None:
    file.path.write_text("mine\n")
    with pytest.raises(SinkRefused, match="holds something already"):
        file.write(FIRST)
    assert file.path.read_text() == "mine\n"


@pytest.mark.parametrize("content", ["", "mine\n", '{"kind":"run","id":"r9"}\n'])
def test_a_file_that_something_else_changed_is_refused(file: JsonlDestination, content: str) -> None:
    file.write(FIRST)
    file.path.write_text(content)
    with pytest.raises(SinkRefused, match="changed by something else"):
        file.write(SECOND)


def test_a_state_of_something_else_is_refused_and_left_as_it_is(file: JsonlDestination) -> None:
    file.state_path.write_text("mine")
    with pytest.raises(SinkRefused, match="no state"):
        file.write(FIRST)
    assert file.state_path.read_text() == "mine"


def test_a_state_without_its_file_is_refused(file: JsonlDestination) -> None:
    file.write(FIRST)
    file.path.unlink()
    with pytest.raises(SinkRefused, match="is gone"):
        file.write(SECOND)


def test_a_file_that_is_moved_away_while_it_is_written_is_noticed(file: JsonlDestination) -> None:
    async def work(sink: Sink) -> None:
        await sink.write(FIRST)
        file.path.rename(file.directory / "rotated")
        with pytest.raises(SinkRefused, match="moved or replaced"):
            await sink.write(SECOND)
        (file.directory / "rotated").rename(file.path)

    assert file.run(work) == AFTER_FIRST


def test_a_missing_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SinkRefused, match="no directory"):
        asyncio.run(open_sink(f"jsonl:{tmp_path}/missing/traces.jsonl", POLICY).open())


def test_standard_output_gets_the_records_in_id_order_when_it_is_closed(capfdbinary: Any) -> None:
    async def work() -> None:
        sink = open_sink("-", POLICY)
        assert isinstance(sink, StdoutSink)
        assert await sink.open()
        await sink.write([upsert(record, offset) for offset, record in enumerate(DOC_RUN)])
        await sink.write([deletion(DOC_RUN[1], 50)])
        assert capfdbinary.readouterr().out == b""
        await sink.close()
        await sink.close()

    asyncio.run(work())
    lines = capfdbinary.readouterr().out.splitlines()
    expected = sorted([record["id"] for record in DOC_RUN if record is not DOC_RUN[1]])
    assert [json.loads(line)["id"] for line in lines] == expected
