"""The command line: what commands print, their exit codes, and one clear line for every misuse."""

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from projections.version import PROJECTION_VERSION
from worker.cli import run
from worker.settings import ENV_PREFIX

ROOT = Path(__file__).resolve().parents[2]
RUNS = ROOT / "fixtures" / "runs"


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.upper().startswith(ENV_PREFIX):
            monkeypatch.delenv(name)


class Result:
    """What one command did."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code = code
        self.out = out
        self.err = err

    @property
    def error(self) -> str:
        """The only line on standard error."""
        (line,) = self.err.splitlines()
        return line


Command = Callable[..., Result]


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str]) -> Command:
    def invoke(*arguments: object) -> Result:
        code = run([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        return Result(code, out, err)

    return invoke


# ------------------------------------------------------------------------------------------------------------- misuse


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--nonsense"], "No such option"),
        (["projekt"], "No such command 'projekt'"),
        (["project", "--to", "-", "--no-redact"], "Missing argument 'PATH...'"),
        (["project", str(RUNS / "example"), "--no-redact"], "Missing option '--to'"),
        (["project", str(RUNS / "example"), "--to", "-"], "--export NAME redacts them, --no-redact does not"),
        (["project", str(RUNS / "none"), "--to", "-", "--no-redact"], "no such file or directory"),
        (["project", str(ROOT / "pyproject.toml"), "--to", "-", "--no-redact"], "is not named after a topic"),
        (["project", str(RUNS), "--to", "-", "--no-redact"], "holds no topic file"),
        (
            ["project", str(RUNS / "example"), "--to", "-", "--export", "x"],
            "no export is named x; the settings have: none",
        ),
        (["project", str(RUNS / "example"), "--to", "mysql:x", "--no-redact"], "no sink has the scheme 'mysql'"),
        (["project", str(RUNS / "example"), "--to", "traces.db", "--no-redact"], "no sink URL"),
        (["project", str(RUNS / "example"), "--to", "-", "--no-redact", "--json"], "take one"),
        (["project", str(RUNS / "example"), "--to", "duckdb:", "--no-redact"], "duckdb: needs a path"),
        (["project", str(RUNS / "example"), "--to", f"jsonl:{RUNS}", "--no-redact"], "is a directory"),
        (["project", str(RUNS / "example"), "--to", "jsonl:/no/such/x", "--no-redact"], "/no/such is no directory"),
        (["project", str(RUNS / "example"), "--to", "-", "--no-redact", "--unbound", "x"], "Invalid value"),
        (["project", "x", "--to", "-", "--no-redact", "--namespace", "n"], "go with --harness"),
        (
            ["project", "x", "--to", "-", "--no-redact", "--harness", "zzz", "--namespace", "n"],
            "no transcripts of harness zzz",
        ),
        (["explain", "run-7"], "Missing option '--from'"),
        (["--config", "/no/such.toml", "config"], "cannot read settings file /no/such.toml"),
        (["worker", "--role", "foldd"], "foldd is no role"),
        (["worker", "--role", "export:none"], "no export is named none"),
    ],
)
def test_misuse_is_one_line_on_standard_error_and_exit_code_2(
    command: Command, arguments: list[str], words: str
) -> None:
    result = command(*arguments)
    assert result.code == 2
    assert result.out == ""
    assert result.error.startswith("trace-projector: ")
    assert words in result.error


def test_a_target_that_is_a_source_file_is_refused(command: Command, tmp_path: Path) -> None:
    source = tmp_path / "workflow-runs.jsonl"
    source.write_bytes((RUNS / "example" / "workflow-runs.jsonl").read_bytes())
    before = source.read_bytes()
    result = command("project", source, "--to", f"jsonl:{source}", "--no-redact")
    assert (result.code, "is one of the files to read" in result.error) == (2, True)
    assert source.read_bytes() == before


def test_wrong_settings_are_one_line_per_key(command: Command, tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text('web_prt = 1\nunbound = "x"\n')
    result = command("--config", config, "config")
    assert result.code == 2
    assert len(result.err.splitlines()) == 2
    assert f"settings file {config}: web_prt: unknown key (did you mean web_port?)" in result.err


def test_an_unreadable_file_fails_with_exit_code_1(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "workflow-runs.jsonl"
    path.write_text("{}\n")
    original = Path.open

    def refuse(self: Path, *args: object, **kwargs: object) -> object:
        # A test that runs as root can read any file, so the refusal is played.
        if self == path:
            raise PermissionError(13, "Permission denied")
        return original(self, *args, **kwargs)  # type: ignore[call-overload]

    monkeypatch.setattr(Path, "open", refuse)
    target = tmp_path / "t.jsonl"
    result = command("project", path, "--to", f"jsonl:{target}", "--no-redact")
    assert (result.code, result.error) == (1, f"trace-projector: {path}: Permission denied")
    assert not target.exists()
    assert sorted(tmp_path.iterdir()) == [path]


def test_a_fault_of_the_program_shows_its_type_only_and_the_traceback_on_request(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("ZZSECRETZZ")

    monkeypatch.setattr("worker.local_fold.LocalFold.apply", fail)
    arguments = ["project", RUNS / "example", "--to", "-", "--no-redact"]
    result = command(*arguments)
    assert (result.code, result.error) == (
        1,
        "trace-projector: internal error (RuntimeError); run again with --debug",
    )
    assert "Traceback" in command("--debug", *arguments).err


@pytest.mark.parametrize(
    "name", ["", "project", "explain", "config", "worker", "start", "demo", "topics create", "version"]
)
def test_every_command_has_help(command: Command, name: str) -> None:
    result = command(*name.split(), "--help")
    assert result.code == 0
    assert result.out.startswith("Usage: trace-projector")
    assert "Examples:" in result.out


def test_no_command_at_all_prints_the_help_and_is_a_usage_error(command: Command) -> None:
    result = command()
    assert result.code == 2
    assert "Usage: trace-projector" in result.err


def test_version_prints_one_line(command: Command) -> None:
    result = command("version")
    assert (result.code, result.out.startswith("trace-projector ")) == (0, True)


def test_version_is_told_with_that_of_the_projection_to_programs(command: Command) -> None:
    told = json.loads(command("version", "--json").out)
    assert told["program"] == "trace-projector"
    assert told["projectionVersion"] == PROJECTION_VERSION
    assert told["version"] in command("version").out


# ------------------------------------------------------------------------------------------------------------- config


def test_config_prints_the_effective_settings_without_secrets(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "c.toml"
    config.write_text('app_id = "mine"\n[[exports]]\nname = "a"\nsink = "duckdb:x"\nkey_env = "MY_KEY"\n')
    monkeypatch.setenv("MY_KEY", "ZZSECRETZZ")
    result = command("--config", config, "config")
    assert result.code == 0
    assert 'app_id = "mine"' in result.out
    as_json = command("--config", config, "config", "--json")
    assert json.loads(as_json.out) == tomllib.loads(result.out)
    assert "ZZSECRETZZ" not in result.out + result.err + as_json.out + as_json.err


# ------------------------------------------------------------------------------------------------------------ project


@pytest.mark.parametrize("name", ["example", "doc-run", "demo"])
def test_project_to_standard_output_gives_the_golden_trace_in_id_order(command: Command, name: str) -> None:
    result = command("project", RUNS / name, "--to", "-", "--no-redact", "--unbound", "hold")
    assert result.code == 0
    assert result.out.encode() == (RUNS / name / "trace.jsonl").read_bytes()


def test_project_sums_up_on_standard_error(command: Command) -> None:
    result = command("project", RUNS / "demo", "--to", "memory:", "--no-redact")
    assert result.out == ""
    expected = [
        f"passed over   {RUNS / 'demo' / 'trace.jsonl'}: not named after a topic",
        "messages      112 (gate-decisions 7, ledger-changes 34, transcripts 51, workflow-runs 20)",
        "facts         126",
        "records       84 (artifact 5, attempt 14, call 34, cost 20, gate 6, run 5)",
        (
            "ignored       4 (ledger-changes not_workflow 1, transcripts no_trace_line 2, "
            "transcripts synthetic_response 1)"
        ),
        "dead letters  0",
    ]
    assert result.err.splitlines() == expected


def test_project_sums_up_for_programs_on_standard_output(command: Command, tmp_path: Path) -> None:
    bad = tmp_path / "gate-decisions.jsonl"
    bad.write_text('{"id"\n')
    result = command("project", RUNS / "demo", bad, "--to", "memory:", "--no-redact", "--json")
    assert result.code == 1
    told = json.loads(result.out)
    assert (sum(told["messages"].values()), told["facts"], told["records"]["attempt"]) == (113, 126, 14)
    assert told["ignored"]["ledger-changes not_workflow"] == 1
    assert told["deadLetters"] == {"gate-decisions invalid_json": 1}
    assert told["refused"] == [{"place": f"{bad}:1", "reason": "invalid_json", "field": None, "partial": False}]
    assert "amounts" not in told
    estimated = command("project", RUNS / "demo", "--to", "memory:", "--no-redact", "--json", "--estimate-costs")
    assert sum(json.loads(estimated.out)["amounts"].values()) == 20


def test_held_conversations_are_counted(command: Command) -> None:
    result = command("project", RUNS / "demo", "--to", "memory:", "--no-redact", "--unbound", "hold")
    assert "held          1 (conversation 1)" in result.err.splitlines()


def test_dead_letters_make_exit_code_1_and_the_rest_is_written_all_the_same(command: Command, tmp_path: Path) -> None:
    good = (RUNS / "example" / "workflow-runs.jsonl").read_bytes()
    bad = [b'{"id":"ZZSECRETZZ"', b"\xff\xfe", b"[]", b'{"id":"r","revision":1,"workflowName":7}']
    (tmp_path / "workflow-runs.jsonl").write_bytes(b"\n".join([*bad, good]))
    result = command("project", tmp_path, "--to", "-", "--no-redact")
    assert result.code == 1
    assert json.loads(result.out.splitlines()[0])["id"] == "run-7"
    assert "dead letters  4 (" in result.err
    assert f"  {tmp_path}/workflow-runs.jsonl:1: invalid_json" in result.err.splitlines()
    assert "ZZSECRETZZ" not in result.err


def test_an_empty_file_gives_an_empty_trace(command: Command, tmp_path: Path) -> None:
    (tmp_path / "transcripts.jsonl").touch()
    result = command("project", tmp_path, "--to", "-", "--no-redact")
    assert (result.code, result.out) == (0, "")
    assert "messages      0" in result.err.splitlines()


def test_the_target_is_replaced_whole(command: Command, tmp_path: Path) -> None:
    target = tmp_path / "t.jsonl"
    target.write_text("something else\n")
    (tmp_path / "t.jsonl.state").write_text("of something else")
    for name in ("example", "doc-run"):
        assert command("project", RUNS / name, "--to", f"jsonl:{target}", "--no-redact").code == 0
        assert target.read_bytes() == (RUNS / name / "trace.jsonl").read_bytes()
    assert list(tmp_path.iterdir()) == [target]


def test_a_projection_that_fails_leaves_the_target_and_nothing_beside_it(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "t.duckdb"
    target.write_text("as it was")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("worker.sinks.duckdb_file.DuckDBSink.write", fail)
    result = command("project", RUNS / "example", "--to", f"duckdb:{target}", "--no-redact")
    assert (result.code, result.error) == (1, f"trace-projector: cannot write {target}: No space left on device")
    assert target.read_text() == "as it was"
    assert list(tmp_path.iterdir()) == [target]


EXPORTS = """
[[exports]]
name = "public"
sink = "duckdb:unused"
key_file = "{key}"
public_repos = ["acme/docs"]
[[exports]]
name = "clear"
sink = "duckdb:unused"
redact = false
"""


@pytest.fixture
def exports(tmp_path: Path) -> Path:
    key = tmp_path / "key"
    key.write_text("k" * 32)
    config = tmp_path / "c.toml"
    config.write_text(EXPORTS.format(key=key))
    return config


def test_an_export_redacts_in_file_mode_too(command: Command, exports: Path) -> None:
    result = command("--config", exports, "project", RUNS / "demo", "--to", "-", "--export", "public")
    assert result.code == 0
    records = [json.loads(line) for line in result.out.splitlines()]
    assert len(records) == 84
    for word in ("toolu_demo", "runner-", "tests failed", 'human:owner","reason', "build-1"):
        assert word not in result.out
    assert {record["id"] for record in records if record["kind"] == "artifact"} >= {"pr:acme/docs#41"}
    calls = [record for record in records if record["kind"] == "call"]
    assert all(record["id"].startswith("hmac-sha256:") for record in calls)


def test_records_leave_in_the_order_of_the_ids_they_leave_under(command: Command, exports: Path) -> None:
    result = command("--config", exports, "project", RUNS / "demo", "--to", "-", "--export", "public")
    ids = [json.loads(line)["id"] for line in result.out.splitlines()]
    assert ids == sorted(ids, key=str.encode)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--export", "clear"], "export clear does not redact"),
        (["--export", "public", "--no-redact"], "export public redacts, and --no-redact says not to"),
    ],
)
def test_what_an_export_says_and_what_the_command_says_must_agree(
    command: Command, exports: Path, arguments: list[str], words: str
) -> None:
    result = command("--config", exports, "project", RUNS / "demo", "--to", "-", *arguments)
    assert (result.code, words in result.error) == (2, True)


def test_an_empty_key_is_refused_before_any_byte_is_written(command: Command, exports: Path, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("\n")
    target = tmp_path / "t.jsonl"
    result = command("--config", exports, "project", RUNS / "demo", "--to", f"jsonl:{target}", "--export", "public")
    assert (result.code, result.error) == (2, "trace-projector: export public: the digest key in file key is empty")
    assert not target.exists()


def test_a_short_key_is_warned_about(command: Command, exports: Path, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("short")
    result = command("--config", exports, "project", RUNS / "demo", "--to", "memory:", "--export", "public")
    assert result.code == 0
    assert result.err.startswith("warning: export public: the digest key is shorter than 32 bytes")


def test_transcript_files_project_with_their_harness_and_namespace(command: Command, tmp_path: Path) -> None:
    rows = [json.loads(line) for line in (RUNS / "demo" / "transcripts.jsonl").read_text(encoding="utf-8").splitlines()]
    native_id = rows[0]["source"]["nativeId"]
    lines = [row["line"] for row in rows if row["source"]["sourceId"] == f"claude-code:build-1:{native_id}"]
    (tmp_path / f"{native_id}.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    result = command(
        "project", tmp_path, "--harness", "claude-code", "--namespace", "build-1", "--to", "-", "--no-redact"
    )
    assert result.code == 0
    golden = [json.loads(line) for line in (RUNS / "demo" / "trace.jsonl").read_text(encoding="utf-8").splitlines()]
    expected = {record["id"]: record for record in golden if native_id in record["id"]}
    found = {record["id"]: record for record in map(json.loads, result.out.splitlines()) if record["kind"] != "run"}
    assert found.keys() == expected.keys()
    for record_id, record in found.items():
        assert record["span"] == expected[record_id]["span"]
        assert record["runId"].startswith("standalone-")


def test_the_program_runs_as_a_process_of_its_own_and_a_reader_may_go_away() -> None:
    arguments = [sys.executable, "-m", "worker", "project", str(RUNS / "demo"), "--to", "-", "--no-redact"]
    program = f"{' '.join(arguments)} 2>/dev/null | head -c 10"
    result = subprocess.run(["sh", "-c", program], cwd=ROOT, capture_output=True, check=True, timeout=60)
    assert (result.stdout, result.stderr) == (b'{"schema":', b"")


# ------------------------------------------------------------------------------------------------------------ explain


def test_explain_prints_the_messages_of_a_record(command: Command) -> None:
    result = command("explain", "run-7/review", "--from", RUNS / "example")
    assert result.code == 0
    assert result.out.splitlines() == [
        "gate run-7/review: made by 1 of 13 messages",
        f"  gate-decisions  {RUNS}/example/gate-decisions.jsonl:1",
        (
            "  12 more messages are about the same things and change nothing in it"
            " (ledger-changes 8, transcripts 3, workflow-runs 1)"
        ),
    ]


def test_explain_gives_the_same_as_json(command: Command) -> None:
    told = json.loads(command("explain", "run-7/review", "--json", "--from", RUNS / "example").out)
    assert told["messages"] == 13
    [gate] = told["records"]
    place = f"{RUNS}/example/gate-decisions.jsonl:1"
    assert (gate["kind"], gate["isSmallest"]) == ("gate", True)
    assert gate["madeBy"] == [{"source": "gate-decisions", "place": place}]
    assert gate["idle"] == {"ledger-changes": 8, "transcripts": 3, "workflow-runs": 1}
    missing = command("explain", "run-8", "--json", "--from", RUNS / "example")
    assert (missing.code, json.loads(missing.out)["records"][0]["kind"]) == (1, None)


def test_explain_takes_several_places_after_one_option_or_one_each(command: Command) -> None:
    for arguments in (
        ["--from", RUNS / "example", RUNS / "doc-run"],
        ["--from", RUNS / "example", "--from", RUNS / "doc-run"],
    ):
        assert "made by 1 of 42 messages" in command("explain", "run-7/review", *arguments).out


def test_explain_of_a_record_that_is_not_there_says_why_and_exits_with_1(command: Command) -> None:
    result = command("explain", "run-8", "--from", RUNS / "example")
    assert result.code == 1
    assert result.out.splitlines()[:2] == ["run-8: no such record", "  no message of these sources is about run run-8"]


def test_explain_finds_a_record_by_the_id_it_left_under(command: Command, exports: Path) -> None:
    exported = command("--config", exports, "project", RUNS / "demo", "--to", "-", "--export", "public").out
    redacted_id = next(row["id"] for row in map(json.loads, exported.splitlines()) if row["kind"] == "cost")
    result = command("--config", exports, "explain", redacted_id, "--export", "public", "--from", RUNS / "demo")
    assert result.code == 0
    assert result.out.startswith("cost cost:response:claude-code:build-1:")


def test_explain_of_an_unknown_redacted_id_fails(command: Command, exports: Path) -> None:
    result = command("--config", exports, "explain", "hmac-sha256:00", "--export", "public", "--from", RUNS / "demo")
    assert (result.code, result.error) == (
        1,
        "trace-projector: no record of these sources has that id in export public",
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["explain", "run-7", "--from", "kafka://127.0.0.1:1"], "no broker answers at 127.0.0.1:1"),
        (["topics", "create"], "no Kafka broker answers at 127.0.0.1:1"),
        (["topics", "create", "--sources"], "creating topics at 127.0.0.1:1 failed: KafkaConnectionError"),
        (["worker"], "no Kafka broker answers at 127.0.0.1:1"),
    ],
)
def test_a_broker_that_is_not_there_is_named_on_one_line_with_exit_code_1(arguments: list[str], words: str) -> None:
    # As a process of its own: Kafka's client logs, and only a real standard error shows where to.
    result = subprocess.run(
        [sys.executable, "-m", "worker", *arguments],
        cwd=ROOT,
        capture_output=True,
        check=False,
        text=True,
        timeout=60,
        env=os.environ | {"TRACE_PROJECTOR_BOOTSTRAP_SERVERS": "127.0.0.1:1"},
    )
    assert result.returncode == 1
    assert words in result.stderr.splitlines()[-1]
    assert arguments == ["worker"] or len(result.stderr.splitlines()) == 1
