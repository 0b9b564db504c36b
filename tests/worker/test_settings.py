"""Settings: where they come from, what is refused, and what the refusal says."""

import os
import tomllib
from pathlib import Path

import pytest

from worker.settings import ENV_PREFIX, MASK, Settings, load_settings, mask_url, variable_names
from worker.settings_sections import ExportSettings, SettingsError
from worker.settings_text import describe_settings


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.upper().startswith(ENV_PREFIX):
            monkeypatch.delenv(name)


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def problems_of(config: Path | None) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        load_settings(config)
    return caught.value.problems


def test_without_a_file_and_variables_every_setting_has_its_documented_default() -> None:
    settings = load_settings()
    assert settings.app_id == "trace-projector"
    assert settings.bootstrap_servers == "127.0.0.1:9092"
    assert (settings.partitions, settings.replication_factor, settings.generation) == (8, 1, 1)
    assert (settings.web_host, settings.web_port) == ("127.0.0.1", 6066)
    assert settings.unbound == "hold"
    assert settings.roles == ("project", "fold", "export")
    assert settings.source_topics == {
        "workflow-runs": "workflow-runs",
        "gate-decisions": "gate-decisions",
        "ledger-changes": "ledger-changes",
        "transcripts": "transcripts",
        "erasures": "trace-projector-erasures",
    }


def test_limits_default_to_those_of_the_design() -> None:
    limits = load_settings().limits
    assert limits.message_bytes_max == 8 * 1024 * 1024
    assert limits.transcript_line_bytes_max == 4 * 1024 * 1024
    assert limits.json_depth_max == 127
    assert limits.facts_per_message_max == 10_000
    assert (limits.batch_messages_max, limits.batch_bytes_max) == (2_000, 16 * 1024 * 1024)
    assert limits.in_flight_bytes_max == 64 * 1024 * 1024
    assert limits.dead_letters_in_row_max == 1_000
    assert (limits.dead_letters_window_messages, limits.dead_letters_window_percent_max) == (10_000, 5.0)
    assert limits.sink_retry_delay_max_s == 30.0
    assert limits.shutdown_drain_s == 10.0


def test_the_environment_wins_over_the_file_and_the_file_over_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = write(tmp_path / "c.toml", 'app_id = "file"\nweb_port = 1\n[topics]\ntranscripts = "t-file"\n')
    monkeypatch.setenv("TRACE_PROJECTOR_APP_ID", "env")
    monkeypatch.setenv("TRACE_PROJECTOR_TOPICS__GATE_DECISIONS", "g-env")
    settings = load_settings(config)
    assert (settings.app_id, settings.web_port) == ("env", 1)
    assert (settings.topics.transcripts, settings.topics.gate_decisions) == ("t-file", "g-env")
    assert settings.source_topics["erasures"] == "env-erasures"


def test_roles_in_the_environment_are_a_comma_separated_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACE_PROJECTOR_ROLES", "project, fold")
    assert load_settings().roles == ("project", "fold")


def test_exports_in_the_environment_are_a_json_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACE_PROJECTOR_EXPORTS", '[{"name":"a","sink":"memory:","redact":false}]')
    assert load_settings().export_named("a") == ExportSettings(name="a", sink="memory:", redact=False)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('unbund = "hold"', "unbund: unknown key (did you mean unbound?)"),
        ("[limits]\nbatch_byte_max = 1", "limits.batch_byte_max: unknown key (did you mean batch_bytes_max?)"),
        ('[topics]\nzzz = "x"', "topics.zzz: unknown key"),
        (
            '[[exports]]\nname = "a"\nsink = "memory:"\nkey_env = "K"\npublic_repo = []',
            "exports[0].public_repo: unknown key (did you mean public_repos?)",
        ),
    ],
)
def test_an_unknown_key_is_refused_by_its_full_name_and_the_files(tmp_path: Path, text: str, expected: str) -> None:
    config = write(tmp_path / "c.toml", text)
    assert problems_of(config) == [f"settings file {config}: {expected}"]


def test_every_bad_key_is_reported_at_once(tmp_path: Path) -> None:
    config = write(tmp_path / "c.toml", 'web_port = "x"\npartitions = 0\nunbound = "never"\n')
    assert len(problems_of(config)) == 3


@pytest.mark.parametrize("port", [-1, 0, 65536])
def test_pages_need_a_port_that_can_be_told_to_others(tmp_path: Path, port: int) -> None:
    (problem,) = problems_of(write(tmp_path / "c.toml", f"web_port = {port}\n"))
    assert "web_port: " in problem


