"""What `ship` remembers: how far each file went into which topic, in one small file that is replaced whole.

It holds paths and session ids, so it is as private as the transcripts: the file has mode 0600, its directory 0700.
"""

import contextlib
import fcntl
import json
import os
from collections.abc import Container, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from worker.stores.files import sync_directory
from worker.transcripts.files import TranscriptFile, TranscriptSource
from worker.transcripts.lines import Checkpoint

_VERSION: Final = 1


class ShipStateError(Exception):
    """A state file that cannot be used; `usage` tells a wrong choice of file from a failing file system."""

    def __init__(self, message: str, *, usage: bool = False) -> None:
        self.usage = usage
        super().__init__(message)


class Target(NamedTuple):
    """The topic that is shipped to, and the cluster that it is a topic of."""

    cluster: str
    topic: str


class Shipped(NamedTuple):
    """How far one file went: everything before the checkpoint is acknowledged."""

    path: str
    identity: tuple[int, int]
    source: TranscriptSource
    checkpoint: Checkpoint


class ShipState:
    """The state of one `ship`; locked against another one from its opening to its closing."""

    def __init__(self, path: Path, lock: int) -> None:
        self._path = path
        self._lock = lock
        self.target: Target | None = None
        self._shipped: dict[tuple[str, str, str], Shipped] = {}
        self._by_identity: dict[tuple[str, str, tuple[int, int]], Shipped] = {}
        # The offset of a message that each partition acknowledged: a topic that does not reach it is another topic.
        self.acknowledged: dict[int, int] = {}
        self._is_saved = False

    @classmethod
    def open(cls, path: Path) -> Self:
        """Lock and read a state file, which need not exist yet; ShipStateError when it cannot be had."""
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(path.with_name(f"{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise _failed("cannot open", path, error) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            state = cls(path, lock)
            if path.exists():
                state._load(json.loads(path.read_bytes()))
                state._is_saved = True
        except BlockingIOError:
            os.close(lock)
            raise ShipStateError(f"{path} is in use by another `ship`", usage=True) from None
        except OSError as error:
            os.close(lock)
            raise _failed("cannot read", path, error) from error
        except (ValueError, KeyError, TypeError):
            os.close(lock)
            raise ShipStateError(f"{path} is no state of `ship`; without it everything is shipped again") from None
        return state

    def close(self) -> None:
        """Let go of the lock."""
        os.close(self._lock)

    def aim(self, target: Target) -> None:
        """Bind the state to a topic; ShipStateError when it is about another."""
        if self.target not in (None, target):
            raise ShipStateError(
                f"{self._path} is about another topic or cluster; say --state FILE to keep one for each", usage=True
            )
        self.target = target

    def forget(self) -> None:
        """Begin again with every file."""
        self._is_saved = False
        self._shipped.clear()
        self._by_identity.clear()
        self.acknowledged.clear()

    def renamed_or_same(self, harness: str, namespace: str, file: TranscriptFile) -> Shipped | None:
        """Give what was shipped of the file that has this device and inode."""
        return self._by_identity.get((harness, namespace, file.identity))

    def at_path(self, harness: str, namespace: str, file: TranscriptFile) -> Shipped | None:
        """Give what was shipped of the file that had this path."""
        return self._shipped.get((harness, namespace, os.fspath(file.path)))

    def note(self, shipped: Shipped) -> None:
        """Remember how far a file went; under its new path only, when it was renamed."""
        scope = shipped.source.harness, shipped.source.namespace
        if self._shipped.get((*scope, shipped.path)) == shipped:
            return
        for old in (self._shipped.get((*scope, shipped.path)), self._by_identity.get((*scope, shipped.identity))):
            if old is not None:
                self._drop(old)
        self._is_saved = False
        self._shipped[(*scope, shipped.path)] = shipped
        self._by_identity[(*scope, shipped.identity)] = shipped

    def drop_gone(self, roots: Iterable[Path], present: Container[tuple[int, int]]) -> None:
        """Forget the files below some directories that are not there any more, under whatever name."""
        below = tuple(f"{root}{os.sep}" for root in roots)
        for shipped in list(self._shipped.values()):
            is_gone = shipped.identity not in present and not os.path.lexists(shipped.path)
            if is_gone and shipped.path.startswith(below):
                self._drop(shipped)

    def _drop(self, shipped: Shipped) -> None:
        self._is_saved = False
        scope = shipped.source.harness, shipped.source.namespace
        self._shipped.pop((*scope, shipped.path), None)
        if self._by_identity.get((*scope, shipped.identity)) is shipped:
            del self._by_identity[(*scope, shipped.identity)]

    def save(self) -> None:
        """Replace the state file if anything has changed; ShipStateError leaves it as it was."""
        assert self.target is not None
        if self._is_saved:
            return
        state = {
            "version": _VERSION,
            "cluster": self.target.cluster,
            "topic": self.target.topic,
            "acknowledged": {str(partition): offset for partition, offset in sorted(self.acknowledged.items())},
            "files": [_row(shipped) for shipped in self._shipped.values()],
        }
        temporary = self._path.with_name(f"{self._path.name}.tmp")
        try:
            # A path may hold bytes that are no text; the standard library writes them as escapes.
            _write(temporary, json.dumps(state, separators=(",", ":")).encode("ascii"))
            temporary.replace(self._path)
            sync_directory(self._path.parent)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise _failed("cannot write", self._path, error) from error
        self._is_saved = True

    def _load(self, state: Mapping[str, Any]) -> None:
        if state["version"] != _VERSION:
            raise ValueError("another version")
        self.target = Target(str(state["cluster"]), str(state["topic"]))
        self.acknowledged = {int(partition): int(offset) for partition, offset in state["acknowledged"].items()}
        for row in state["files"]:
            self.note(
                Shipped(
                    path=str(row["path"]),
                    identity=(int(row["device"]), int(row["inode"])),
                    source=TranscriptSource(**row["source"]),
                    checkpoint=Checkpoint(int(row["offset"]), str(row["head"]), str(row["tail"])),
                )
            )


def _row(shipped: Shipped) -> dict[str, Any]:
    device, inode = shipped.identity
    return {
        "path": shipped.path,
        "device": device,
        "inode": inode,
        "source": shipped.source._asdict(),
        **shipped.checkpoint._asdict(),
    }


def _write(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(descriptor)


def _failed(what: str, path: Path, error: OSError) -> ShipStateError:
    return ShipStateError(f"{what} {path}: {error.strerror or type(error).__name__}")
