"""What the sinks that are local files share: durable names, and the words for a file they must not write."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from worker.sink import SinkRefused

_BUFFER_BYTES: Final = 1024 * 1024


def sync_directory(path: Path) -> None:
    """Make what was created or renamed in a directory survive a power failure."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_directory(path: Path) -> None:
    """Refuse a file whose directory is not there; a mistyped path should not grow a tree."""
    if not path.parent.is_dir():
        raise SinkRefused(f"there is no directory {path.parent} for {path.name}")


def other_policy(path: Path) -> SinkRefused:
    """The refusal of a file whose records left under other rules than those of now."""
    return SinkRefused(
        f"{path} was written under another policy (redaction, key, filter, public_repos, price table, or another "
        "application): read everything again with `export resync`, or make a new export with another name and path"
    )


def write_all(descriptor: int, chunks: Iterable[bytes]) -> int:
    """Write chunks one after another from the start of a file; gives its size."""
    position = 0
    buffer = bytearray()
    for chunk in chunks:
        buffer += chunk
        if len(buffer) >= _BUFFER_BYTES:
            write_at(descriptor, buffer, position)
            position += len(buffer)
            buffer = bytearray()
    write_at(descriptor, buffer, position)
    return position + len(buffer)


def write_at(descriptor: int, data: bytes | bytearray, position: int) -> None:
    """Write all of the data at a place of a file."""
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, position)
        view, position = view[written:], position + written