def test_an_unknown_variable_with_our_prefix_is_refused_with_the_nearest_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACE_PROJECTOR_APPID", "x")
    assert problems_of(None) == [
        "environment variable TRACE_PROJECTOR_APPID: no such setting (did you mean TRACE_PROJECTOR_APP_ID?)"
    ]


def test_an_unknown_nested_variable_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACE_PROJECTOR_LIMITS__BATCH_BYTE_MAX", "3")
    (problem,) = problems_of(None)
    assert problem.startswith("environment variable TRACE_PROJECTOR_LIMITS__BATCH_BYTE_MAX: ")
    assert "batch_bytes_max" in problem


def test_a_bad_value_of_a_variable_names_the_variable_and_not_the_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACE_PROJECTOR_WEB_PORT", "ZZSECRETZZ")
    (problem,) = problems_of(None)
    assert problem.startswith("environment variable TRACE_PROJECTOR_WEB_PORT: web_port: ")
    assert "ZZSECRETZZ" not in problem


def test_malformed_json_in_a_variable_is_one_clear_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACE_PROJECTOR_EXPORTS", '[{"ZZSECRETZZ')
    (problem,) = problems_of(None)
    assert "exports" in problem
    assert "ZZSECRETZZ" not in problem


def test_a_digest_key_may_live_in_a_variable_with_our_prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = write(tmp_path / "c.toml", '[[exports]]\nname="a"\nsink="memory:"\nkey_env="TRACE_PROJECTOR_KEY"\n')
    monkeypatch.setenv("TRACE_PROJECTOR_KEY", "k" * 32)
    assert load_settings(config).export_named("a").load_key() == b"k" * 32


@pytest.mark.parametrize("content", ["app_id = ", "\xff"])
def test_a_file_that_is_no_toml_is_refused_by_name(tmp_path: Path, content: str) -> None:
    config = tmp_path / "c.toml"
    config.write_bytes(content.encode("latin-1"))
    (problem,) = problems_of(config)
    assert str(config) in problem


def test_a_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    (problem,) = problems_of(tmp_path / "none.toml")
    assert problem == f"cannot read settings file {tmp_path / 'none.toml'}: No such file or directory"


@pytest.mark.parametrize(
    "text",
    [
        'app_id = "a b"',
        'bootstrap_servers = "kafka"',
        'bootstrap_servers = "kafka:99999"',
        'roles = ["export:none"]',
        "roles = []",
        "generation = 0",
        '[topics]\ntranscripts = "workflow-runs"',
        '[kafka]\nsecurity_protocol = "SASL_SSL"',
        '[kafka]\nssl_cert_file = "x"',
        "[limits]\njson_depth_max = 128",
        "[limits]\nshutdown_drain_s = inf",
        '[[exports]]\nname = "a/b"\nsink = "memory:"\nredact = false',
        '[[exports]]\nname = "a"\nsink = "traces.duckdb"\nredact = false',
        '[[exports]]\nname = "a"\nsink = "memory:"\nkey_env = "A"\nkey_file = "b"',
        '[[exports]]\nname="a"\nsink="memory:"\nredact=false\n[[exports]]\nname="a"\nsink="memory:"\nredact=false',
    ],
)
def test_values_outside_their_grammar_are_refused(tmp_path: Path, text: str) -> None:
    assert len(problems_of(write(tmp_path / "c.toml", text))) == 1


def test_an_export_that_redacts_without_a_key_is_refused(tmp_path: Path) -> None:
    config = write(tmp_path / "c.toml", '[[exports]]\nname = "a"\nsink = "memory:"\n')
    (problem,) = problems_of(config)
    assert "export a redacts and so needs key_env or key_file" in problem


def test_public_repositories_are_normalised_as_the_projection_does_it() -> None:
    export = ExportSettings(name="a", sink="memory:", key_env="K", public_repos=frozenset({"Acme/App.git", "x/Y"}))
    assert export.public_repos == {"acme/app", "x/y"}


@pytest.mark.parametrize("name", ["acme", "https://github.com/acme/app", "acme/app/x", "acme /app", ""])
def test_a_public_repository_that_is_not_owner_and_name_is_refused(tmp_path: Path, name: str) -> None:
    text = f'[[exports]]\nname = "a"\nsink = "memory:"\nkey_env = "K"\npublic_repos = ["{name}"]\n'
    (problem,) = problems_of(write(tmp_path / "c.toml", text))
    assert "exports[0].public_repos[0]" in problem


