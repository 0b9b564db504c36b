"""Files of an export: one per kind, the manifest last, and their verification.

Order of an export: 1. everything is read into the spill, and the directory stays as it is; 2. an older manifest goes,
then the files that it spoke of; 3. each file is written and synced; 4. the manifest takes its place in one step. So a
directory with a manifest is whole, and one without was interrupted and is written anew by the next run.

Only what may leave is in any of it, the spill included; files are for their owner alone.
"""

import contextlib
import fcntl
import hashlib
import importlib
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Final, NamedTuple, Protocol, Self

from projections.records import RECORD_KINDS
from worker.file_exports.manifest import (
    MANIFEST_BYTES_MAX,
    MANIFEST_NAME,
    FileEntry,
    Manifest,
    ManifestUnreadable,
    decode_manifest,
    encode_manifest,
)
from worker.file_exports.spill import PRICING_KIND, SPILL_NAME, FilesRefused, Row, Spill
from worker.sink import SinkFailed
from worker.stores.files import sync_directory

_MANIFEST_PARTIAL: Final = f"{MANIFEST_NAME}.partial"
_READ_BYTES: Final = 1024 * 1024


class Problem(NamedTuple):
    """What is wrong with one file of an export."""

    name: str
    problem: str


# ---------------------------------------------------------------------------------------------------------- formats


class FileFormat(Protocol):
    """How rows of one kind become a file. A new one is a class and a line in ``FORMATS``; it must write equal bytes."""

    suffix: ClassVar[str]

    def check(self) -> None:
        """Raise FilesRefused when its driver is missing."""
        ...

    def write(self, file: "MeasuredFile", kind: str, rows: Iterable[Row]) -> int:
        """Write rows, in the order of their ids, from the start of a file to its end; gives how many there were."""
        ...


class JsonlFormat:
    """One record a line, its own bytes."""

    suffix: ClassVar[str] = "jsonl"

    def check(self) -> None:
        """Need nothing."""

    def write(self, file: "MeasuredFile", kind: str, rows: Iterable[Row]) -> int:
        del kind
        count = 0
        for row in rows:
            file.write(row.json + b"\n")
            count += 1
        return count


class ParquetFormat:
    """Id, record and typed columns; equal rows give equal bytes for as long as the library stays the same."""

    suffix: ClassVar[str] = "parquet"

    def check(self) -> None:
        try:
            importlib.import_module("worker.stores.parquet")
        except ImportError:
            raise FilesRefused("the driver of parquet is missing; install trace-projector[parquet]") from None

    def write(self, file: "MeasuredFile", kind: str, rows: Iterable[Row]) -> int:
        from worker.stores.parquet import write_rows  # noqa: PLC0415  (an optional driver)

        try:
            return write_rows(file, kind, rows)
        except SinkFailed as error:
            raise FilesRefused(f"cannot write {kind}.{self.suffix}: {error}") from None


FORMATS: Final[dict[str, FileFormat]] = {"jsonl": JsonlFormat(), "parquet": ParquetFormat()}
_JSONL: Final = JsonlFormat()


class MeasuredFile:
    """A new file for its owner alone that knows its size and SHA-256 when it is closed."""

    def __init__(self, path: Path) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        self._file = os.fdopen(descriptor, "wb", buffering=_READ_BYTES)
        self._sha256 = hashlib.sha256()
        self.bytes = 0

    def write(self, data: bytes) -> int:
        self._sha256.update(data)
        self.bytes += len(data)
        return self._file.write(data)

    @property
    def sha256(self) -> str:
        """Give the digest of what was written so far."""
        return self._sha256.hexdigest()

    def close(self) -> None:
        """Make durable what was written."""
        with self._file:
            self._file.flush()
            os.fsync(self._file.fileno())


# -------------------------------------------------------------------------------------------------------- directory


