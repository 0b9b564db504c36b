"""Every command says what it does and shows examples that it takes; completion knows them all."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from worker.cli import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE, PROGRAM, cli
from worker.doctor.findings import error

ROOT = Path(__file__).resolve().parents[2]
# What stands in an example for something else than one of our commands.
REDIRECTION = re.compile(r"\s(?:[>|<]|2>).*")


def walk(command: click.Command, context: click.Context, path: tuple[str, ...]) -> Iterator[tuple[str, click.Command]]:
    yield " ".join(path), command
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            yield from walk(child, click.Context(child, info_name=name, parent=context), (*path, name))


COMMANDS = dict(walk(cli, click.Context(cli, info_name=PROGRAM), (PROGRAM,)))
LEAVES = {path: command for path, command in COMMANDS.items() if not isinstance(command, click.Group)}


def examples(command: click.Command) -> list[str]:
    _, _, shown = (command.epilog or "").replace("\\\n", " ").partition("Examples:")
    return [line.strip() for line in shown.splitlines() if line.strip().startswith(PROGRAM)]


WITHOUT_JSON = {
    "demo": "is for people",
    "open": "prints an address",
    "report": "writes a page",
    "schema": "prints JSON as it is",
    "start": "logs, as JSON too (log_format)",
    "worker": "logs, as JSON too (log_format)",
}


@pytest.mark.parametrize("path", LEAVES)
def test_a_command_answers_in_json_unless_there_is_a_reason_not_to(path: str) -> None:
    options = {option for parameter in LEAVES[path].params for option in parameter.opts}
    assert ("--json" in options) is (path.removeprefix(f"{PROGRAM} ") not in WITHOUT_JSON)


def test_the_help_of_the_program_says_what_exit_codes_mean_and_how_to_complete() -> None:
    assert cli.epilog is not None
    for code in (0, EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED):
        assert re.search(rf"^  {code}\s+\S", cli.epilog, re.MULTILINE)
    assert "_TRACE_PROJECTOR_COMPLETE=bash_source" in cli.epilog


@pytest.mark.parametrize("path", COMMANDS)
def test_a_command_says_what_it_does(path: str) -> None:
    command = COMMANDS[path]
    assert (command.help or "").strip()
    for parameter in command.params:
        if isinstance(parameter, click.Option) and not parameter.hidden:
            assert parameter.help, f"{path} {parameter.opts[0]} is not explained"


def test_the_list_of_commands_says_a_whole_line_of_each_and_loads_none() -> None:
    code = "import sys; from worker.cli import run; run(['--help']); print(*sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    *lines, loaded = told.splitlines()
    assert {name for name in loaded.split() if name.startswith("worker")} == {"worker", "worker.cli", "worker.garbage"}
    assert "pydantic" not in loaded.split()
    for name in cli.list_commands(click.Context(cli)):
        (line,) = [line for line in lines if line.startswith(f"  {name} ")]
        assert line.endswith("."), line


@pytest.mark.parametrize("path", LEAVES)
def test_a_command_shows_examples_that_it_takes(path: str) -> None:
    command = LEAVES[path.replace(" start", " worker")]
    shown = examples(command)
    assert shown, f"{path} has no example"
    for line in shown:
        words = shlex.split(REDIRECTION.sub("", line))[1:]
        resolved, rest = resolve(words)
        assert resolved is command, line
        # Parsed and not run: whether options and arguments are its own.
        command.make_context(path, rest, resilient_parsing=False)


def resolve(words: list[str]) -> tuple[click.Command, list[str]]:
    """Find the command that words name, past the options of the program itself."""
    found: click.Command = cli
    rest = words
    while isinstance(found, click.Group):
        context = found.make_context(PROGRAM, list(rest))
        _name, child, rest = found.resolve_command(context, [*context._protected_args, *context.args])
        assert child is not None
        found = child
    return found, rest


def program(**environ: str) -> str:
    """Run the program as a shell does that asks it for completions."""
    done = subprocess.run(
        [sys.executable, "-m", "worker"],
        env=os.environ | environ,
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    return done.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_made_for_the_shells_that_the_docs_name(shell: str) -> None:
    ask = f"_TRACE_PROJECTOR_COMPLETE={shell}_source"
    assert ask in (ROOT / "docs" / "operating.md").read_text(encoding="utf-8")
    assert f"_TRACE_PROJECTOR_COMPLETE={shell}_complete" in program(_TRACE_PROJECTOR_COMPLETE=f"{shell}_source")


def test_completion_knows_commands_and_their_options() -> None:
    told = program(_TRACE_PROJECTOR_COMPLETE="bash_complete", COMP_WORDS="trace-projector doc", COMP_CWORD="1")
    assert told.split() == ["plain,doctor"]
    told = program(_TRACE_PROJECTOR_COMPLETE="bash_complete", COMP_WORDS="trace-projector doctor --st", COMP_CWORD="2")
    assert told.split() == ["plain,--strict"]


@pytest.mark.parametrize(
    ("is_terminal", "no_color", "coloured"), [(True, "", True), (True, "1", False), (False, "", False)]
)
def test_colours_are_for_terminals_and_for_those_who_want_them(
    is_terminal: bool, no_color: str, coloured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found(work: Any) -> Any:
        work.close()
        return [error("source_missing", "topic runs", "there is none", "make it")], []

    monkeypatch.setattr("worker.commands.topics.on_broker", found)
    monkeypatch.setenv("NO_COLOR", no_color)
    told = CliRunner().invoke(cli, ["topics", "check"], color=is_terminal).output
    assert "topic runs [source_missing]" in told
    assert ("\x1b[" in told) is coloured
