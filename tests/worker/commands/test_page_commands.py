"""The commands report and open: one file that needs nothing, and the address of a page that answers."""

import os
import re
import stat
from pathlib import Path

import pytest

from tests.worker.web.serving import HOSTILE_RUN, database_of, file_of, get, hostile_records, serving, settings_of
from worker.cli import run
from worker.commands.open import page_address
from worker.settings import ENV_PREFIX, Settings
from worker.web.render import asset

ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = str(ROOT / "fixtures" / "runs" / "example")


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.upper().startswith(ENV_PREFIX):
            monkeypatch.delenv(name)


def config_of(directory: Path, address: str, url: str, *lines: str) -> str:
    port = address.rpartition(":")[2]
    path = directory / "c.toml"
    settings = [f"web_port = {port}", 'web_export = "shown"', "web_unredacted = true", *lines]
    export = ["[[exports]]", 'name = "shown"', f'sink = "{url}"', "redact = false"]
    path.write_text("\n".join([*settings, *export]))
    return str(path)


# -------------------------------------------------------------------------------------------------------------- report


def test_a_report_is_one_file_with_all_that_it_needs_in_it(tmp_path: Path) -> None:
    target = tmp_path / "r.html"
    assert run(["report", "run-7", "--html", str(target), "--from", EXAMPLE]) == 0
    text = target.read_text()
    assert asset("timeline.js") in text
    assert asset("pages.css") in text
    policy = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)[0]
    assert "unsafe" not in policy
    assert policy.count("sha256-") == 2
    assert re.findall(r'(?:href|src|action)="(?!#)', text) == []
    assert "not redacted" in text, "what comes from files is what the sources say"


def test_a_report_is_for_its_owner_and_replaces_the_one_before_at_once(tmp_path: Path) -> None:
    target = tmp_path / "r.html"
    target.write_text("x" * 1_000_000)
    assert run(["report", "run-7", "--html", str(target), "--from", EXAMPLE]) == 0
    assert target.read_text().startswith("<!doctype html>")
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["r.html"]


def test_a_report_of_a_sink_does_not_claim_to_know_what_its_export_did(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    url = database_of(tmp_path, "example")
    capfd.readouterr()
    assert run(["report", "run-7", "--html", "-", "--from", url]) == 0
    out = capfd.readouterr().out
    assert out.startswith("<!doctype html>")
    assert "redacted" not in re.sub(r"<(script|style).*?</\1>", "", out, flags=re.DOTALL)


def test_hostile_text_stays_text_in_a_report(tmp_path: Path) -> None:
    target = tmp_path / "r.html"
    assert run(["report", HOSTILE_RUN, "--html", str(target), "--from", file_of(tmp_path, hostile_records())]) == 0
    text = target.read_text()
    assert text.count("<script") == text.count("</script>") == 2
    assert "<img" not in text


def test_a_run_that_is_not_there_writes_nothing_and_names_those_near(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "r.html"
    assert run(["report", "run-8", "--html", str(target), "--from", EXAMPLE]) == 1
    assert "near it: run-7" in capfd.readouterr().err
    assert not target.exists()


def test_a_place_that_cannot_be_written_is_said(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["report", "run-7", "--html", str(tmp_path / "none" / "r.html"), "--from", EXAMPLE]) == 1
    assert "No such file or directory" in capfd.readouterr().err


# ---------------------------------------------------------------------------------------------------------------- open


def test_open_prints_an_address_that_answers(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    url = file_of(tmp_path, hostile_records())
    with serving(settings_of(url)) as address:
        config = config_of(tmp_path, address, url)
        for arguments in (["open", HOSTILE_RUN], ["open"], ["open", "--print"]):
            assert run(["--config", config, *arguments]) == 0
            assert get(capfd.readouterr().out.strip()).status == 200


def test_open_names_the_token_to_the_worker_and_prints_it_nowhere(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    url = file_of(tmp_path, hostile_records())
    with serving(settings_of(url, web_token="s3cret")) as address:
        assert run(["--config", config_of(tmp_path, address, url, 'web_token = "s3cret"'), "open"]) == 0
        assert "s3cret" not in capfd.readouterr().out
        assert run(["--config", config_of(tmp_path, address, url, 'web_token = "other"'), "open"]) == 1
        assert "wants another token" in capfd.readouterr().err


def test_open_says_what_keeps_a_page_from_answering(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    url = file_of(tmp_path, hostile_records())
    with serving(settings_of(url)) as address:
        config = config_of(tmp_path, address, url)
        assert run(["--config", config, "open", "run-none"]) == 1
        assert "no such run" in capfd.readouterr().err
        Path(url.removeprefix("jsonl:")).unlink()
        assert run(["--config", config, "open", HOSTILE_RUN]) == 1
        assert "cannot read its sink now" in capfd.readouterr().err
    assert run(["--config", config, "open"]) == 1
    assert "no worker answers" in capfd.readouterr().err


def test_open_wants_settings_that_name_what_to_show(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["open", "run-7"]) == 2
    assert "web_export" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("0.0.0.0", "http://127.0.0.1:6066/runs"),  # noqa: S104
        ("::", "http://[::1]:6066/runs"),
        ("traces.example", "http://traces.example:6066/runs"),
    ],
)
def test_an_address_that_a_worker_listens_on_becomes_one_to_go_to(host: str, address: str) -> None:
    assert page_address(Settings(web_host=host), None) == address
