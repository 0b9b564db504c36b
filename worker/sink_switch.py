"""Sinks that can be filled beside what their readers see, and put in its place in one step.

A sink that is a file is filled beside it, under its name with a dot and a word behind (``traces.duckdb.g2``), and then
renamed: a reader has the old file or the new one, whole. A sink that is a place in a server is switched there, by a
module of its own. Rules for editing: a file gets its name by renaming alone; a switch that was interrupted is finished
by doing it once more; what is replaced keeps a name until it is discarded.
"""

import fcntl
import importlib
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, cast

import orjson

from worker.sink import APPEND_ONLY, SinkBusy, SinkRefused, split_sink_url
from worker.stores.files import sync_directory, write_at

BUSY_DELAY_S: Final = 0.5

_CONFIG: Final[dict[str, Any]] = {"autoinstall_known_extensions": False, "autoload_known_extensions": False}


class SwitchableFiles(NamedTuple):
    """How the files of one kind of sink are moved.

    ``suffixes`` are of the files of a sink that is closed, in the order in which they move; until the last one has
    moved, ``policy_of`` still tells the old policy. ``hold`` keeps writers out while they move; where it is None a
    writer notices with its next write.
    """

    suffixes: tuple[str, ...]
    policy_of: Callable[[Path], str | None]
    hold: Callable[[Path], AbstractContextManager[None]]


class SwitchablePlaces(Protocol):
    """The same four functions for places in a server, of locations in the stead of URLs."""

    def beside(self, location: str, word: str) -> str: ...
    def policy_of(self, location: str) -> str | None: ...
    def switch(self, location: str, word: str, policy_digest: str, keep: str | None) -> None: ...
    def discard(self, location: str, word: str) -> bool: ...


def can_be_switched(url: str) -> bool:
    """Whether the sink that a URL names can be filled beside its place. Raises SinkRefused for no sink's URL."""
    scheme, location = split_sink_url(url)
    # An object store renames no directory.
    is_store = scheme == "delta" and "://" in location
    return (scheme in _KINDS or scheme in _SERVERS) and bool(location) and not is_store


def instead_of_switching(url: str) -> str:
    """Say what readers of a sink see that cannot be switched, when another generation serves."""
    if split_sink_url(url)[0] in APPEND_ONLY:
        return "what changed is sent again beside what was sent"
    return "its readers see records change one by one, and those that are no longer there stay"


def beside(url: str, word: str) -> str:
    """Give the URL of what is filled beside a sink under a word: ``duckdb:traces.duckdb.g2``."""
    assert can_be_switched(url)
    places, location = _server_of(url)
    return f"{url}.{word}" if places is None else f"{url.partition(':')[0]}:{places.beside(location, word)}"


def policy_of(url: str) -> str | None:
    """Tell under which policy a switchable sink was written, None where there is none.

    Raises SinkBusy while a writer has it, and SinkRefused for files that are no sink's.
    """
    places, location = _server_of(url)
    if places is not None:
        return places.policy_of(location)
    kind, path = _kind_and_path(url)
    return kind.policy_of(path)


def switch(url: str, word: str, policy_digest: str, keep: str | None) -> None:
    """Put what was filled beside a sink under ``word`` in its place; what it replaces stands beside it as ``keep``.

    With ``keep`` None it is gone. May be done again after an interruption, and does nothing when it was done. Raises
    SinkBusy while a writer has either, and SinkRefused when nothing of this policy is there to be put in place.
    """
    places, location = _server_of(url)
    if places is not None:
        places.switch(location, word, policy_digest, keep)
        return
    kind, final = _kind_and_path(url)
    staged, plan = Path(f"{final}.{word}"), Path(f"{final}.{word}.switching")
    if not plan.exists() and not _last(kind, staged).exists() and kind.policy_of(final) == policy_digest:
        return
    with kind.hold(staged), kind.hold(final):
        if not plan.exists():
            if kind.policy_of(staged) != policy_digest:
                raise SinkRefused(f"{staged} is not what is to be put in place of {final.name}; fill it first")
            kind.policy_of(final)
            _write_plan(plan, [suffix for suffix in kind.suffixes if _with(staged, suffix).exists()])
        moving = orjson.loads(plan.read_bytes())
        kept = None if keep is None else Path(f"{final}.{keep}")
        for suffix in kind.suffixes:
            target, target_kept = _with(final, suffix), None if kept is None else _with(kept, suffix)
            if suffix not in moving:
                # The old one's file (prices, say) must not pass for one of the new.
                _retire(target, target_kept)
            elif _with(staged, suffix).exists():
                _keep(target, target_kept)
                _with(staged, suffix).replace(target)
        sync_directory(final.parent)
        plan.unlink()


def discard(url: str, word: str) -> bool:
    """Remove what stands beside a sink under a word; whether anything was there."""
    places, location = _server_of(url)
    if places is not None:
        return places.discard(location, word)
    kind, final = _kind_and_path(url)
    place = Path(f"{final}.{word}")
    present = [path for suffix in kind.suffixes if (path := _with(place, suffix)).exists()]
    for path in present:
        path.unlink()
    if present:
        sync_directory(final.parent)
    return bool(present)


