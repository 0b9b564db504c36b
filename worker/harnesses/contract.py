"""What a harness says about its transcript files: where they are, what they are called, whose they are, how to read."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import IO, Any, Final, NamedTuple

from projections.errors import ProjectionError
from projections.sources.transcripts import parse_line
from projections.text import is_blank
from worker.settings_sections import LimitSettings
from worker.transcripts.files import TranscriptFile, TranscriptSource
from worker.transcripts.lines import (
    BEGINNING,
    Checkpoint,
    DocumentReader,
    LineReader,
    SourceOfLine,
    SplitDocument,
    TranscriptReader,
)
from worker.transcripts.raw_lines import read_lines

UUID: Final = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")

# The head of a file must say whose it is: more than this is not looked through for it.
_HEAD_BYTES: Final = 1 << 20
# Enough for the last complete line of any transcript within the limits.
_TAIL_BYTES: Final = 8 << 20


class Place(NamedTuple):
    """A directory (or one file) that was chosen to look into, and the patterns of the file names to look for there."""

    path: Path
    names: tuple[str, ...]


class Wanted(NamedTuple):
    """One conversation that is looked for; ``cwd`` is where its program was running: a hint, and no more."""

    native_id: str
    cwd: str | None = None


def _no_document(_name: PurePath) -> SplitDocument | None:
    return None


def _anywhere(_relative: PurePath, _wanted: Wanted) -> bool:
    return False


@dataclass(frozen=True)
class Harness:
    """One harness.

    ``names`` are the patterns of its transcripts' file names. ``identify`` finds out from an open file, and from where
    it lies below its place, whose transcript it is; ValueError for nobody's. ``default_places`` names the places that
    the program itself uses, ValueError for why it has none; without it the files are found by path only. ``split``
    gives, for a file's path, how to split a document; None for a file of lines. ``expected`` names the file in which a
    conversation would be, as a pattern below a place, and ``is_near`` whether a path is where the hint points to.
    """

    name: str
    names: tuple[str, ...]
    identify: Callable[[IO[bytes], PurePath, str, str | None], TranscriptSource]
    default_places: Callable[[Mapping[str, str]], list[Place]] | None = None
    split: Callable[[PurePath], SplitDocument | None] = _no_document
    source_of_line: SourceOfLine | None = None
    expected: Callable[[Wanted], str] | None = None
    is_near: Callable[[PurePath, Wanted], bool] = _anywhere


class Transcript(NamedTuple):
    """A transcript file, the harness that reads it, and whose it is."""

    file: TranscriptFile
    harness: Harness
    source: TranscriptSource

    def reader(self, stream: IO[bytes], limits: LimitSettings, start: Checkpoint = BEGINNING) -> TranscriptReader:
        """Make the reader of the open file."""
        split = self.harness.split(self.file.relative)
        if split is not None:
            return DocumentReader(stream, self.source, limits, start, split)
        return LineReader(stream, self.source, limits, start, self.harness.source_of_line)

    @property
    def is_document(self) -> bool:
        """Whether the file is written anew every time, and not only added to."""
        return self.harness.split(self.file.relative) is not None


def home(environ: Mapping[str, str], variable: str, directory: str) -> Path:
    """Give a program's own directory: what its variable says, else one below the home directory; ValueError if none."""
    if chosen := environ.get(variable):
        if not Path(chosen).is_dir():
            raise ValueError(f"{variable} names no directory")
        return Path(chosen)
    try:
        return Path.home() / directory
    except RuntimeError:
        raise ValueError("there is no home directory to look in") from None


def is_text(value: object) -> bool:
    """Say whether a value is a text with something in it."""
    return isinstance(value, str) and not is_blank(value)


def objects_from_start(stream: IO[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the objects on the complete lines at the head of a file; a line that is none tells nothing."""
    stream.seek(0)
    for line in read_lines(stream, _HEAD_BYTES):
        if line.byte_offset > _HEAD_BYTES:
            return
        if line.content is not None:
            yield from _objects(line.content)


def objects_from_end(stream: IO[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the objects on the lines at the end of a file, the last one first."""
    size = stream.seek(0, 2)
    stream.seek(max(0, size - _TAIL_BYTES))
    for line in reversed(stream.read().split(b"\n")):
        yield from _objects(line)


def _objects(line: bytes) -> Iterator[dict[str, Any]]:
    try:
        value = parse_line(line)
    except ProjectionError:
        # A torn or foreign line tells no id; the projection itself will account for it.
        return
    if isinstance(value, dict):
        yield value
