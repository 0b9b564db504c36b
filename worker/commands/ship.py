"""`trace-projector ship`: transcript files of this machine into the transcripts topic, once or on and on."""

import asyncio
import contextlib
import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from projections.text import is_blank
from worker.cli import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE, CommandFailed, Invocation
from worker.commands.broker import echo_json, on_broker
from worker.commands.harnesses import places_of
from worker.harnesses import HARNESSES
from worker.harnesses.contract import Place
from worker.harnesses.discovery import Unavailable
from worker.views.text import shown

_RATE_TEXT = re.compile(r"(?P<amount>[0-9]+(?:\.[0-9]+)?) ?(?P<unit>lines|B|kB|KB|KiB|MB|MiB|GB|GiB)(?:/s)?")
_BYTES = {"B": 1, "kB": 10**3, "KB": 10**3, "KiB": 2**10, "MB": 10**6, "MiB": 2**20, "GB": 10**9, "GiB": 2**30}
_PASSED_OVER_SHOWN_MAX = 20


class _RateType(click.ParamType):
    name = "rate"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from worker.shipping.shipper import Rate  # noqa: PLC0415  (late, like every heavy import of a command)

        if isinstance(value, Rate):
            return value
        match = _RATE_TEXT.fullmatch(value)
        if match is None or not float(match["amount"]):
            self.fail("give bytes or lines a second, as in 500KiB/s, 2MB/s or 1000lines/s", param, ctx)
        if match["unit"] == "lines":
            return Rate(float(match["amount"]), "lines")
        return Rate(float(match["amount"]) * _BYTES[match["unit"]], "bytes")


RATE = _RateType()


@click.command(
    "ship",
    epilog="""\b
Examples:
  trace-projector --config trace-projector.toml ship --namespace laptop
  trace-projector --config trace-projector.toml ship --namespace laptop --once --harness codex --json
  trace-projector ship --namespace ci --harness harn --once runs/
  trace-projector ship --namespace laptop --rate 500KiB/s --poll-interval-s 5
""",
)
@click.argument("paths", metavar="[PATH]...", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "--namespace", metavar="NAME", required=True, help="Namespace (corpus, host, account) of the conversations."
)
@click.option("--harness", "names", metavar="NAME", multiple=True, help="Only this one; may be given again.")
@click.option("--native-id", metavar="ID", help="Conversation of the PATH's files, where they do not name it.")
@click.option("--conversation", metavar="ID", help="Only the files of the conversation with this native id.")
@click.option("--once", is_flag=True, help="Stop when everything that is there is shipped.")
@click.option(
    "--state",
    "state_path",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Where to remember what was shipped.  [default: ship-TOPIC.json in state_dir or ~/.local/state]",
)
@click.option("--rate", metavar="RATE", type=RATE, help="At most this much a second: 500KiB/s or 1000lines/s.")
@click.option(
    "--poll-interval-s",
    type=click.FloatRange(min=0, min_open=True),
    default=1.0,
    show_default=True,
    help="How often to look for new lines.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the summary as one JSON document.")
@click.pass_obj
def ship_command(  # noqa: PLR0913  (one argument per option)
    invocation: Invocation,
    paths: tuple[Path, ...],
    *,
    namespace: str,
    names: tuple[str, ...],
    native_id: str | None,
    conversation: str | None,
    once: bool,
    state_path: Path | None,
    rate: Any,
    poll_interval_s: float,
    as_json: bool,
) -> int:
    """Ship transcript files into the transcripts topic, line by line, at least once.

    Without PATH everything is shipped that Claude Code and Codex keep for this user; with PATHs and one --harness,
    these files or directories. Nothing outside of them is read, and no symbolic link in them is followed. A line that
    is not finished waits. It may be stopped or killed at any time, and goes on from where it was.

    Exit code 1 means that some lines could not be shipped; all others were.
    """
    settings = invocation.settings()
    for option, value in (("--namespace", namespace), ("--native-id", native_id)):
        if value is not None and is_blank(value):
            raise click.UsageError(f"{option} is blank")
    if native_id is not None and not paths:
        raise click.UsageError("--native-id goes with PATHs")
    places = _available(places_of(names, paths), is_named=bool(names))

    from worker.shipping.files import Selection  # noqa: PLC0415  (late, like every heavy import of a command)
    from worker.shipping.sender import ShipTargetError, UndeliveredError  # noqa: PLC0415
    from worker.shipping.shipper import ShipPlan, ShipStopped  # noqa: PLC0415
    from worker.shipping.state import ShipStateError  # noqa: PLC0415

    # Paths name projects: what runs on and on, and so most likely into a log, shows none.
    shows_paths = once or sys.stderr.isatty()
    try:
        with _progress() as on_bytes:
            selection = Selection(places, namespace, native_id, conversation)
            say = _teller(shows_paths=shows_paths)
            plan = ShipPlan(selection, state_path, once, rate, poll_interval_s, say, on_bytes)
            tally = on_broker(_ship(settings, plan))
    except ShipStateError as error:
        raise CommandFailed(str(error), EXIT_USAGE if error.usage else EXIT_FAILED) from error
    except ShipTargetError as error:
        raise CommandFailed(str(error)) from error
    except UndeliveredError as error:
        raise CommandFailed(f"the brokers do not acknowledge ({error}); run it again to go on") from error
    except ShipStopped as stopped:
        raise CommandFailed("interrupted; run it again to go on", EXIT_INTERRUPTED) from stopped
    if as_json:
        echo_json(_summary_json(tally, shows_paths=shows_paths))
    for line in () if as_json else summary_lines(tally, shows_paths=shows_paths):
        click.echo(line, err=True)
    return EXIT_FAILED if tally.refused else 0


