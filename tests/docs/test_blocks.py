"""Every block of code in the pages works: commands run, queries answer, settings are settings, output is printed.

What a block is stands behind its fence (docs/development.md lists it). Commands that need a broker run in
tests/integration/test_docs.py.
"""

import contextlib
import importlib.util
import io
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import jsonschema
import pytest
import yaml

from projections.prices import parse_price_table
from projections.sources import SOURCES, project_message
from tests.docs.pages import DOCS, PAGES, ROOT, Block, all_blocks, blocks, commands, named, queries, section
from worker.cli import run
from worker.contracts.sources import json_schemas
from worker.harnesses import HARNESSES
from worker.record_reader import READERS
from worker.settings import ENV_PREFIX, Settings, load_settings
from worker.settings_sections import ExportSettings
from worker.sink import SINKS, open_sink, split_sink_url
from worker.sink_switch import can_be_switched

README = ROOT / "README.md"

KINDS = {
    *("sh", "sh kafka", "sh kafka worker", "sh make", "sh demo", "sh completion"),
    *("toml", "toml export", "json", "json prices", *(f"json {source}" for source in SOURCES), "yaml"),
    *("sql", "python", "output", "text"),
}
"""What a block may be; pictures and files in the words of other programs are ``text``, which nothing looks into."""


def place(block: Block) -> str:
    return block.place


def lines_of(*infos: str) -> list[Any]:
    return [pytest.param(line, id=f"{one.place} {line}") for one in all_blocks(*infos) for line in commands(one)]


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_block_says_what_it_is_so_that_a_test_looks_at_it(page: Path) -> None:
    assert [f"{block.place} {block.info}" for block in blocks(page) if block.info not in KINDS] == []


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a directory in which the pages' relative paths mean what they mean in a checkout."""
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


# ------------------------------------------------------------------------------------------------------- commands


@pytest.mark.parametrize("line", lines_of("sh"))
def test_a_command_succeeds(line: str, checkout: Path) -> None:
    program, *arguments = shlex.split(line, comments=True)
    assert program == "trace-projector"
    assert run([os.path.expanduser(argument) for argument in arguments]) == 0  # noqa: PTH111  (as the shell does)
    assert checkout == Path.cwd()


@pytest.mark.parametrize("line", lines_of("sh demo"))
def test_a_command_that_follows_the_demo_prints_its_runs(line: str, checkout: Path) -> None:
    (checkout / ".demo").mkdir()
    assert run(["project", "fixtures/runs/demo", "--to", "duckdb:.demo/traces.duckdb", "--no-redact"]) == 0
    program, *arguments = shlex.split(line, comments=True)
    assert program == ".venv/bin/python"
    printed = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=True).stdout
    assert "run_id" in printed
    assert "doc-change" in printed


@pytest.mark.parametrize("line", lines_of("sh make"))
def test_what_is_started_by_hand_is_there_to_be_started(line: str) -> None:
    """Making the demo and running the tests are tested where they are: tests/browser, and this very run."""
    program, first, *arguments = shlex.split(line, comments=True)
    if program == "make":
        targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
        assert first in targets
        assert all(re.fullmatch(r"[A-Z_]+=\S+", argument) for argument in arguments)
        return
    assert program.startswith(".venv/bin/")
    module = Path(program).name if program != ".venv/bin/python" else arguments.pop(0)
    assert importlib.util.find_spec(module) is not None
    asked = [sys.executable, "-m", module, *([first] if first != "-m" else []), *arguments, "--help"]
    assert subprocess.run(asked, cwd=ROOT, capture_output=True, check=False).returncode == 0


# -------------------------------------------------------------------------------------------------------- queries


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[duckdb.DuckDBPyConnection]:
    path = tmp_path_factory.mktemp("pages") / "traces.duckdb"
    runs = [str(ROOT / "fixtures" / "runs" / name) for name in ("demo", "example")]
    assert run(["project", *runs, "--to", f"duckdb:{path}", "--no-redact"]) == 0
    with duckdb.connect(str(path), read_only=True) as connection:
        yield connection


@pytest.mark.parametrize("query", [query for block in all_blocks("sql") for query in queries(block.text)])
def test_a_query_gives_rows(query: str, database: duckdb.DuckDBPyConnection) -> None:
    assert database.execute(query).fetchall()


# ------------------------------------------------------------------------------------------- settings and messages


def settings_of(text: str, directory: Path) -> Settings:
    config = directory / "trace-projector.toml"
    config.write_text(text, encoding="utf-8")
    return load_settings(config)


@pytest.mark.parametrize("block", all_blocks("toml"), ids=place)
def test_settings_are_settings(block: Block, checkout: Path) -> None:
    settings_of(block.text, checkout)


def described(page: Path) -> dict[str, str]:
    """Settings in the tables of a page whose header is ``setting``, to their defaults as they are written."""
    tables = re.findall(r"^\| setting .*\n\|[-|]+\n((?:\|.*\n)+)", page.read_text(encoding="utf-8"), re.MULTILINE)
    cells = [row.split(" | ")[:2] for table in tables for row in table.splitlines()]
    found: dict[str, str] = {}
    for first, second in cells:
        names = re.findall(r"`([\w.]+)`", first)
        values = second.split(", ")
        found.update(zip(names, values if len(values) == len(names) else [second] * len(names), strict=True))
    return found


