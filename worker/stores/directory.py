"""Sinks that are a local directory: what one says of itself, who holds it, and how another takes its place.

Rules for editing: a directory gets its name when it is whole, and is known by its ``_trace_projector.json``; nothing
that is none of an export is written, replaced or removed. A switch notes first which directory goes in place, so that
doing it once more finishes one that was interrupted.
"""

import ctypes
import fcntl
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import orjson

from worker.sink import SinkBusy, SinkRefused
from worker.stores.files import check_directory, other_policy, sync_directory

META_NAME: Final = "_trace_projector.json"
BUSY_DELAY_S: Final = 0.5

_AT_CWD: Final = -100
_EXCHANGE: Final = 2


# ------------------------------------------------------------------------------------------------------- a directory


def make_directory(path: Path, meta: dict[str, Any], fill: Callable[[Path], None]) -> None:
    """Make a directory for its owner alone where nobody looks, fill it, and put it in place whole.

    Somebody who did the same meanwhile is let win. Raises SinkRefused when its parent is not there.
    """
    check_directory(path)
    fresh = Path(tempfile.mkdtemp(prefix=".trace-projector-", dir=path.parent))
    try:
        fill(fresh)
        write_meta(fresh, meta)
        _rename_unless_there(fresh, path)
    finally:
        if fresh.exists():
            shutil.rmtree(fresh)
    sync_directory(path.parent)


def _rename_unless_there(fresh: Path, path: Path) -> None:
    try:
        fresh.rename(path)
    except OSError:
        # An empty directory is replaced, one with something in it is looked at as any other.
        if not path.exists():
            raise


def write_meta(directory: Path, meta: dict[str, Any]) -> None:
    """Replace what a directory says of itself, in one step; several may do so at once."""
    data = orjson.dumps(meta, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    replace_file(directory / META_NAME, data, mark=f".{secrets.token_hex(4)}")


def replace_file(path: Path, data: bytes, mark: str = "") -> None:
    """Write a file for its owner alone under another name, make it durable, and give it its own.

    Only whoever holds the directory alone needs no ``mark`` of its own, and finds again what a crash left behind.
    """
    temporary = path.with_name(f".{path.name}{mark}.partial")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_directory(path.parent)


def read_meta(path: Path) -> dict[str, Any] | None:
    """Give what a directory of ours says of itself, None where there is none. Raises SinkRefused for another's."""
    try:
        meta = orjson.loads((path / META_NAME).read_bytes())
    except FileNotFoundError:
        if path.is_dir() and any(path.iterdir()):
            raise SinkRefused(f"{path} is there, but not of an export; give the export another path") from None
        return None
    except (NotADirectoryError, orjson.JSONDecodeError):
        raise SinkRefused(f"{path} is nothing of an export; give the export another path") from None
    if not isinstance(meta, dict) or not isinstance(meta.get("policy_digest"), str):
        raise SinkRefused(f"{path / META_NAME} is from another program or release")
    return meta


def admit(path: Path, meta: dict[str, Any] | None, expected: dict[str, Any]) -> dict[str, Any]:
    """Check what a directory says of itself; its schema may be older. Raises SinkRefused."""
    if meta is None:
        raise SinkRefused(f"{path} is gone: start again, and everything is read into a new one")
    if meta.get("format") != expected["format"]:
        raise SinkRefused(f"{path} is of an export to something else than {expected['format']}")
    version = meta.get("schema_version")
    if not isinstance(version, int) or version > expected["schema_version"]:
        raise SinkRefused(f"{path} has schema version {version}, from a newer release than this one")
    if meta["policy_digest"] != expected["policy_digest"]:
        raise other_policy(path)
    return meta


def lock_directory(path: Path, *, shared: bool = False) -> int:
    """Open a directory and hold it for as long as the descriptor is open. Raises SinkBusy while somebody else does."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise SinkBusy(f"{path} is held by another writer", BUSY_DELAY_S) from None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def has_name(descriptor: int, path: Path) -> bool:
    """Whether an open directory still is what a path names."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


@contextmanager
def held(path: Path, *, shared: bool = False) -> Iterator[int | None]:
    """Hold a directory for a while; nothing to hold where there is none."""
    try:
        descriptor = lock_directory(path, shared=shared)
    except FileNotFoundError:
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)


# --------------------------------------------------------------------------------------------------- put into place


def beside(location: str, word: str) -> str:
    """Give the location of what is filled beside a directory under a word."""
    return f"{location}.{word}"


def policy_of(location: str) -> str | None:
    """Tell under which policy a directory was written, None where there is none. Raises SinkRefused."""
    meta = read_meta(Path(location).absolute())
    return None if meta is None else str(meta["policy_digest"])


def switch(location: str, word: str, policy_digest: str, keep: str | None) -> None:
    """Put what was filled beside a directory in its place; what it replaces stands beside it as ``keep``, or is gone.

    Linux exchanges two names in one step; elsewhere there is a moment without the directory. May be done again after an
    interruption, and does nothing when it was done. Raises SinkBusy while a writer has either, and SinkRefused when
    nothing of this policy is there to be put in place.
    """
    final = Path(location).absolute()
    staged, plan = _beside(final, word), _beside(final, f"{word}.switching")
    if not plan.exists() and not staged.exists() and policy_of(str(final)) == policy_digest:
        return
    read_meta(final)
    with held(staged), held(final):
        if not plan.exists():
            if policy_of(str(staged)) != policy_digest:
                raise SinkRefused(f"{staged} is not what is to be put in place of {final.name}; fill it first")
            replace_file(plan, str(staged.stat().st_ino).encode())
        old = _put_in_place(final, staged, int(plan.read_bytes()))
        if old is not None:
            _set_aside(old, None if keep is None else _beside(final, keep))
        plan.unlink()
    sync_directory(final.parent)


def _put_in_place(final: Path, staged: Path, inode: int) -> Path | None:
    """Give the planned directory the name, unless it has it; gives where what it replaced is now, if anything was."""
    aside = _beside(final, "replaced")
    if not final.exists() or final.stat().st_ino != inode:
        if not final.exists():
            staged.rename(final)
        elif not _exchange(staged, final):
            final.rename(aside)
            staged.rename(final)
        sync_directory(final.parent)
    return next((path for path in (aside, staged) if path.exists()), None)


def _set_aside(old: Path, kept: Path | None) -> None:
    if kept is None:
        _remove(old)
        return
    _remove(kept)
    old.rename(kept)


def discard(location: str, word: str) -> bool:
    """Remove what stands beside a directory under a word; whether anything was there."""
    path = _beside(Path(location).absolute(), word)
    is_there = path.exists()
    if is_there:
        _remove(path)
        sync_directory(path.parent)
    return is_there


def _remove(path: Path) -> None:
    """Remove a directory of ours; what it says of itself goes last, so that an interrupted removal goes on."""
    if read_meta(path) is None:
        if path.exists():
            path.rmdir()
        return
    for entry in path.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        elif entry.name != META_NAME:
            entry.unlink()
    (path / META_NAME).unlink()
    path.rmdir()


def _beside(path: Path, word: str) -> Path:
    return path.with_name(f"{path.name}.{word}")


def _exchange(one: Path, other: Path) -> bool:
    """Let two directories change their names in one step; False where the system or the file system cannot."""
    if not sys.platform.startswith("linux"):
        return False
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    return rename is not None and rename(_AT_CWD, os.fsencode(one), _AT_CWD, os.fsencode(other), _EXCHANGE) == 0
