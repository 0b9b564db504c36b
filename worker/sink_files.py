"""What the sinks that are local files share: durable names, and the words for a file they must not write."""

import os
from pathlib import Path

from worker.sink import SinkRefused


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
        f"{path} was written under another policy (redaction, key, public_repos, or another application): read "
        "everything again with `export resync`, or make a new export with another name and path"
    )
