"""The commands usage and timeline: the same numbers from every place, every form of output, hostile names, misuse."""

import csv
import io
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from rich.cells import cell_len
from rich.console import Console

from projections.reports.spend import Sum
from projections.reports.timeline import timeline
from projections.reports.timeline_model import timeline_json
from projections.reports.usage_report import GROUPINGS, usage_report
from tests.projections.reports.cost_records import Record, call, cost, delta, snapshot
from tests.projections.test_real_transcripts import REAL, TRUTH, _true_tokens
from worker.cli import run
from worker.settings import ENV_PREFIX
from worker.views.text import Screen, duration_text, shown
from worker.views.timeline import timeline_lines
from worker.views.usage import usage_csv, usage_table

ROOT = Path(__file__).resolve().parents[3]
RUNS = ROOT / "fixtures" / "runs"
DOC_CHANGE = "9bf80943-7e19-5851-ab8a-c8e4e2b0f3eb"
HOSTILE = "[bold red]m[/]\x1b[31m\x07\n\u202e\ud800:smile:"
HOSTILE_SHOWN = "[bold red]m[/]\\x1b[31m\\x07\\n\\u202e\\ud800:smile:"


class Result:
    """What one command did."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code = code
        self.out = out
        self.err = err
        self.lines = out.splitlines()

    @property
    def json(self) -> Any:
        assert self.out.isascii()
        return json.loads(self.out)


Command = Callable[..., Result]


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    for name in list(os.environ):
        if name.upper().startswith(ENV_PREFIX) or name in ("COLUMNS", "FORCE_COLOR", "NO_COLOR"):
            monkeypatch.delenv(name)

    def invoke(*arguments: object) -> Result:
        code = run([str(argument) for argument in arguments])
        return Result(code, *capfd.readouterr())

    return invoke


def golden(name: str) -> list[Record]:
    return [orjson.loads(line) for line in (RUNS / name / "trace.jsonl").read_bytes().splitlines()]


def written(directory: Path, *records: Record) -> Path:
    path = directory / "t.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def run_record(run_id: str, **fields: Any) -> Record:
    made = {"schema": "titan.trace/v1", "kind": "run", "id": run_id, "runId": run_id, "at": "2026-11-03T10:00:00Z"}
    return {**made, "workflowName": "w", "status": "running", **fields}


def printed(renderables: Any, width: int, *, ascii_only: bool = False) -> list[str]:
    stream = io.StringIO()
    console = Console(file=stream, width=width, markup=False, highlight=False, emoji=False)
    for renderable in renderables(Screen(width, ascii_only)):
        console.print(renderable)
    return stream.getvalue().splitlines()


# --------------------------------------------------------------------------------------------------------- one number


@pytest.mark.parametrize("by", GROUPINGS)
@pytest.mark.parametrize("name", ["demo", "doc-run"])
def test_a_sink_a_file_of_records_and_the_sources_give_the_same_report(
    command: Command, tmp_path: Path, name: str, by: str
) -> None:
    targets = [f"duckdb:{tmp_path / 't.duckdb'}", f"jsonl:{tmp_path / 't.jsonl'}"]
    for target in targets:
        assert command("project", RUNS / name, "--to", target, "--no-redact").code == 0
    reports = [command("usage", "--by", by, "--json", "--from", place) for place in (RUNS / name, *targets)]
    assert [report.code for report in reports] == [0, 0, 0]
    assert reports[0].out == reports[1].out == reports[2].out
    assert reports[0].json["rows"]


def test_a_redacted_sink_gives_the_same_report(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REPORTS_TEST_KEY", "k" * 32)
    target = f"jsonl:{tmp_path / 't.jsonl'}"
    config = tmp_path / "c.toml"
    config.write_text(f'[[exports]]\nname = "a"\nsink = "{target}"\nkey_env = "REPORTS_TEST_KEY"\n')
    assert command("--config", config, "project", RUNS / "demo", "--to", target, "--export", "a").code == 0
    clear = command("usage", "--by", "model", "--json", "--from", RUNS / "demo")
    # Without --from the only export of the settings is read.
    assert command("--config", config, "usage", "--by", "model", "--json").out == clear.out


def test_records_in_two_places_count_once(command: Command, tmp_path: Path) -> None:
    target = f"duckdb:{tmp_path / 't.duckdb'}"
    assert command("project", RUNS / "demo", "--to", target, "--no-redact").code == 0
    once = command("usage", "--json", "--from", target)
    assert command("usage", "--json", "--from", target, RUNS / "demo").out == once.out


@pytest.mark.skipif(not TRUTH, reason="the real transcripts are not at hand")
@pytest.mark.parametrize("name", ["claude-code/two-models.jsonl", "codex/unanswered-calls.jsonl"])
def test_transcript_files_are_summed_up_as_they_lie_on_disk(command: Command, name: str) -> None:
    harness = name.partition("/")[0]
    result = command(
        "usage", "--by", "model", "--json", "--from", REAL / name, "--harness", harness, "--namespace", "here"
    )
    found = {
        row["key"]: {field: count["known"] for field, count in row["tokens"].items()} for row in result.json["rows"]
    }
    truth = _true_tokens(name)
    assert found == {model: {field: counts[field] for field in found[model]} for model, counts in truth.items()}


def test_costs_of_files_are_estimated_on_request(command: Command) -> None:
    arguments = ("usage", "--json", "--from", RUNS / "demo")
    plain, estimated = command(*arguments).json["total"], command(*arguments, "--estimate-costs").json["total"]
    assert plain["usd"] == {"total": None, "known": 0.0, "unknown": 20, "estimated": 0.0}
    assert 0 < estimated["usd"]["estimated"] == estimated["usd"]["known"]
    assert estimated["tokens"] == plain["tokens"]


# ------------------------------------------------------------------------------------------------------- usage: forms


def test_json_says_what_was_asked_for_and_gives_every_sum_with_what_is_unknown(command: Command) -> None:
    result = command(
        "usage",
        "--json",
        "--tz",
        "Asia/Tokyo",
        "--since",
        "2026-11-03",
        "--until",
        "2026-11-03",
        "--from",
        RUNS / "demo",
    )
    value = result.json
    assert {key: value[key] for key in ("by", "timeZone", "since", "until", "supersededCosts")} == {
        "by": "day",
        "timeZone": "Asia/Tokyo",
        "since": "2026-11-02T15:00:00Z",
        "until": "2026-11-03T15:00:00Z",
        "supersededCosts": 0,
    }
    (row,) = value["rows"]
    assert row["key"] == "2026-11-03"
    assert row["tokens"]["input"] == {"total": 161_153, "known": 161_153, "unknown": 0}
    assert row["tokens"]["reasoningOutput"] == {"total": None, "known": 0, "unknown": 20}
    assert (row["toolCalls"], row["toolErrors"]) == (14, {"total": None, "known": 3, "unknown": 1})
    assert {key: row[key] for key in value["total"]} == value["total"]


def test_the_days_are_those_of_the_zone(command: Command, tmp_path: Path) -> None:
    path = written(tmp_path, cost(delta("x", input=1), at="2026-11-03T23:30:00Z"))
    days = {
        zone: command("usage", "--json", "--tz", zone, "--from", f"jsonl:{path}").json["rows"][0]["key"]
        for zone in ("UTC", "Europe/Berlin")
    }
    assert days == {"UTC": "2026-11-03", "Europe/Berlin": "2026-11-04"}


def test_csv_has_a_row_per_group_and_an_empty_cell_where_a_sum_is_unknown(command: Command) -> None:
    result = command("usage", "--by", "run", "--csv", "--from", RUNS / "demo")
    rows = list(csv.DictReader(io.StringIO(result.out)))
    report = command("usage", "--by", "run", "--json", "--from", RUNS / "demo").json
    assert [row["run"] for row in rows] == [row["key"] for row in report["rows"]]
    assert [row["workflow"] for row in rows] == [row["workflow"] for row in report["rows"]]
    assert sum(int(row["input_tokens"]) for row in rows) == report["total"]["tokens"]["input"]["total"]
    assert {(row["usd"], row["usd_known"]) for row in rows} == {("", "0.0")}
    assert sum(int(row["usd_unknown"]) for row in rows) == report["total"]["usd"]["unknown"]
    assert [row["tool_errors"] for row in rows] == ["1", "2", "0", "", "0"]


def test_csv_of_nothing_is_its_header(command: Command) -> None:
    result = command("usage", "--by", "model", "--csv", "--since", "2030-01-01", "--from", RUNS / "demo")
    assert result.lines[0].startswith("model,costs,usd_estimated,tool_calls,requests,requests_known,requests_unknown,")
    assert len(result.lines) == 1


def test_the_table_shows_sums_and_what_is_unknown_without_any_colour(command: Command) -> None:
    result = command("usage", "--by", "model", "--from", f"jsonl:{RUNS / 'demo' / 'trace.jsonl'}")
    assert result.code == 0
    assert "\x1b" not in result.out
    assert re.split(r"\s{2,}", result.lines[0].strip()) == [
        "model", "requests", "input", "cached", "cache write", "output", "total", "USD",
    ]  # fmt: skip
    total = next(line for line in result.lines if line.startswith("total"))
    golden_total = usage_report(golden("demo"), "model").total
    assert total.split()[1:3] == [str(golden_total.costs), f"{golden_total.tokens['input'].total:,}"]
    assert total.split()[-1] == "?"
    assert "unknown everywhere: reasoning" in result.lines


def test_the_table_of_nothing_says_so(command: Command) -> None:
    result = command("usage", "--since", "2030-01-01", "--from", RUNS / "demo")
    assert (result.code, result.lines) == (0, ["no usage in these records at that time"])


def test_partial_sums_estimates_and_superseded_costs_are_marked_and_explained() -> None:
    estimate = delta("x", 0.25, input=5) | {"cost": {"usd": 0.25, "kind": "estimate"}}
    report = usage_report(
        [cost(estimate), cost(delta("y", 0.00002)), cost(delta("z", input=7)), cost(snapshot("turn", "t", input=9))],
        "day",
    )
    lines = printed(lambda screen: usage_table(report, screen), 100)
    total = next(line for line in lines if line.startswith("total"))
    assert re.split(r"\s{2,}", total)[:3] == ["total", "3", "≥12 +1?"]
    assert "~≥0.2500 +1?" in re.split(r"\s{2,}", total)
    assert lines[-4:] == [
        "? is unknown; ≥5 +2? is 5 and what 2 records do not say",
        "~ includes estimates",
        "1 more cost records tell of the same spend and are not counted",
        "unknown everywhere: cached, cache write, reasoning, total",
    ]


@pytest.mark.parametrize("width", [20, 30, 44, 50, 60, 80, 100, 140])
@pytest.mark.parametrize("by", GROUPINGS)
def test_a_table_fits_its_terminal_and_cuts_no_number(by: Any, width: int) -> None:
    report = usage_report([record for name in ("demo", "doc-run") for record in golden(name)], by)
    lines = printed(lambda screen: usage_table(report, screen), width)
    assert max(cell_len(line) for line in lines) <= width
    numbers = {f"{row.usage.tokens['input'].known:,}" for row in report.rows} | {
        f"{report.total.tokens['input'].known:,}"
    }
    assert numbers <= set(" ".join(lines).split())
    assert "…" not in "".join(lines)


def test_a_narrow_terminal_is_told_what_it_does_not_see(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    result = command("usage", "--from", RUNS / "demo")
    assert "too narrow to show: " in result.out
    assert max(map(cell_len, result.lines)) <= 60


# ------------------------------------------------------------------------------------------------------------ timeline

EXAMPLE = """\
doc-change run-7 completed
2026-10-01T09:00:00.000Z to 2026-10-01T09:22:00.000Z, took 22m 00s
1 request, 1,500 in, 90 out, $?
1 tool call

                 0s                      11m 00s          22m 00s