def _server_of(url: str) -> tuple[SwitchablePlaces | None, str]:
    """The functions for a sink that is in a server, None for a file, and its location. Raises SinkRefused."""
    scheme, location = split_sink_url(url)
    if scheme not in _SERVERS:
        return None, location
    try:
        return cast("SwitchablePlaces", importlib.import_module(_SERVERS[scheme])), location
    except ImportError:
        raise SinkRefused(f"the driver of {scheme}: is missing; install trace-projector[{scheme}]") from None


def _kind_and_path(url: str) -> tuple[SwitchableFiles, Path]:
    scheme, location = split_sink_url(url)
    return _KINDS[scheme], Path(location).absolute()


def _with(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def _last(kind: SwitchableFiles, path: Path) -> Path:
    return _with(path, kind.suffixes[-1])


def _write_plan(path: Path, suffixes: list[str]) -> None:
    """Note which files are going to move: afterwards nothing tells a file that has moved from one that never was."""
    temporary = _with(path, ".tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        write_at(descriptor, orjson.dumps(suffixes), 0)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    temporary.replace(path)
    sync_directory(path.parent)


def _keep(path: Path, kept: Path | None) -> None:
    """Give a file that is about to be replaced a second name, so that there is no moment without it."""
    if kept is None or not path.exists():
        return
    if kept.exists() and kept.samefile(path):
        # Renaming one name of a file to another of the same file does nothing, and would leave both.
        return
    temporary = _with(kept, ".tmp")
    temporary.unlink(missing_ok=True)
    try:
        os.link(path, temporary)
    except OSError:
        # Not every file system has links. Then there is a moment without the old name, and none without the file.
        path.replace(kept)
    else:
        temporary.replace(kept)


def _retire(path: Path, kept: Path | None) -> None:
    """Take a file's name away, and keep it under another one if it is to be kept."""
    if not path.exists():
        return
    if kept is None:
        path.unlink()
    else:
        path.replace(kept)


# ------------------------------------------------------------------------------------------------------------- kinds


def _duckdb_policy(path: Path) -> str | None:
    if not path.exists():
        return None
    import duckdb  # noqa: PLC0415  (takes a while to load, and not every export is to DuckDB)

    connection = duckdb.connect(":memory:", config=_CONFIG)
    try:
        quoted = str(path).replace("'", "''")
        connection.execute(f"ATTACH '{quoted}' AS sink (READ_ONLY)")
        tables = connection.execute("SELECT table_name FROM duckdb_tables() WHERE database_name = 'sink'").fetchall()
        if not tables:
            return None
        if ("trace_meta",) not in tables:
            raise SinkRefused(f"{path} is a DuckDB file, but not one of an export")
        row = connection.execute("SELECT value FROM sink.trace_meta WHERE name = 'policy_digest'").fetchone()
    except duckdb.Error as error:
        if not path.exists():
            # Moved since it was looked for.
            return None
        if isinstance(error, duckdb.IOException) and "not a valid DuckDB database" not in str(error):
            raise SinkBusy(f"{path} is held by a writer", BUSY_DELAY_S) from None
        raise SinkRefused(f"{path} is no DuckDB file that can be read ({type(error).__name__})") from None
    finally:
        connection.close()
    return None if row is None else str(row[0])


def _jsonl_policy(path: Path) -> str | None:
    state = _with(path, ".state")
    try:
        with state.open("rb") as file:
            line = file.readline()
    except FileNotFoundError:
        if path.exists() and path.stat().st_size:
            raise SinkRefused(f"{path} holds something already, and no {state.name} is beside it") from None
        return None
    if not line.endswith(b"\n"):
        return None
    try:
        return str(orjson.loads(line)["policy"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        raise SinkRefused(f"{state} is no state of a JSONL export") from None


@contextmanager
def _jsonl_held(path: Path) -> Iterator[None]:
    """Hold the lock that a writer of the file holds for as long as it is open."""
    state = _with(path, ".state")
    if not state.exists():
        yield
        return
    descriptor = os.open(state, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise SinkBusy(f"{state} is held by a writer", BUSY_DELAY_S) from None
    finally:
        os.close(descriptor)


_KINDS: Final = {
    # DuckDB's writer takes the file by its name for every write and looks whose it is, so nothing need be held.
    "duckdb": SwitchableFiles(("",), _duckdb_policy, lambda _path: nullcontext()),
    # What the state says is last: until it has moved, the file that stands there is the old one's.
    "jsonl": SwitchableFiles(("", ".pricing", ".pricing.state", ".state"), _jsonl_policy, _jsonl_held),
}
"""By URL scheme, files."""

_SERVERS: Final[dict[str, str]] = {
    "clickhouse": "worker.stores.clickhouse",
    "delta": "worker.stores.directory",
    "parquet": "worker.stores.directory",
    "postgresql": "worker.stores.postgresql",
}
"""By URL scheme, the module of what is in a server or a directory of files, as text, so that a driver loads only when a
URL names it.

Sinks that are in neither table cannot be switched: their readers see records change one by one.
"""