def test_a_key_file_is_read_without_its_line_end(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(b"secret\r\n")
    assert ExportSettings(name="a", sink="memory:", key_file=path).load_key() == b"secret"


@pytest.mark.parametrize("content", [b"", b"\n"])
def test_an_empty_key_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "key"
    path.write_bytes(content)
    with pytest.raises(SettingsError, match="file key is empty"):
        ExportSettings(name="a", sink="memory:", key_file=path).load_key()


def test_a_missing_key_file_is_refused_by_its_name_only(tmp_path: Path) -> None:
    export = ExportSettings(name="a", sink="memory:", key_file=tmp_path / "no-key")
    with pytest.raises(SettingsError) as caught:
        export.load_key()
    assert caught.value.problems == ["export a: cannot read key_file no-key: No such file or directory"]


@pytest.mark.parametrize("environ", [{}, {"K": ""}])
def test_a_key_variable_that_is_missing_or_empty_is_refused(environ: dict[str, str]) -> None:
    with pytest.raises(SettingsError, match="K"):
        ExportSettings(name="a", sink="memory:", key_env="K").load_key(environ)


def test_a_role_given_on_the_command_line_must_exist() -> None:
    settings = Settings(exports=(ExportSettings(name="a", sink="memory:", redact=False),))
    assert settings.with_roles(("fold", "export:a")).roles == ("fold", "export:a")
    for role in ("folds", "fold:x", "export:b", "export:"):
        with pytest.raises(SettingsError):
            settings.with_roles((role,))


SECRETS = """
[kafka]
security_protocol = "SASL_SSL"
sasl_username = "svc"
sasl_password = "ZZSECRETZZ"
[[exports]]
name = "pg"
sink = "postgresql://svc:ZZSECRETZZ@db/x?sslpassword=ZZSECRETZZ&a=b"
key_env = "SOME_KEY"
[[exports]]
name = "file"
sink = "duckdb:t.duckdb"
key_file = "/etc/deep/path/export.key"
public_repos = ["acme/app"]
"""


def test_the_printed_settings_hold_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", "ZZSECRETZZ")
    text = describe_settings(load_settings(write(tmp_path / "c.toml", SECRETS)))
    assert "ZZSECRETZZ" not in text
    assert "/etc/deep" not in text
    assert f'key_env = "SOME_KEY"  # set: {MASK}' in text
    assert 'key_file = "export.key"' in text
    assert f'sink = "postgresql://svc:{MASK}@db/x?sslpassword={MASK}&a=b"' in text


def test_the_printed_settings_can_be_read_again_as_a_settings_file(tmp_path: Path) -> None:
    first = load_settings(
        write(tmp_path / "a.toml", 'app_id = "x"\n[[exports]]\nname="a"\nsink="jsonl:é\\"q"\nredact=false')
    )
    text = describe_settings(first)
    assert tomllib.loads(text)["exports"] == [
        {"name": "a", "sink": 'jsonl:é"q', "redact": False, "profile": "normal", "public_repos": []}
    ]
    again = load_settings(write(tmp_path / "b.toml", text))
    assert describe_settings(again) == text


def test_every_setting_has_a_variable() -> None:
    names = set(variable_names())
    assert {"TRACE_PROJECTOR_APP_ID", "TRACE_PROJECTOR_LIMITS__BATCH_BYTES_MAX", "TRACE_PROJECTOR_EXPORTS"} <= names


@pytest.mark.parametrize(
    ("url", "masked"),
    [
        ("duckdb:/a/b.duckdb", "duckdb:/a/b.duckdb"),
        ("postgresql://u:p@h:5/d", f"postgresql://u:{MASK}@h:5/d"),
        ("postgresql://u:p/q?r#s@t@h/d", f"postgresql://u:{MASK}@h/d"),
        ("postgresql://h:5/d?user=a@b", "postgresql://h:5/d?user=a@b"),
        ("clickhouse://u:p%40@h/d?password=x&token=y#z", f"clickhouse://u:{MASK}@h/d?password={MASK}&token={MASK}#z"),
        ("postgresql://h/d?user=u", "postgresql://h/d?user=u"),
        ("postgresql://u:p q\nr@h/d?password=s t&a=b", f"postgresql://u:{MASK}@h/d?password={MASK}&a=b"),
        ("clickhouse://h/d?api-key=x", f"clickhouse://h/d?api-key={MASK}"),
    ],
)
def test_passwords_in_sink_urls_are_masked(url: str, masked: str) -> None:
    assert mask_url(url) == masked