load             =                                                 succeeded 0s
draft            -                                                 failed end unknown
  attempt 1       =+========                                       succeeded 4m 29s, 1 tool call, 1,500 in, 90 out, $?
review                     ==================================      succeeded 14m 59s
  gate                     .................................#      allow by human:owner after 14m 59s
merge-authorize                                               =    succeeded 100ms
  gate                                                        #    allow by policy:F5 (F5 MRG-OT)
tokens so far      @@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@  1,590

= attempt  - end unknown  + call  x in error  . waiting at a gate  # decided  > still open
"""


def test_a_timeline_draws_attempts_calls_gates_and_spend_against_time() -> None:
    made = timeline(golden("example"), "run-7")
    assert made is not None
    lines = printed(lambda screen: timeline_lines(made, screen), 118, ascii_only=True)
    assert [line.rstrip() for line in lines] == EXAMPLE.splitlines()


@pytest.mark.parametrize("width", [1, 20, 40, 80, 99, 100, 140, 400])
@pytest.mark.parametrize("ascii_only", [False, True])
def test_a_timeline_fits_its_terminal(width: int, ascii_only: bool) -> None:
    for name in ("demo", "doc-run", "example"):
        for run_id in {record["runId"] for record in golden(name)}:
            made = timeline(golden(name), run_id)
            assert made is not None
            lines = printed(lambda screen, made=made: timeline_lines(made, screen), width, ascii_only=ascii_only)
            assert max(cell_len(line) for line in lines) <= width
            assert not ascii_only or "".join(lines).isascii()


def test_a_timeline_is_the_same_from_a_sink_as_from_the_sources(command: Command, tmp_path: Path) -> None:
    targets = [f"duckdb:{tmp_path / 't.duckdb'}", f"jsonl:{tmp_path / 't.jsonl'}"]
    for target in targets:
        assert command("project", RUNS / "demo", "--to", target, "--no-redact").code == 0
    shown_ones = [command("timeline", DOC_CHANGE, "--from", place) for place in (RUNS / "demo", *targets)]
    assert [result.code for result in shown_ones] == [0, 0, 0]
    assert shown_ones[0].out == shown_ones[1].out == shown_ones[2].out
    assert "\x1b" not in shown_ones[0].out
    as_json = command("timeline", DOC_CHANGE, "--json", "--from", targets[0]).json
    made = timeline(golden("demo"), DOC_CHANGE)
    assert made is not None
    assert as_json == json.loads(json.dumps(timeline_json(made)))


def test_a_run_out_of_transcripts_has_a_lane_per_conversation(command: Command, tmp_path: Path) -> None:
    found = [run_record("s"), call("a", run="s"), cost(delta("x", input=3, output=1), run="s")]
    result = command("timeline", "s", "--from", f"jsonl:{written(tmp_path, *found)}")
    assert any(line.startswith("conversation:h:n:c") and "1 tool call, 3 in, 1 out" in line for line in result.lines)


def test_an_open_gate_reaches_to_the_end(command: Command, tmp_path: Path) -> None:
    opened = run_record("r") | {"kind": "gate", "id": "r/ship", "gateKind": "human", "status": "pending"}
    ended = run_record("r", completedAt="2026-11-03T11:00:00Z")
    result = command("timeline", "r", "--from", f"jsonl:{written(tmp_path, ended, opened)}")
    (line,) = [line for line in result.lines if line.startswith("r gate")]
    assert "░" * 50 + "▶" in line
    assert "pending since 2026-11-03T10:00:00Z" in line


def test_an_unknown_run_is_one_line_with_the_names_near_it(command: Command, tmp_path: Path) -> None:
    result = command("timeline", "9bf8", "--from", RUNS / "demo")
    assert (result.code, result.out) == (1, "")
    assert result.err.splitlines()[-1] == f"trace-projector: no run 9bf8 among 5 runs; near it: {DOC_CHANGE}"
    path = written(tmp_path, run_record("run-1\x1b"), run_record("other"))
    result = command("timeline", "run-2", "--from", f"jsonl:{path}")
    assert result.err == "trace-projector: no run run-2 among 2 runs; near it: run-1\\x1b\n"


# ----------------------------------------------------------------------------------------------------- hostile names


@pytest.fixture
def hostile(tmp_path: Path) -> str:
    return "jsonl:" + str(
        written(
            tmp_path,
            run_record("r", workflowName=HOSTILE, error=HOSTILE),
            run_record("r")
            | {"kind": "attempt", "id": "workflow:r:a:0:0", "stepId": HOSTILE, "stepKind": "dispatch", "iteration": 0}
            | {"attempt": 0},
            cost(delta("x", model=HOSTILE, input=1)),
            cost(delta("y", model="=1+1", input=1)),
            call("a") | {"name": HOSTILE},
        )
    )


def test_hostile_names_are_shown_as_text_in_tables_and_timelines(command: Command, hostile: str) -> None:
    usage, runs = (
        command("usage", "--by", "model", "--from", hostile),
        command("usage", "--by", "run", "--from", hostile),
    )
    laid_out = command("timeline", "r", "--from", hostile)
    for result in (usage, runs, laid_out):
        assert HOSTILE_SHOWN in result.out
        assert re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e\ud800]", result.out) is None


def test_hostile_names_are_whole_in_json_and_cannot_leave_their_quotes(command: Command, hostile: str) -> None:
    rows = command("usage", "--by", "model", "--json", "--from", hostile).json["rows"]
    assert [row["key"] for row in rows] == ["=1+1", HOSTILE]
    value = command("timeline", "r", "--json", "--from", hostile).json
    assert (value["workflow"], [lane["key"] for lane in value["lanes"]]) == (HOSTILE, ["conversation:h:n:c", HOSTILE])


def test_hostile_names_are_no_formulas_and_no_new_cells_in_csv(command: Command, hostile: str) -> None:
    rows = list(csv.DictReader(io.StringIO(command("usage", "--by", "model", "--csv", "--from", hostile).out)))
    assert [row["model"] for row in rows] == ["'=1+1", HOSTILE_SHOWN]


def test_text_for_a_terminal_without_unicode_is_ascii() -> None:
    assert shown("é✓", ascii_only=True) == "\\xe9\\u2713"
    assert shown("é✓") == "é✓"
    assert Screen(80, ascii_only=True).name("x" * 500) == "x" * 159 + "~"
    assert Screen(80, ascii_only=False).name("字" * 500, 10) == "字字字字…"
    assert Screen(80, ascii_only=False).sum(Sum(5, 2), 7) == "≥5 +2?"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"), (0.04, "40ms"), (0.9996, "1s"), (6.54, "6.5s"), (59.96, "1m 00s"), (61, "1m 01s"),
        (3599.6, "1h 00m"), (11_100, "3h 05m"), (187_200, "2d 04h"), (-90, "-1m 30s"),
    ],
)  # fmt: skip
def test_durations_are_written_in_their_two_greatest_units(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


def test_csv_of_a_report_ends_its_lines_as_the_rfc_says() -> None:
    lines = usage_csv(usage_report([cost(delta("x"))], "source")).split("\r\n")
    assert (len(lines), lines[1].split(",")[0], lines[2]) == (3, "s-1", "")


# ------------------------------------------------------------------------------------------------------------- misuse


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["usage"], "say where the records are: --from URL|PATH (sinks of the settings: none)"),
        (["usage", "--by", "weather"], "Invalid value for '--by'"),
        (["usage", "--json", "--csv", "--from", "x"], "give one of --json and --csv"),
        (["usage", "--tz", "Mars/Olympus", "--from", "x"], "no time zone is named Mars/Olympus"),
        (["usage", "--tz", "../etc/passwd", "--from", "x"], "no time zone is named"),
        (["usage", "--tz", "Europe", "--from", "x"], "no time zone is named Europe"),
        (["usage", "--since", "tomorrow", "--from", "x"], "--since is no day or time"),
        (["usage", "--until", "2026-02-30", "--from", "x"], "--until is no day or time"),
        (["usage", "--since", "2026-11-03", "--until", "2026-11-02", "--from", "x"], "nothing lies between"),
        (["usage", "--from", "no/such"], "no/such: no such file or directory"),
        (["usage", "--from", "stdout:"], "no records can be read back from stdout:"),
        (["usage", "--from", "duckdb:no.duckdb"], "there is no file no.duckdb"),
        (["usage", "--from", "no.duckdb"], "for an export's file say duckdb:no.duckdb"),
        (["usage", "--from", str(RUNS / "demo"), "--namespace", "n"], "go with --harness"),
        (
            ["usage", "--from", f"jsonl:{RUNS / 'demo' / 'transcripts.jsonl'}"],
            "transcripts.jsonl:1: this is no trace record",
        ),
        (["timeline"], "Missing argument 'RUN'"),
        (["timeline", "r"], "say where the records are"),
    ],
)
def test_misuse_is_one_line_on_standard_error_and_exit_code_2(
    command: Command, arguments: list[str], words: str
) -> None:
    result = command(*arguments)
    assert (result.code, result.out) == (2, "")
    (line,) = result.err.splitlines()
    assert line.startswith("trace-projector: ")
    assert words in line


def test_several_exports_have_to_be_told_apart_and_their_passwords_stay_hidden(
    command: Command, tmp_path: Path
) -> None:
    config = tmp_path / "c.toml"
    sinks = ("duckdb:a.duckdb", "postgresql://me:ZZSECRETZZ@host/db")
    config.write_text(
        "".join(
            f'[[exports]]\nname = "e{number}"\nsink = "{sink}"\nredact = false\n' for number, sink in enumerate(sinks)
        )
    )
    result = command("--config", config, "usage")
    assert (result.code, "duckdb:a.duckdb, postgresql://me:" in result.err) == (2, True)
    assert "ZZSECRETZZ" not in result.err


def test_dead_letters_make_exit_code_1_and_the_rest_is_counted_all_the_same(command: Command, tmp_path: Path) -> None:
    for path in (RUNS / "demo").glob("*-*.jsonl"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    good = (RUNS / "demo" / "transcripts.jsonl").read_bytes()
    (tmp_path / "transcripts.jsonl").write_bytes(b'{"ZZSECRETZZ"\n' + good)
    result = command("usage", "--json", "--from", tmp_path)
    assert (result.code, result.json["total"]["costs"]) == (1, 20)
    assert result.err == "dead letters  1 are not in this report; `project` names them\n"


@pytest.mark.parametrize("name", ["usage", "timeline"])
def test_the_commands_teach_by_example(command: Command, name: str) -> None:
    result = command(name, "--help")
    assert (result.code, result.out.startswith(f"Usage: trace-projector {name}")) == (0, True)
    assert f"  trace-projector {name} " in result.out
