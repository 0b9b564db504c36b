"""`trace-projector ledger show`: the records that a dump folds to, and what is wrong with its rows."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from tests.projections.test_runs_ledger_feeds import transitions_of, with_records
from worker.cli import run

ROOT = Path(__file__).resolve().parents[3]
RETRIES = ROOT / "fixtures" / "runs" / "retries" / "ledger-changes.jsonl"

Json = dict[str, Any]
Captured = pytest.CaptureFixture[str]


def dump(path: Path, rows: list[Json]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def records(path: Path, capsys: Captured, code: int = 0) -> list[Json]:
    assert run(["ledger", "show", str(path), "--json"]) == code
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_every_execution_is_a_line_in_the_order_they_were_prepared(capsys: Captured) -> None:
    assert run(["ledger", "show", str(RETRIES)]) == 0
    out, err = capsys.readouterr()
    heading, *lines = out.splitlines()
    assert err == ""
    assert heading.split()[:3] == ["EXECUTION", "PHASE", "REV"]
    assert [line.split()[:4] for line in lines] == [
        ["retries-exec-i0", "failed", "5", "workflow:run-retries:implement:0:0"],
        ["retries-exec-i1", "succeeded", "4", "workflow:run-retries:implement:0:1"],
        ["retries-exec-v0", "failed", "3", "workflow:run-retries:verify:0:0"],
        ["retries-exec-v1", "failed", "4", "workflow:run-retries:verify:0:1"],
    ]
    columns = [heading.index(name) for name in ("PHASE", "REV", "HARNESS", "PREPARED")]
    assert all(line[column - 1] == " " != line[column] for line in lines for column in columns)


def test_as_json_the_lines_are_the_execution_records_without_content(capsys: Captured) -> None:
    found = records(RETRIES, capsys)
    assert [record["execution"]["executionId"] for record in found] == [
        f"retries-exec-{name}" for name in ("i0", "i1", "v0", "v1")
    ]
    assert found[0]["terminal"] == {
        "outcome": "failed",
        "reason": "synthetic: harness exited with 1",
        "retryable": True,
    }
    assert found[1]["terminal"] == {"outcome": "succeeded", "result": None}
    assert "prompt" not in found[0]["execution"]
    assert len(found[0]["execution"]["promptSha256"]) == 64


@pytest.mark.parametrize("seed", range(3))
def test_rows_of_any_shape_order_and_number_give_the_same_lines(seed: int, tmp_path: Path, capsys: Captured) -> None:
    chance = random.Random(seed)
    rows: list[Json] = []
    for transition, record in with_records(transitions_of("recovery")):
        rows += chance.choice([[transition], [record, transition], [{"transition": transition, "record": record}]])
    rows += chance.sample(rows, len(rows) // 2)
    chance.shuffle(rows)
    told = records(dump(tmp_path / "dump.jsonl", rows), capsys)
    straight = records(dump(tmp_path / "dump.jsonl", transitions_of("recovery")), capsys)
    assert [(row["execution"], row["phase"], row["revision"]) for row in told] == [
        (row["execution"], row["phase"], row["revision"]) for row in straight
    ]


def test_a_gap_is_said_beside_the_execution_that_waits(tmp_path: Path, capsys: Captured) -> None:
    rows = [row for row in transitions_of("retries") if row["eventId"] != "retries-exec-i0:1"]
    rows = [row for row in rows if row["eventId"] != "retries-exec-v0:0"]
    path = dump(tmp_path / "dump.jsonl", rows)
    assert run(["ledger", "show", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    (held,) = [line for line in lines if line.startswith("retries-exec-i0")]
    assert held.split()[1:3] == ["prepared", "1"]
    assert held.endswith("3 transitions wait for revision 1")
    # Nobody knows whose it is, so it comes last.
    assert lines[-1].split()[:4] == ["retries-exec-v0", "-", "0", "-"]
    assert lines[-1].endswith("2 transitions wait for revision 0")
    assert run(["ledger", "show", str(path), "--json"]) == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 3
    assert err.splitlines() == [
        "retries-exec-i0: 3 transitions wait for revision 1",
        "retries-exec-v0: 2 transitions wait for revision 0",
    ]


def test_refused_rows_and_conflicts_are_said(tmp_path: Path, capsys: Captured) -> None:
    rows = transitions_of("ended")
    begin = next(row for row in rows if row["kind"] == "begin_dispatch")
    finish = next(row for row in rows if row["kind"] == "finish" and row["executionId"] == "ended-exec-e")
    rows[rows.index(finish)] = {**finish, "terminal": {"outcome": "failed", "reason": ""}}
    path = dump(tmp_path / "dump.jsonl", [*rows, {**begin, "eventId": "another"}])
    assert run(["ledger", "show", str(path)]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("ended-exec-e ")]
    assert line.endswith("the transition at revision 3 does not reduce, 1 revision with two bodies")


def test_a_deleted_execution_is_not_shown(tmp_path: Path, capsys: Captured) -> None:
    rows = transitions_of("ended")
    tombstone = {"key": "ended-exec-old", "value": None}
    found = records(dump(tmp_path / "dump.jsonl", [*rows, tombstone]), capsys)
    assert [record["execution"]["executionId"] for record in found] == ["ended-exec-e"]


def test_what_is_no_ledger_row_is_named_by_its_line_and_makes_exit_code_1(tmp_path: Path, capsys: Captured) -> None:
    path = dump(tmp_path / "dump.jsonl", transitions_of("ended"))
    secret = "ZZSECRETZZ"
    with path.open("a") as file:
        file.write(f'{{"{secret}"\n{{"expectedRevision": 0, "executionId": "{secret}"}}\n' + "[]\n" * 30)
    assert run(["ledger", "show", str(path)]) == 1
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert lines[0].startswith(f"{path}:8: invalid_json")
    assert lines[1].startswith(f"{path}:9: ")
    assert lines[-1] == "and 12 more"
    assert secret not in out + err
    assert len(out.splitlines()) == 3
    assert len(records(path, capsys, code=1)) == 2


def test_ids_that_hold_control_characters_do_not_break_the_table(tmp_path: Path, capsys: Captured) -> None:
    (prepare, *_rest) = transitions_of("ended")
    odd = {**prepare, "executionId": "a\nb\x1b[31m", "execution": {"executionId": "a\nb\x1b[31m"}}
    odd["target"] = {"kind": "fresh", "namespace": "host-a"}
    assert run(["ledger", "show", str(dump(tmp_path / "dump.jsonl", [odd]))]) == 0
    _heading, line = capsys.readouterr().out.splitlines()
    assert line.startswith(r"a\nb\x1b[31m ")


def test_a_ledger_without_rows_is_a_table_without_lines(tmp_path: Path, capsys: Captured) -> None:
    assert records(dump(tmp_path / "dump.jsonl", []), capsys) == []
    assert run(["ledger", "show", str(tmp_path / "dump.jsonl")]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "Missing argument 'FILE'"),
        (["/no/such"], "/no/such: no such file"),
        ([str(ROOT)], "is a directory"),
        ([str(RETRIES), "--jsonl"], "No such option"),
    ],
)
def test_misuse_is_one_line_and_exit_code_2(arguments: list[str], words: str, capsys: Captured) -> None:
    assert run(["ledger", "show", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    assert words in line
