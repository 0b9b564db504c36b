"""Looking for transcript files: found, not written yet, or not to be had, and why; links are never followed."""

import fnmatch
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Final, NamedTuple

from worker.harnesses.contract import Harness, Place, Wanted
from worker.transcripts.files import PassedOver, TranscriptFile, TranscriptSource, open_transcript, transcript_file

_LINK: Final = "is a symbolic link"
# Whose a conversation is does not depend on the namespace; it only has to have one to be looked up in.
_ANY_NAMESPACE: Final = "any"
# No program nests its transcripts as deep as this; a tree that does is not walked to its end.
_DEPTH_MAX: Final = 64


class Found(NamedTuple):
    """Transcript files, at least one, and what was not looked into."""

    files: tuple[TranscriptFile, ...]
    passed_over: tuple[PassedOver, ...] = ()


class NotWritten(NamedTuple):
    """Nothing is there, yet: where it would be, at least one path (with ``*`` for what is not known of it)."""

    expected: tuple[Path, ...]
    passed_over: tuple[PassedOver, ...] = ()


class Unavailable(NamedTuple):
    """It cannot even be said whether there is anything."""

    reason: str


Discovery = Found | NotWritten | Unavailable


def default_places(harness: Harness, environ: Mapping[str, str]) -> list[Place] | Unavailable:
    """Give the places that a harness's own program uses."""
    if harness.default_places is None:
        return Unavailable("has no place of its own; name the files or their directory")
    try:
        return harness.default_places(environ)
    except ValueError as error:
        return Unavailable(str(error))


def chosen_places(harness: Harness, paths: Sequence[Path]) -> list[Place]:
    """Give the places for paths that somebody chose."""
    return [Place(path, harness.names) for path in paths]


def discover(places: Sequence[Place]) -> Discovery:
    """Look for transcript files in places; each file is listed once, in the order of their paths within a place."""
    assert places
    files: dict[Path, TranscriptFile] = {}
    passed_over: list[PassedOver] = []
    failures: list[str] = []
    for place in places:
        try:
            for found in _look(place):
                if isinstance(found, PassedOver):
                    passed_over.append(found)
                else:
                    files.setdefault(found.path, found)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            failures.append(f"{place.path}: {error.strerror or type(error).__name__}")
            passed_over.append(PassedOver(place.path, error.strerror or type(error).__name__))
    if files:
        return Found(tuple(files.values()), tuple(passed_over))
    if failures:
        return Unavailable("; ".join(failures))
    return NotWritten(tuple(place.path / "**" / name for place in places for name in place.names), tuple(passed_over))


def _look(place: Place) -> Iterator[TranscriptFile | PassedOver]:
    # What was chosen may be a link; from there on none is followed.
    root = place.path.resolve(strict=True)
    if not root.is_dir():
        status = root.stat()
        yield transcript_file(root.parent, PurePath(root.name), status)
        return
    with os.scandir(root) as entries:
        # Reading this directory may fail for the place as a whole; a deeper one is passed over alone.
        listed = sorted(entries, key=lambda entry: entry.name)
    yield from _walk(root, PurePath(), listed, place.names)


def _walk(
    root: Path, relative: PurePath, entries: Sequence["os.DirEntry[str]"], names: Sequence[str]
) -> Iterator[TranscriptFile | PassedOver]:
    for entry in entries:
        inner = relative / entry.name
        is_named = any(fnmatch.fnmatchcase(entry.name, name) for name in names)
        try:
            if entry.is_symlink():
                if is_named or entry.is_dir():
                    yield PassedOver(root / inner, _LINK)
            elif entry.is_dir(follow_symlinks=False):
                if len(inner.parts) > _DEPTH_MAX:
                    yield PassedOver(root / inner, "lies too deep")
                    continue
                with os.scandir(entry.path) as below:
                    listed = sorted(below, key=lambda entry: entry.name)
                yield from _walk(root, inner, listed, names)
            elif is_named and entry.is_file(follow_symlinks=False):
                yield transcript_file(root, inner, entry.stat(follow_symlinks=False))
        except FileNotFoundError:
            # It went away while the directory was read: then it is not there.
            continue
        except OSError as error:
            yield PassedOver(root / inner, error.strerror or type(error).__name__)


def identify(harness: Harness, file: TranscriptFile, namespace: str, native_id: str | None = None) -> TranscriptSource:
    """Find out whose transcript a file is; ValueError for nobody's, OSError for one that cannot be read."""
    with open_transcript(file) as stream:
        return harness.identify(stream, file.relative, namespace, native_id)


def find_conversation(harness: Harness, places: Sequence[Place], wanted: Wanted) -> Discovery:
    """Look for the files of one conversation, those where the hint points to first; the hint excludes nothing."""
    found = discover(places)
    if isinstance(found, Found):
        near_first = sorted(found.files, key=lambda file: not harness.is_near(file.relative, wanted))
        files = tuple(file for file in near_first if _holds(harness, file, wanted))
        if files:
            return found._replace(files=files)
    if isinstance(found, Unavailable):
        return found
    name = harness.expected(wanted) if harness.expected is not None else f"**/{harness.names[0]}"
    return NotWritten(tuple(place.path / name for place in places), found.passed_over)


def _holds(harness: Harness, file: TranscriptFile, wanted: Wanted) -> bool:
    try:
        return identify(harness, file, _ANY_NAMESPACE).nativeId == wanted.native_id
    except (OSError, ValueError):
        # A file of nobody's, or one that nobody may read, is not this conversation's either.
        return False