def written(value: Any) -> set[str]:
    """How a page may write a default."""
    if isinstance(value, bool):
        return {f"`{str(value).lower()}`"}
    if isinstance(value, int | float):
        return {f"{value:g}" if value < 10**6 else f"{value / 2**20:g} MiB"}
    return {f"`{value}`"} if value else {"none", "–"}


def test_the_settings_that_are_described_have_these_defaults() -> None:
    told = described(DOCS / "operating.md")
    assert len(told) > 10
    for name, default in told.items():
        value: Any = Settings()
        for part in name.split("."):
            value = getattr(value, part)
        assert default in written(value), name


def test_every_setting_of_an_export_is_described_with_its_default() -> None:
    told = described(DOCS / "exports.md")
    assert told.keys() == ExportSettings.model_fields.keys()
    for name, field in ExportSettings.model_fields.items():
        if not field.is_required() and name != "estimate_costs":
            assert told[name] in written(field.default), name


def test_the_settings_of_the_readme_are_those_that_it_speaks_of(checkout: Path) -> None:
    (block,) = blocks(README, "toml")
    settings = settings_of(block.text, checkout)
    assert [export.name for export in settings.exports] == ["analytics", "local"]
    assert settings.topics.transcripts == "prod.transcripts"


@pytest.mark.parametrize("block", all_blocks("toml export"), ids=place)
def test_each_sink_of_a_part_of_an_export_can_be_made(block: Block, checkout: Path) -> None:
    lines = block.text.splitlines()
    beside = "\n".join(line for line in lines if not line.startswith("sink "))
    sinks = [line for line in lines if line.startswith("sink ")]
    assert sinks
    for sink in sinks:
        settings = settings_of(f'[[exports]]\nname = "x"\nredact = false\n{sink}\n{beside}\n', checkout)
        open_sink(settings.exports[0].sink, "policy")


def test_the_table_of_sinks_says_what_they_are() -> None:
    """Extra, writers, how a generation is switched, reading back: as the code has it."""
    extras = re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    rows = re.findall(
        r"^\| `([a-z]+:\S+)` \| (.+) \|$", (DOCS / "exports.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    told = {}
    for url, cells in rows:
        extra, writers, switched, read_back = cells.split(" | ")
        scheme, _ = split_sink_url(url)
        sink = open_sink(url, "policy")
        assert extra == (f"`{scheme}`" if scheme in extras else "–"), url
        assert writers == ("one" if sink.single_writer else "any number"), url
        assert switched.startswith("in one step") == can_be_switched(url), url
        assert read_back == ("yes" if scheme in READERS else "no"), url
        told[scheme] = sink
    assert told.keys() == SINKS.keys() - {"memory", "stdout"}


def test_the_table_of_harnesses_has_every_one() -> None:
    table = section(DOCS / "operating.md", "Transcripts you already have")
    assert set(re.findall(r"^\| `([a-z-]+)` \|", table, re.MULTILINE)) == set(HARNESSES)


@pytest.mark.parametrize("block", all_blocks("json prices"), ids=place)
def test_a_price_table_is_one(block: Block) -> None:
    assert parse_price_table(json.loads(block.text)).version == "house-7"


@pytest.mark.parametrize("block", all_blocks(*(f"json {source}" for source in SOURCES)), ids=place)
def test_a_message_keeps_its_contract_and_becomes_facts(block: Block) -> None:
    source = block.info.removeprefix("json ")
    jsonschema.validate(json.loads(block.text), json_schemas()[source])
    projected = project_message(source, None, block.text.encode(), 0, 0)
    assert projected.facts
    assert (projected.ignored, projected.issues) == (None, ())


def test_every_source_has_an_example_of_its_messages() -> None:
    shown = {block.info.removeprefix("json ") for block in blocks(DOCS / "topics.md")}
    assert shown >= SOURCES.keys()


def test_what_is_for_other_programs_can_be_parsed() -> None:
    for block in all_blocks("json"):
        assert json.loads(block.text), block.place
    for block in all_blocks("yaml"):
        assert list(yaml.safe_load_all(block.text)), block.place


# --------------------------------------------------------------------------------------------------------- python


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=named)
def test_python_prints_what_stands_below_it(page: Path) -> None:
    names: dict[str, Any] = {}
    printed = ""
    for block in blocks(page):
        if block.info == "python":
            assert printed == "", f"{block.place}: what the block before it prints stands nowhere"
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(compile(block.text, block.place, "exec"), names)  # noqa: S102  (our own page)
            printed = out.getvalue()
        elif block.info == "output":
            assert block.text == printed, block.place
            printed = ""
    assert printed == ""


def test_there_is_something_to_test() -> None:
    assert len(lines_of("sh")) >= 12
    assert len(all_blocks("sql")) >= 3
    assert len(all_blocks("python")) >= 4
