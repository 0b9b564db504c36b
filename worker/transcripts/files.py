"""Transcript files below the directories that somebody chose, opened without ever leaving these."""

import errno
import os
import stat
from pathlib import Path, PurePath
from typing import IO, NamedTuple

_BUFFER_BYTES = 1 << 18


class TranscriptSource(NamedTuple):
    """The `source` of a transcripts message; the field names are those of the wire."""

    harness: str
    namespace: str
    nativeId: str  # noqa: N815  (the wire's name)
    sourceId: str  # noqa: N815  (the wire's name)
    format: str


class TranscriptFile(NamedTuple):
    """A regular file below a chosen root (an absolute directory without links in it), as it was when it was found."""

    root: Path
    relative: PurePath
    size_bytes: int
    modified_ns: int
    device: int
    inode: int

    @property
    def path(self) -> Path:
        """Where it is."""
        return self.root / self.relative

    @property
    def identity(self) -> tuple[int, int]:
        """What stays the same when it is renamed."""
        return self.device, self.inode


class PassedOver(NamedTuple):
    """A file or directory that is not read, and why."""

    path: Path
    reason: str


def transcript_file(root: Path, relative: PurePath, status: os.stat_result) -> TranscriptFile:
    """Describe a file by its status."""
    return TranscriptFile(root, relative, status.st_size, status.st_mtime_ns, status.st_dev, status.st_ino)


def open_transcript(file: TranscriptFile) -> IO[bytes]:
    """Open a file below its root; OSError when it, or a directory on the way, is a link by now or no regular file."""
    directory = os.open(file.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in file.relative.parent.parts:
            inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
            os.close(directory)
            directory = inner
        # A pipe that took the name would otherwise hold up the reader until somebody writes to it.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(file.relative.name, flags, dir_fd=directory)
    finally:
        os.close(directory)
    stream = os.fdopen(descriptor, "rb", buffering=_BUFFER_BYTES)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        stream.close()
        raise OSError(errno.EINVAL, "not a regular file")
    return stream