def _available(found: dict[str, list[Place] | Unavailable], *, is_named: bool) -> dict[str, list[Place]]:
    """Give the places there are; a harness that was asked for by name must have some."""
    for name, places in found.items():
        if isinstance(places, Unavailable) and is_named:
            raise click.UsageError(f"{name}: {places.reason}")
        if isinstance(places, Unavailable) and HARNESSES[name].default_places is not None:
            click.echo(f"{name} is unavailable: {places.reason}", err=True)
    available = {name: places for name, places in found.items() if not isinstance(places, Unavailable)}
    if not available:
        raise CommandFailed("no harness of this user is available; see `trace-projector harnesses`")
    return available


async def _ship(settings: Any, plan: Any) -> Any:
    from worker.shipping.shipper import ship  # noqa: PLC0415

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def stop_gently() -> None:
        # Whoever asks a second time means now.
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop_gently)
    return await ship(settings, plan, stop)


def _teller(*, shows_paths: bool) -> Callable[[Any, str], None]:
    """Make what tells about a file, or about all of them, on standard error."""

    def say(file: Any, text: str) -> None:
        if file is None:
            click.echo(text, err=True)
            return
        device, inode = file.identity
        place = shown(str(file.path)) if shows_paths else f"file {device}:{inode} (device:inode)"
        click.echo(f"{place} {text}", err=True)

    return say


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar on a terminal, and nothing anywhere else."""
    if not sys.stderr.isatty():
        yield lambda _ahead, _done: None
        return
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn  # noqa: PLC0415

    columns = (TextColumn("shipping"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("shipping", total=0)
        done_bytes = 0

        def on_bytes(ahead: int, done: int) -> None:
            nonlocal done_bytes
            done_bytes += done
            if ahead:
                progress.update(task, total=done_bytes + ahead)
            progress.update(task, completed=done_bytes)

        yield on_bytes


def _summary_json(tally: Any, *, shows_paths: bool) -> dict[str, Any]:
    refused = [
        {"path": str(where.path), "byteOffset": where.byte_offset, "byteLength": where.size_bytes, "reason": reason}
        for where, reason in tally.refused_lines
    ]
    return {
        "lines": tally.lines,
        "bytes": tally.bytes,
        "files": len(tally.files),
        "skipped": tally.skipped,
        "noticed": tally.noticed,
        "unfinished": tally.unfinished,
        "passedOver": [{"path": str(path), "reason": reason} for path, reason in tally.passed_over]
        if shows_paths
        else len(tally.passed_over),
        "refused": tally.refused,
        "refusedLines": refused if shows_paths else len(refused),
    }


def summary_lines(tally: Any, *, shows_paths: bool) -> Iterator[str]:
    """Say what was shipped and what was not, in a fixed order; no line holds anything of a transcript's content."""
    yield f"{'shipped':<13} {tally.lines} lines, {tally.bytes} bytes, of {len(tally.files)} files"
    for name, counts in (("skipped", tally.skipped), ("noticed", tally.noticed)):
        if counts:
            yield f"{name:<13} {_counts(counts)}"
    if tally.unfinished:
        yield f"{'unfinished':<13} {tally.unfinished} files end in the middle of a line, which waits"
    if tally.passed_over:
        yield f"{'passed over':<13} {len(tally.passed_over)} files or directories"
        for path, reason in tally.passed_over[: _PASSED_OVER_SHOWN_MAX if shows_paths else 0]:
            yield f"  {shown(str(path))}: {reason}"
    if tally.refused:
        yield f"{'refused':<13} {_counts(tally.refused)}"
        for where, reason in tally.refused_lines if shows_paths else ():
            yield f"  {shown(str(where.path))} byte {where.byte_offset}, {where.size_bytes} bytes: {reason}"


def _counts(counts: Any) -> str:
    return f"{counts.total()} ({', '.join(f'{name} {count}' for name, count in sorted(counts.items()))})"
