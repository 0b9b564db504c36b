"""`ship` and `harnesses` on the command line: what they print, their exit codes, one clear line for every misuse."""

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import click
import pytest

from worker.cli import run
from worker.commands.ship import RATE, summary_lines
from worker.settings import ENV_PREFIX
from worker.shipping.files import RefusedLine, ShipTally, Where
from worker.shipping.sender import ShipTargetError, UndeliveredError
from worker.shipping.shipper import Rate, ShipPlan, ShipStopped
from worker.shipping.state import ShipStateError
from worker.transcripts.files import PassedOver, TranscriptFile, transcript_file

SESSION = "0fae0449-64d3-4788-8622-d3a47d82c14b"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in list(os.environ):
        if name.upper().startswith(ENV_PREFIX) or name in ("CLAUDE_CONFIG_DIR", "CODEX_HOME"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def command(capfd: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, list[str], list[str]]:
    code = run([str(argument) for argument in arguments])
    out, err = capfd.readouterr()
    return code, out.splitlines(), err.splitlines()


def write(path: Path, text: str = '{"sessionId":"s"}\n') -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


# --------------------------------------------------------------------------------------------------------------- misuse


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["ship"], "Missing option '--namespace'"),
        (["ship", "--namespace", " "], "--namespace is blank"),
        (
            ["ship", "--namespace", "n", "--harness", "zzz"],
            "no transcripts of harness zzz can be read; there are: claude-",
        ),
        (["ship", "--namespace", "n", "x"], "PATHs are of one harness"),
        (["ship", "--namespace", "n", "--harness", "codex", "--harness", "harn", "x"], "PATHs are of one harness"),
        (["ship", "--namespace", "n", "--harness", "harn"], "harn: has no place of its own; name the files"),
        (["ship", "--namespace", "n", "--native-id", "x"], "--native-id goes with PATHs"),
        (["ship", "--namespace", "n", "--harness", "harn", "--native-id", "", "x"], "--native-id is blank"),
        (["ship", "--namespace", "n", "--rate", "5"], "give bytes or lines a second"),
        (["ship", "--namespace", "n", "--rate", "0MB/s"], "give bytes or lines a second"),
        (["ship", "--namespace", "n", "--poll-interval-s", "0"], "0.0 is not in the range"),
        (["harnesses", "x"], "PATHs are of one harness"),
        (["harnesses", "--harness", "zzz"], "no transcripts of harness zzz"),
    ],
)
def test_misuse_is_one_line_and_exit_code_2(
    capfd: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    code, out, err = command(capfd, *arguments)
    assert (code, out) == (2, [])
    (line,) = err
    assert line.startswith("trace-projector: ")
    assert words in line


def test_a_harness_whose_variable_is_wrong_is_said_and_the_other_one_shipped(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CODEX_HOME", "/no/such")
    plans = shipped_plans(monkeypatch, ShipTally())
    code, _, err = command(capfd, "ship", "--namespace", "n")
    assert (code, err[0]) == (0, "codex is unavailable: CODEX_HOME names no directory")
    assert list(plans[0].selection.places) == ["claude-code"]
    code, _, (line,) = command(capfd, "ship", "--namespace", "n", "--harness", "codex")
    assert (code, "CODEX_HOME names no directory" in line) == (2, True)


def test_without_any_harness_there_is_nothing_to_ship(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CODEX_HOME", "/no/such")
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", "/no/such")
    code, _, err = command(capfd, "ship", "--namespace", "n")
    assert (code, len(err)) == (1, 3)
    assert "no harness of this user is available" in err[2]


# ----------------------------------------------------------------------------------------------------------------- ship


def shipped_plans(monkeypatch: pytest.MonkeyPatch, outcome: ShipTally | Exception) -> list[ShipPlan]:
    """Let `ship` come out somehow, and give the plans it was called with."""
    plans: list[ShipPlan] = []

    async def ship(_settings: Any, plan: ShipPlan, _stop: Any) -> ShipTally:
        plans.append(plan)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr("worker.shipping.shipper.ship", ship)
    return plans


def test_the_options_are_the_plan(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    plans = shipped_plans(monkeypatch, ShipTally())
    options = ["--once", "--state", home / "s", "--rate", "2MB/s", "--poll-interval-s", "5", "--conversation", "c"]
    code, out, _ = command(
        capfd, "ship", "--namespace", "n", "--harness", "harn", "--native-id", "r", *options, home / "x"
    )
    assert (code, out) == (0, [])
    (plan,) = plans
    assert (plan.selection.namespace, plan.selection.native_id, plan.selection.conversation) == ("n", "r", "c")
    assert [place.path for place in plan.selection.places["harn"]] == [home / "x"]
    assert (plan.is_once, plan.state_path, plan.poll_interval_s) == (True, home / "s", 5)
    assert plan.rate == Rate(2_000_000, "bytes")


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("500KiB/s", Rate(512_000, "bytes")),
        ("1.5 MB/s", Rate(1_500_000, "bytes")),
        ("100B", Rate(100, "bytes")),
        ("1000lines/s", Rate(1000, "lines")),
        ("0.5 lines", Rate(0.5, "lines")),
    ],
)
def test_a_rate_is_bytes_or_lines_a_second(text: str, rate: Rate) -> None:
    assert RATE.convert(text, None, None) == rate


@pytest.mark.parametrize("text", ["", "5", "MB/s", "-1MB/s", "5 MB/min", "1e3lines", "5mb"])
def test_what_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="bytes or lines a second"):
        RATE.convert(text, None, None)


@pytest.mark.parametrize(
    ("outcome", "code", "words"),
    [
        (ShipTargetError("no broker answers at h:1"), 1, "no broker answers at h:1"),
        (ShipStateError("cannot write x: full"), 1, "cannot write x: full"),
        (ShipStateError("x is in use", usage=True), 2, "x is in use"),
        (UndeliveredError("KafkaTimeoutError"), 1, "the brokers do not acknowledge (KafkaTimeoutError); run it again"),
        (ShipStopped(), 130, "interrupted; run it again to go on"),
    ],
)
def test_what_goes_wrong_is_one_line_and_its_exit_code(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, outcome: Exception, code: int, words: str
) -> None:
    shipped_plans(monkeypatch, outcome)
    found, _, (line,) = command(capfd, "ship", "--namespace", "n", "--once")
    assert (found, line.removeprefix("trace-projector: ").startswith(words)) == (code, True)


def tally_of(path: Path) -> ShipTally:
    tally = ShipTally(lines=3, bytes=70, files={path}, skipped=Counter(blank_line=2), noticed=Counter(truncated=1))
    tally.refuse(RefusedLine(Where(path, 7, 99), "line_too_large"))
    tally.passed_over = [PassedOver(path, "is a symbolic link")]
    tally.unfinished = 1
    return tally


def test_the_summary_says_what_was_shipped_and_what_was_not(tmp_path: Path) -> None:
    path = tmp_path / "a\x1b[31m.jsonl"
    assert list(summary_lines(tally_of(path), shows_paths=True)) == [
        "shipped       3 lines, 70 bytes, of 1 files",
        "skipped       2 (blank_line 2)",
        "noticed       1 (truncated 1)",
        "unfinished    1 files end in the middle of a line, which waits",
        "passed over   1 files or directories",
        rf"  {tmp_path}/a\x1b[31m.jsonl: is a symbolic link",
        "refused       1 (line_too_large 1)",
        rf"  {tmp_path}/a\x1b[31m.jsonl byte 7, 99 bytes: line_too_large",
    ]


def test_lines_that_were_refused_make_it_exit_code_1_and_a_log_shows_no_paths(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = write(tmp_path / "x.jsonl")
    file: TranscriptFile = transcript_file(tmp_path, path.relative_to(tmp_path), path.stat())
    plans = shipped_plans(monkeypatch, tally_of(path))
    said: list[str] = []
    for once in (["--once"], []):
        code, _, err = command(capfd, "ship", "--namespace", "n", *once)
        plans[-1].say(file, "was truncated")
        plans[-1].say(None, "all is well")
        said = [*err, *capfd.readouterr().err.splitlines()]
        assert code == 1
        assert any(str(tmp_path) in line for line in said) is bool(once)
        assert said[-1] == "all is well"
    assert said[-2] == f"file {path.stat().st_dev}:{path.stat().st_ino} (device:inode) was truncated"


# ------------------------------------------------------------------------------------------------------------ harnesses


def test_harnesses_shows_all_three_outcomes(capfd: pytest.CaptureFixture[str], home: Path) -> None:
    path = write(home / ".claude/projects/-a" / f"{SESSION}.jsonl")
    (home / ".claude/projects/-a/link.jsonl").symlink_to(path)
    code, out, err = command(capfd, "harnesses")
    assert (code, err) == (0, [])
    assert out[:6] == [
        "claude-code  found 1 files, 18 bytes",
        f"             18  {path}",
        f"  passed over {path.parent}/link.jsonl: is a symbolic link",
        "codex        not written; expected at",
        f"  {home}/.codex/sessions/**/rollout-*.jsonl",
        f"  {home}/.codex/archived_sessions/**/rollout-*.jsonl",
    ]
    assert out[6] == "ct-agents    unavailable: has no place of its own; name the files or their directory"


def test_harnesses_as_json_lists_every_file(capfd: pytest.CaptureFixture[str], home: Path) -> None:
    paths = [str(write(home / "runs" / str(number) / "x.jsonl")) for number in range(30)]
    _, out, _ = command(capfd, "harnesses", "--harness", "ct-agents", home / "runs")
    assert out[-1] == "  and 10 more (--json lists all)"
    _, (line,), _ = command(capfd, "harnesses", "--json", "--harness", "ct-agents", home / "runs")
    found = json.loads(line)
    assert (found["harness"], found["outcome"], found["passedOver"]) == ("ct-agents", "found", [])
    assert sorted(file["path"] for file in found["files"]) == sorted(paths)
    assert {file["bytes"] for file in found["files"]} == {18}


def test_harnesses_looks_for_one_conversation(capfd: pytest.CaptureFixture[str], home: Path) -> None:
    path = write(home / ".claude/projects/-src-a" / f"{SESSION}.jsonl")
    arguments = ["harnesses", "--json", "--harness", "claude-code", "--cwd", "/src/a", "--conversation"]
    _, (line,), _ = command(capfd, *arguments, SESSION)
    assert [file["path"] for file in json.loads(line)["files"]] == [str(path)]
    _, (line,), _ = command(capfd, *arguments, "other")
    assert json.loads(line)["expected"] == [f"{home}/.claude/projects/-src-a/other.jsonl"]
