"""`privacy` as a user runs it: what an export lets out, and what two exports do differently."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from projections.privacy import Policy
from projections.privacy_classes import CLASS_TABLE_DIGESTS, TRACE_FIELD_PRIVACY
from worker.cli import run
from worker.settings import ENV_PREFIX

KEY = "privacy-key-ZZKEYZZ-of-more-than-thirty-two-bytes"
SETTINGS = """
[[exports]]
name = "public"
sink = "memory:"
key_env = "PRIVACY_KEY"
public_repos = ["acme/docs"]

[[exports]]
name = "strict"
sink = "memory:"
key_env = "PRIVACY_KEY"
profile = "strict"
public_repos = ["acme/docs"]
filter = {run_id_prefixes = ["\\u001b[31m"]}

[[exports]]
name = "other"
sink = "memory:"
key_env = "OTHER_KEY"
public_repos = ["acme/docs"]

[[exports]]
name = "plain"
sink = "memory:"
redact = false
"""


class Told:
    """Runs the command and keeps what it printed."""

    def __init__(self, config: Path, capfd: pytest.CaptureFixture[str]) -> None:
        self._config = config
        self._capfd = capfd

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        self._capfd.readouterr()
        code = run(["--config", str(self._config), "privacy", *arguments])
        told = self._capfd.readouterr()
        assert "ZZKEYZZ" not in told.out + told.err
        return code, told.out, told.err

    def json(self, *arguments: str) -> Any:
        code, out, err = self(*arguments, "--json")
        assert (code, err) == (0, "")
        return json.loads(out)


@pytest.fixture
def privacy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Told:
    for name in list(os.environ):
        if name.upper().startswith(ENV_PREFIX):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PRIVACY_KEY", KEY)
    monkeypatch.setenv("OTHER_KEY", KEY + "2")
    path = tmp_path / "c.toml"
    path.write_text(SETTINGS)
    return Told(path, capfd)


def test_every_field_of_every_kind_is_told_as_a_table_and_as_json(privacy: Told) -> None:
    report = privacy.json("--export", "public")
    fields = {(field["scope"], field["field"]): field for field in report["fields"]}
    assert set(fields) == {(scope, path) for scope, paths in TRACE_FIELD_PRIVACY.items() for path in paths}
    assert fields["run", "error"]["effect"] == "dropped"
    assert fields["attempt", "runnerRef"]["effect"] == "digested"
    assert fields["attempt", "phase"]["effect"] == "as is"
    assert fields["artifact.pr", "number"]["rule"] == "as is for public_repos, else digested"
    assert report["keyId"] == Policy(KEY).key_id
    assert report["classTable"] == CLASS_TABLE_DIGESTS["normal"]
    code, out, err = privacy("--export", "public")
    assert code == 0
    assert len(out.splitlines()) == len(fields) + 1
    assert "key id" in err


def test_the_difference_of_a_strict_export_is_told(privacy: Told) -> None:
    difference = privacy.json("--diff", "public", "strict")
    assert difference["joins"] is True
    assert {(field["scope"], field["field"]) for field in difference["fields"]} >= {
        ("gate", "decidedBy"),
        ("artifact.pr", "state"),
        ("attempt", "signal"),
    }
    code, out, err = privacy("--diff", "public", "strict")
    assert (code, len(out.splitlines())) == (0, len(difference["fields"]) + 1)
    assert "profile       normal -> strict" in err
    assert "digests       join" in err
    assert "\x1b" not in out + err


def test_another_key_is_told_by_its_id_and_digests_do_not_join(privacy: Told) -> None:
    assert privacy.json("--diff", "public", "other")["joins"] is False
    _, out, err = privacy("--diff", "public", "other")
    assert out == ""
    assert f"{Policy(KEY).key_id} -> {Policy(KEY + '2').key_id}" in err
    assert "every field leaves alike" in err


def test_somebody_without_the_key_gets_the_report_all_the_same(privacy: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PRIVACY_KEY")
    assert privacy.json("--export", "strict")["keyId"] is None
    assert privacy.json("--diff", "public", "other")["joins"] is None
    assert "nobody can tell" in privacy("--diff", "public", "other")[2]


def test_an_export_that_does_not_redact_says_so(privacy: Told) -> None:
    report = privacy.json("--export", "plain")
    assert {field["effect"] for field in report["fields"]} == {"as is"}
    assert (report["redacts"], report["keyId"]) == (False, None)
    assert "everything leaves as it is" in privacy("--export", "plain")[2]
    assert privacy.json("--diff", "public", "plain")["joins"] is False


def test_which_export_is_meant_has_to_be_clear(privacy: Told) -> None:
    code, _, err = privacy()
    assert (code, "say which export" in err) == (2, True)
    assert privacy("--export", "public", "--diff", "public", "strict")[0] == 2
    assert privacy("--export", "nobody")[0] == 2
