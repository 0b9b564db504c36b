"""What the README shows works: its commands run, its queries answer, its settings are settings."""

import json
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from projections.prices import parse_price_table
from worker.cli import run
from worker.settings import ENV_PREFIX, load_settings

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)


COMMANDS = [line for block in blocks("sh") for line in block.splitlines()]
QUERIES = [query.strip() for block in blocks("sql") for query in block.split(";") if query.strip()]


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a directory in which the README's relative paths mean what they mean in a checkout."""
    for name in list(os.environ):
        if name.upper().startswith(ENV_PREFIX):
            monkeypatch.delenv(name)
    (tmp_path / "fixtures").symlink_to(ROOT / "fixtures")
    projects = tmp_path / "home" / ".claude" / "projects" / "a"
    projects.mkdir(parents=True)
    (projects / "x.jsonl").write_text('{"type":"user","sessionId":"s","uuid":"u","message":{"content":"x"}}\n')
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_of_the_readme_succeeds(line: str, checkout: Path) -> None:
    program, *arguments = shlex.split(line)
    assert program == "trace-projector"
    assert run([os.path.expanduser(argument) for argument in arguments]) == 0  # noqa: PTH111  (as the shell does)
    assert checkout == Path.cwd()


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[duckdb.DuckDBPyConnection]:
    path = tmp_path_factory.mktemp("readme") / "traces.duckdb"
    runs = [str(ROOT / "fixtures" / "runs" / name) for name in ("demo", "example")]
    assert run(["project", *runs, "--to", f"duckdb:{path}", "--no-redact"]) == 0
    with duckdb.connect(str(path), read_only=True) as connection:
        yield connection


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_of_the_readme_gives_rows(query: str, database: duckdb.DuckDBPyConnection) -> None:
    assert database.execute(query).fetchall()


def test_the_settings_of_the_readme_are_settings(checkout: Path) -> None:
    (text,) = blocks("toml")
    config = checkout / "trace-projector.toml"
    config.write_text(text, encoding="utf-8")
    settings = load_settings(config)
    assert [export.name for export in settings.exports] == ["analytics", "local"]
    assert settings.topics.transcripts == "prod.transcripts"


def test_the_price_table_of_the_readme_is_one() -> None:
    (text,) = blocks("json")
    assert parse_price_table(json.loads(text)).version == "house-7"


def test_the_readme_has_commands_and_queries_to_test() -> None:
    assert len(COMMANDS) >= 10
    assert len(QUERIES) >= 6
