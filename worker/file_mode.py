"""File mode: files into a sink of its own, which replaces its target whole.

Order of durability: everything is written into a sink beside the target; only when that sink is closed does it take the
target's place. Whatever fails before that leaves the target as it was.
"""

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from projections.fold import Change
from projections.prices import PriceTable
from worker.exports import ExportPolicy, RecordMessage, make_upserts
from worker.local_fold import GENERATION, Tally, Unbound, fold_files
from worker.settings_sections import ExportSettings, LimitSettings
from worker.sink import Sink, SinkRefused, Upsert, open_sink, split_sink_url
from worker.source_files import SourceFile


class Beside(NamedTuple):
    """Endings of the files that a sink may leave beside its own; all of them go with the file that is replaced.

    What is ``kept`` comes along with the new one, what ``goes`` was for the writer alone.
    """

    goes: tuple[str, ...]
    kept: tuple[str, ...] = ()


FILE_SINKS: Final = {"duckdb": Beside((".wal",)), "jsonl": Beside((".state", ".pricing.state"), (".pricing",))}

# No application is called so: an export of the worker never goes on in a sink that file mode wrote.
ORIGIN: Final = "file mode"


class TargetError(Exception):
    """A target that file mode cannot write; `usage` tells a wrong command from a failing file system."""

    def __init__(self, message: str, *, usage: bool = False) -> None:
        self.usage = usage
        super().__init__(message)


def file_policy(export: ExportSettings | None, prices: PriceTable | None = None) -> ExportPolicy:
    """Make the policy of an export, or of somebody who asked for records as they are (None).

    ``prices`` estimates costs without an amount. Raises SettingsError when a redacting export has no usable key.
    """
    if export is None:
        return ExportPolicy.unredacted(origin=ORIGIN, prices=prices)
    return ExportPolicy.from_settings(export, origin=ORIGIN, prices=prices)


async def project_files(
    files: Sequence[SourceFile],
    url: str,
    policy: ExportPolicy,
    limits: LimitSettings,
    unbound: Unbound,
    on_bytes: Callable[[int], None] = lambda _: None,
) -> Tally:
    """Project files into the sink that a URL names.

    Raises SourceFileError for a file that cannot be read and TargetError for a sink that cannot be written.
    """
    tally = Tally()
    changes = fold_files(files, limits, unbound, tally, on_bytes)
    try:
        scheme, location = split_sink_url(url)
        if scheme not in FILE_SINKS:
            if scheme not in ("stdout", "memory"):
                raise TargetError(
                    f"file mode writes {', '.join(f'{name}:PATH' for name in FILE_SINKS)} or -", usage=True
                )
            await _write(open_sink(url, policy.digest), policy, changes, tally)
            return tally
        target = _target(scheme, location, files)
        with _replacing(target, FILE_SINKS[scheme]) as temporary:
            await _write(open_sink(f"{scheme}:{temporary}", policy.digest), policy, changes, tally)
    except SinkRefused as error:
        raise TargetError(str(error), usage=True) from error
    return tally


def _target(scheme: str, location: str, files: Sequence[SourceFile]) -> Path:
    if not location:
        raise TargetError(f"{scheme}: needs a path, as in {scheme}:traces.{scheme}", usage=True)
    target = Path(location)
    if target.is_dir():
        raise TargetError(f"{target} is a directory", usage=True)
    if not target.parent.is_dir():
        raise TargetError(f"{target.parent} is no directory", usage=True)
    if target.exists() and any(target.samefile(file.path) for file in files):
        raise TargetError(f"{target} is one of the files to read", usage=True)
    return target


@contextlib.contextmanager
def _replacing(target: Path, beside: Beside) -> Iterator[Path]:
    """Give a path beside the target; what was written there takes the target's place if nothing is raised."""
    # A target behind a symbolic link stays behind it.
    target = target.resolve()
    try:
        with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as directory:
            temporary = Path(directory) / target.name
            yield temporary
            kept = [ending for ending in beside.kept if _beside(temporary, ending).exists()]
            for ending in ("", *kept):
                _sync(_beside(temporary, ending))
            for ending in (*beside.goes, *beside.kept):
                _beside(target, ending).unlink(missing_ok=True)
            for ending in ("", *kept):
                _beside(temporary, ending).replace(_beside(target, ending))
            _sync(target.parent)
    except OSError as error:
        raise TargetError(f"cannot write {target}: {error.strerror or type(error).__name__}") from error


def _beside(path: Path, ending: str) -> Path:
    return path.with_name(path.name + ending)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def record_of(change: Change, offset: int) -> RecordMessage:
    """Give a change as the records log would hold it; the offset tells its versions apart."""
    return RecordMessage(GENERATION, offset, *change)


async def _write(sink: Sink, policy: ExportPolicy, changes: Iterator[list[Change]], tally: Tally) -> None:
    """Write all changes in the order they came; the sink is closed, and so complete, only when all of them are in."""
    await sink.open()
    offset = 0
    for batch in changes:
        items = [record_of(change, offset + index) for index, change in enumerate(batch)]
        offset += len(items)
        upserts = make_upserts(policy, items)
        _note_amounts(upserts, tally)
        await sink.write(upserts)
    await sink.close()


def _note_amounts(upserts: Iterable[Upsert], tally: Tally) -> None:
    for upsert in upserts:
        if upsert.pricing is not None:
            said = (upsert.pricing.basis, upsert.pricing.reason)
            tally.amounts[upsert.key] = " ".join(part for part in said if part is not None)
        else:
            tally.amounts.pop(upsert.key, None)
