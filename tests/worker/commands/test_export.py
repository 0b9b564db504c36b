"""`export run` and `export verify` as a user runs them over files: what leaves, what is told, and what is not."""

import json
import os
from pathlib import Path

import pytest

from tests.worker.sinks.destinations import REPOSITORY, full_disk
from tests.worlds.world import PRIVATE_MARKER, SECRET_MARKER, World
from worker.cli import run
from worker.file_exports.manifest import MANIFEST_NAME
from worker.settings import ENV_PREFIX

KEY = "cli-export-key-ZZKEYZZ-of-more-than-32-bytes"
MARKERS = (SECRET_MARKER, PRIVATE_MARKER, "ZZKEYZZ")
SETTINGS = """
[[exports]]
name = "public"
sink = "memory:"
key_env = "CLI_EXPORT_KEY"
profile = "strict"
estimate_costs = true

[[exports]]
name = "few"
sink = "memory:"
key_env = "CLI_EXPORT_KEY"
[exports.filter]
kinds = ["run", "artifact"]
repos = ["zzprivatezz/app"]
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    for name in list(os.environ):
        if name.upper().startswith(ENV_PREFIX):
            monkeypatch.delenv(name)
    monkeypatch.setenv("CLI_EXPORT_KEY", KEY)
    path = tmp_path / "c.toml"
    path.write_text(SETTINGS)
    return str(path)


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """Write the messages of a world, secrets and private texts in them, as topic files."""
    directory = tmp_path / f"sources-{PRIVATE_MARKER}"
    directory.mkdir()
    for message in World(4, runs=3).messages:
        assert message.value is not None or message.key is not None
        line = message.value
        if line is None:
            line = json.dumps({"key": (message.key or b"").decode(), "value": None}).encode()
        with (directory / f"{message.topic}.jsonl").open("ab") as file:
            file.write(line + b"\n")
    return directory


def everything(directory: Path) -> str:
    return "\n".join(f"{path.name}\n{path.read_text()}" for path in directory.iterdir())


def test_files_hold_what_file_mode_writes_and_no_marker_or_key_is_in_any_of_them(
    config: str, sources: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out, lines = tmp_path / "out", tmp_path / "lines.jsonl"
    code = run(["--config", config, "export", "run", "public", "--to", str(out), "--from", str(sources)])
    told = capfd.readouterr()
    assert "export public:" in told.err
    assert run(["--config", config, "project", str(sources), "--to", f"jsonl:{lines}", "--export", "public"]) == code
    written = [
        line for path in out.glob("*.jsonl") if "pricing" not in path.name for line in path.read_text().splitlines()
    ]
    assert sorted(written) == sorted(lines.read_text().splitlines())
    assert len(written) > 20
    pricing = (out / "cost.pricing.jsonl").read_text().splitlines()
    assert len(pricing) == len((out / "cost.jsonl").read_text().splitlines())
    assert [marker for marker in MARKERS if marker in everything(out)] == []
    # A dead letter is told by the place of its message, which is a path of the user's own.
    said = told.out + told.err.replace(str(sources), "")
    assert [marker for marker in MARKERS if marker in said] == []
    assert run(["export", "verify", str(out)]) == 0


def test_the_same_files_give_the_same_directory_and_others_another_manifest(
    config: str, sources: Path, tmp_path: Path
) -> None:
    arguments = ["--config", config, "export", "run", "public", "--from", str(sources), "--to"]
    codes = {run([*arguments, str(tmp_path / name)]) for name in ("a", "b", "a")}
    assert len(codes) == 1
    assert everything(tmp_path / "a") == everything(tmp_path / "b")
    before = (tmp_path / "a" / MANIFEST_NAME).read_bytes()
    with (sources / "workflow-runs.jsonl").open("ab") as file:
        file.write(b"\n")
    run([*arguments, str(tmp_path / "a")])
    assert (tmp_path / "a" / MANIFEST_NAME).read_bytes() != before


def test_the_names_of_transcripts_are_not_in_the_manifest(config: str, tmp_path: Path) -> None:
    transcript = tmp_path / f"{PRIVATE_MARKER}.jsonl"
    transcript.write_text('{"type":"user","sessionId":"s","uuid":"u","message":{"content":"x"}}\n')
    arguments = ["--from", str(transcript), "--harness", "claude-code", "--namespace", "n"]
    assert run(["--config", config, "export", "run", "public", "--to", str(tmp_path / "out"), *arguments]) == 0
    assert PRIVATE_MARKER not in everything(tmp_path / "out")
    (entry,) = json.loads((tmp_path / "out" / MANIFEST_NAME).read_text())["source"]["files"]
    assert (entry["source"], entry["digest"][:12]) == ("transcripts", "hmac-sha256:")


def test_a_filter_on_a_private_repository_does_not_name_it(config: str, tmp_path: Path) -> None:
    demo = str(REPOSITORY / "fixtures/runs/demo")
    assert run(["--config", config, "export", "run", "few", "--to", str(tmp_path / "out"), "--from", demo]) == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["artifact.jsonl", MANIFEST_NAME, "run.jsonl"]
    assert "zzprivatezz" not in everything(tmp_path / "out")
    assert (tmp_path / "out" / "artifact.jsonl").read_bytes() == b""


def test_a_full_disk_is_one_line_and_leaves_no_manifest(
    config: str, sources: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    arguments = ["--config", config, "export", "run", "public", "--to", str(out), "--from", str(sources)]
    for bytes_left in (1, 2_000):
        with full_disk(bytes_left):
            code = run(arguments)
        told = capsys.readouterr()
        assert code == 1
        assert told.err.splitlines()[-1].startswith("trace-projector: cannot ")
        assert [marker for marker in MARKERS if marker in told.out + told.err.replace(str(tmp_path), "")] == []
        assert not (out / MANIFEST_NAME).exists()
    run(arguments)
    assert run(["export", "verify", str(out)]) == 0


def test_verification_names_each_file_and_exits_with_1(
    config: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    demo = str(REPOSITORY / "fixtures/runs/demo")
    assert run(["--config", config, "export", "run", "few", "--to", str(out), "--from", demo]) == 0
    (out / "run.jsonl").write_bytes((out / "run.jsonl").read_bytes()[:-1])
    (out / "bad\x1b[31m\nname").write_bytes(b"")
    capfd.readouterr()
    assert run(["export", "verify", str(out)]) == 1
    told = capfd.readouterr()
    assert [line.split()[0] for line in told.out.splitlines()] == ["run.jsonl", "bad\\x1b[31m\\nname"]
    assert "2 files are not as they were written" in told.err
    assert run(["export", "verify", str(out), "--json"]) == 1
    assert len(json.loads(capfd.readouterr().out)["problems"]) == 2
    assert run(["export", "verify", str(tmp_path / "nowhere")]) == 2


@pytest.mark.parametrize("key", ["", None])
def test_without_a_key_nothing_is_written(
    config: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], key: str | None
) -> None:
    monkeypatch.delenv("CLI_EXPORT_KEY")
    if key is not None:
        monkeypatch.setenv("CLI_EXPORT_KEY", key)
    demo = str(REPOSITORY / "fixtures/runs/demo")
    assert run(["--config", config, "export", "run", "few", "--to", str(tmp_path / "out"), "--from", demo]) == 2
    assert "CLI_EXPORT_KEY" in capfd.readouterr().err
    assert not (tmp_path / "out").exists()


def test_options_of_files_go_with_files_and_an_unknown_export_is_refused(
    config: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out")
    assert run(["--config", config, "export", "run", "few", "--to", out, "--harness", "codex"]) == 2
    assert "go with --from" in capfd.readouterr().err
    assert run(["--config", config, "export", "run", "fewer", "--to", out]) == 2
    assert "no export is named fewer; the settings have: public, few" in capfd.readouterr().err
