"""Reading JSONL files: what a state says counts, plain files of records, and lines that are no records."""

import json
from pathlib import Path
from typing import Any

import pytest

from projections.privacy import Policy, redact
from tests.projections.reports.cost_records import call, cost, delta, snapshot
from tests.worker.sinks.destinations import DOC_RUN, JsonlDestination, run_record, upsert
from worker.readers import jsonl
from worker.record_reader import RecordsUnreadable, open_reader
from worker.stores.columns import COLUMNS

KINDS = tuple(COLUMNS)


def read(path: Path) -> list[dict[str, Any]]:
    return list(open_reader(f"jsonl:{path}").read(KINDS))


def write(path: Path, *records: Any) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_a_file_without_a_state_is_read_whole_and_of_one_id_the_last_line_counts(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", run_record("r1"), run_record("r2"), run_record("r1", status="failed"))
    path.write_text(path.read_text() + "\n  \n" + json.dumps(run_record("r3")))
    assert {record["id"]: record["status"] for record in read(path)} == {
        "r1": "failed",
        "r2": "running",
        "r3": "running",
    }


def test_what_stands_behind_the_last_commit_is_not_read(tmp_path: Path) -> None:
    file = JsonlDestination(tmp_path)
    file.write([upsert(run_record("r1"), 1)])
    with file.path.open("ab") as stream:
        stream.write(json.dumps(run_record("r2")).encode() + b'\n{"torn')
    with file.state_path.open("ab") as stream:
        stream.write(b'["run","r2",1,2,true]\n{"byt')
    assert [record["id"] for record in read(file.path)] == ["r1"]


def test_a_state_that_was_never_begun_counts_nothing(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", run_record("r1"))
    (tmp_path / "t.jsonl.state").write_bytes(b'{"form')
    assert read(path) == []


def test_a_file_that_is_not_what_its_state_says_is_refused(tmp_path: Path) -> None:
    file = JsonlDestination(tmp_path)
    file.write([upsert(run_record("r1"), 1), upsert(run_record("r2"), 2)])
    file.path.write_bytes(file.path.read_bytes().splitlines(keepends=True)[0])
    with pytest.raises(RecordsUnreadable, match=r"is not what traces\.jsonl\.state says"):
        read(file.path)


def test_a_state_of_another_release_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", run_record("r1"))
    (tmp_path / "t.jsonl.state").write_text('{"format":"something else"}\n')
    with pytest.raises(RecordsUnreadable, match="no state of a JSONL export"):
        read(path)


def test_a_file_that_is_replaced_all_the_time_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "t.jsonl", run_record("r1"))
    monkeypatch.setattr(jsonl, "_is_same", lambda *_: False)
    with pytest.raises(RecordsUnreadable, match="replaced all the time"):
        read(path)


def test_a_file_that_cannot_be_read_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "t.jsonl", run_record("r1"))

    def refuse(*_: object, **__: object) -> None:
        # A test that runs as root can read any file, so the refusal is played.
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(RecordsUnreadable, match=r"t\.jsonl: Permission denied"):
        read(path)


@pytest.mark.parametrize("redacts", [False, True])
def test_every_record_that_leaves_can_be_read(tmp_path: Path, redacts: bool) -> None:
    costs = [cost(delta("x", 0.5, input=1)), cost(delta("y", model=None)), cost(snapshot("turn", "t"))]
    records = [*DOC_RUN, *costs, call("a", is_error=None)]
    policy = Policy("k" * 32)
    leaving = [redact(record, policy) for record in records] if redacts else records
    assert read(write(tmp_path / "t.jsonl", *leaving)) == leaving


COST = cost(delta("x", 0.5, input=1))
SNAPSHOT = cost(snapshot("turn", "t"))


@pytest.mark.parametrize(
    "line",
    [
        None,
        [],
        {},
        {**run_record("r"), "schema": "other"},
        {**run_record("r"), "at": "yesterday"},
        {**run_record("r"), "completedAt": 7},
        {key: value for key, value in run_record("r").items() if key != "workflowName"},
        {**call("a"), "callKind": "phone"},
        {**call("a"), "isError": "no"},
        {**COST, "measurement": {}},
        {**COST, "measurement": {**COST["measurement"], "kind": "guess"}},
        {**COST, "measurement": {**COST["measurement"], "tokens": {"input": -1}}},
        {**COST, "measurement": {**COST["measurement"], "tokens": {"input": True}}},
        {**COST, "measurement": {**COST["measurement"], "cost": {"usd": -1, "kind": "reported"}}},
        {**COST, "measurement": {**COST["measurement"], "responseId": None}},
        {**SNAPSHOT, "measurement": {**SNAPSHOT["measurement"], "sequence": "1"}},
        {key: value for key, value in COST.items() if key != "conversation"},
    ],
)
def test_a_line_that_is_no_record_is_named_by_its_number_and_not_by_what_it_says(tmp_path: Path, line: Any) -> None:
    hostile = {**line, "x": "ZZSECRETZZ"} if isinstance(line, dict) else line
    path = write(tmp_path / "t.jsonl", run_record("r1"), hostile)
    with pytest.raises(RecordsUnreadable) as refused:
        read(path)
    assert str(refused.value) == f"{path}:2: this is no trace record"
    assert refused.value.is_usage


@pytest.mark.parametrize("line", [b"\xff\xfe\n", b'{"kind":"run"\n', b'{"kind":NaN}\n', b"\x00\n"])
def test_a_line_that_is_no_json_is_refused_too(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(line)
    with pytest.raises(RecordsUnreadable, match=r":1: this is no trace record"):
        read(path)


def test_a_line_without_an_end_is_not_held_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl, "LINE_BYTES_MAX", 1_000)
    path = write(tmp_path / "t.jsonl", run_record("r1"), run_record("r2", error="x" * 2_000))
    with pytest.raises(RecordsUnreadable, match=r":2: no record is that long"):
        read(path)