class ExportDirectory:
    """A directory that one run writes at a time; anything in it that is none of an export is refused, never removed.

    ``policy_digest`` is that of the manifest to come: files that left under another policy are not replaced.
    Entering it raises FilesRefused.
    """

    def __init__(self, path: Path, policy_digest: str) -> None:
        self.path = path
        self._policy_digest = policy_digest
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with _said(self.path), contextlib.ExitStack() as stack:
            if not self.path.exists():
                self.path.mkdir(mode=0o700)
                stack.callback(_remove_if_empty, self.path)
            descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, descriptor)
            self._lock(descriptor)
            self._refuse_foreign()
            os.fchmod(descriptor, 0o700)
            # A run that was killed between naming its spill and taking the name away.
            (self.path / SPILL_NAME).unlink(missing_ok=True)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, error: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    def write(
        self, spill: Spill, kinds: Iterable[str], file_format: FileFormat, *, has_pricing: bool
    ) -> list[FileEntry]:
        """Write a file for each kind, empty ones too; what an older export left is gone before. Raises FilesRefused."""
        entries: list[FileEntry] = []
        with _said(self.path):
            self._clear()
            entries += [
                self._write_file(f"{kind}.{file_format.suffix}", kind, spill.rows(kind), file_format) for kind in kinds
            ]
            if has_pricing:
                entries.append(self._write_file(_PRICING_NAME, PRICING_KIND, spill.pricing_rows(), _JSONL))
        return entries

    def complete(self, manifest: Manifest) -> None:
        """Put the manifest in place, which says that everything is there. Raises FilesRefused."""
        with _said(self.path):
            sync_directory(self.path)
            partial = self.path / _MANIFEST_PARTIAL
            with partial.open("wb") as file:
                file.write(encode_manifest(manifest))
                file.flush()
                os.fsync(file.fileno())
            partial.replace(self.path / MANIFEST_NAME)
            sync_directory(self.path)

    def _write_file(self, name: str, kind: str, rows: Iterable[Row], file_format: FileFormat) -> FileEntry:
        file = MeasuredFile(self.path / name)
        with contextlib.closing(file):
            count = file_format.write(file, kind, rows)
        return FileEntry(name=name, kind=kind, rows=count, bytes=file.bytes, sha256=file.sha256)

    def _lock(self, descriptor: int) -> None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FilesRefused(f"{self.path} is being written by another export") from None

    def _refuse_foreign(self) -> None:
        names = {path.name for path in self.path.iterdir()}
        # Without a manifest, begun or complete, a file with one of our names is somebody's own.
        is_ours = not names.isdisjoint((MANIFEST_NAME, _MANIFEST_PARTIAL))
        foreign = names - (_OWN_NAMES if is_ours else {SPILL_NAME})
        if foreign:
            raise FilesRefused(
                f"{self.path} holds {len(foreign)} files that are none of an export: give another directory"
            )
        if MANIFEST_NAME not in names:
            return
        try:
            before = read_manifest(self.path)
        except ManifestUnreadable as error:
            raise FilesRefused(f"{MANIFEST_NAME} in {self.path} {error}: give another directory") from None
        if before.policy.digest != self._policy_digest:
            raise FilesRefused(
                f"{self.path} holds an export under another policy (redaction, key, filter, public_repos, price table, "
                "or another application): give another directory"
            )

    def _clear(self) -> None:
        # The beginning of a manifest tells the next run that what it finds was an export; then the manifest goes, and
        # from here on nobody takes what is left for a whole one.
        begun = self.path / _MANIFEST_PARTIAL
        begun.unlink(missing_ok=True)
        MeasuredFile(begun).close()
        sync_directory(self.path)
        (self.path / MANIFEST_NAME).unlink(missing_ok=True)
        sync_directory(self.path)
        for name in sorted(_OWN_NAMES - {_MANIFEST_PARTIAL}):
            (self.path / name).unlink(missing_ok=True)


_PRICING_NAME: Final = "cost.pricing.jsonl"
_OWN_NAMES: Final = frozenset(
    {
        MANIFEST_NAME,
        _MANIFEST_PARTIAL,
        SPILL_NAME,
        _PRICING_NAME,
        *(f"{kind}.{form.suffix}" for kind in RECORD_KINDS for form in FORMATS.values()),
    }
)


@contextlib.contextmanager
def _said(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise FilesRefused(f"cannot write {path}: {error.strerror or type(error).__name__}") from error


def _remove_if_empty(path: Path) -> None:
    if not any(path.iterdir()):
        path.rmdir()


# --------------------------------------------------------------------------------------------------- verification


def read_manifest(directory: Path) -> Manifest:
    """Read the manifest of an export. Raises ManifestUnreadable or OSError."""
    path = directory / MANIFEST_NAME
    if not stat.S_ISREG(path.lstat().st_mode):
        raise ManifestUnreadable("is no regular file")
    if path.lstat().st_size > MANIFEST_BYTES_MAX:
        raise ManifestUnreadable("is too large for a manifest")
    return decode_manifest(path.read_bytes())


def verify_files(directory: Path) -> list[Problem]:
    """Name each file of an export that is missing, truncated, altered or extra; nothing when it is whole.

    Raises FilesRefused for a directory that cannot be read.
    """
    try:
        names = {path.name for path in directory.iterdir()}
        if MANIFEST_NAME not in names:
            return [Problem(MANIFEST_NAME, "is missing: the export did not come to its end")]
        try:
            manifest = read_manifest(directory)
        except ManifestUnreadable as error:
            return [Problem(MANIFEST_NAME, str(error))]
        problems = [problem for entry in manifest.files if (problem := _problem_of(directory, entry)) is not None]
    except OSError as error:
        raise FilesRefused(f"cannot read {directory}: {error.strerror or type(error).__name__}") from error
    known = {entry.name for entry in manifest.files} | {MANIFEST_NAME}
    return problems + [Problem(name, "is extra: the manifest knows nothing of it") for name in sorted(names - known)]


def _problem_of(directory: Path, entry: FileEntry) -> Problem | None:
    path = directory / entry.name
    try:
        status = path.lstat()
    except FileNotFoundError:
        return Problem(entry.name, "is missing")
    if not stat.S_ISREG(status.st_mode):
        return Problem(entry.name, "is no regular file")
    if status.st_size < entry.bytes:
        return Problem(entry.name, f"is truncated: {status.st_size} of {entry.bytes} bytes")
    if status.st_size > entry.bytes:
        return Problem(entry.name, f"is altered: {status.st_size} bytes instead of {entry.bytes}")
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return None if digest == entry.sha256 else Problem(entry.name, "is altered: it has another SHA-256")
