"""Source messages out of files: topic files with one message value a line, and native transcript files.

Lines are read as raw bytes: only 0x0A ends one, and a byte offset counts raw bytes. No line is held that is longer than
the limit, whatever the file holds.
"""

import base64
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, NamedTuple

import orjson

from projections.decode import decode_json
from projections.errors import ProjectionError
from projections.sources import SOURCES
from worker.settings import LimitSettings, Settings
from worker.transcript_files import TranscriptSource, find_transcript_source

_CHUNK_BYTES = 1 << 20
_TOMBSTONE_BYTES_MAX = 64 << 10


class SourceFileError(Exception):
    """A path that cannot be read as source messages; `usage` tells a wrong command from an unreadable file."""

    def __init__(self, message: str, *, usage: bool = False) -> None:
        self.usage = usage
        super().__init__(message)


class SourceFile(NamedTuple):
    """One file to read: the source it belongs to and, for a native transcript, what its lines belong to."""

    path: Path
    source: str
    partition: int
    transcript: TranscriptSource | None
    size_bytes: int


class SourceMessage(NamedTuple):
    """One message of a source: what `project_message` takes, and where it stands.

    `origin` is the file's path, or the topic; `line` counts from 1 and is None for a message of a topic. `refused` is
    the reason code of a line that is no message at all (too long); `skipped` of one that is none yet.
    """

    source: str
    origin: str
    line: int | None
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    size_bytes: int
    refused: str | None = None
    skipped: str | None = None

    @property
    def place(self) -> str:
        """Where a person finds the message."""
        if self.line is None:
            return f"topic {self.origin} partition {self.partition} offset {self.offset}"
        return f"{self.origin}:{self.line}"


class RawLine(NamedTuple):
    """One physical line: its first byte's offset, its bytes without the newline (None beyond the limit), its length."""

    byte_offset: int
    content: bytes | None
    size_bytes: int
    terminated: bool


def read_lines(stream: IO[bytes], line_bytes_max: int) -> Iterator[RawLine]:
    """Yield the lines of a binary stream; an over-long one is passed over in pieces and yielded without its content."""
    byte_offset = 0
    while piece := stream.readline(line_bytes_max + 1):
        size = len(piece)
        content: bytes | None = piece
        while not piece.endswith(b"\n") and size > line_bytes_max:
            content = None
            piece = stream.readline(_CHUNK_BYTES)
            if not piece:
                break
            size += len(piece)
        terminated = piece.endswith(b"\n")
        bare = size - terminated
        yield RawLine(byte_offset, content if content is None else content[:bare], bare, terminated)
        byte_offset += size


class PassedOver(NamedTuple):
    """A file of a directory that is not read, and why."""

    path: Path
    reason: str


def find_source_files(
    paths: Iterable[Path],
    settings: Settings,
    *,
    harness: str | None,
    namespace: str | None,
    native_id: str | None = None,
) -> tuple[list[SourceFile], list[PassedOver]]:
    """Expand paths to the files to read, and list the `.jsonl` files of directories that are not.

    With `harness` every file is a native transcript of it; otherwise a file is named after its topic or source.
    Raises SourceFileError for a path that is missing, unreadable or holds nothing to read.
    """
    if harness is None:
        return _find_topic_files(paths, settings)
    if namespace is None:
        raise SourceFileError("transcript files need --namespace beside --harness", usage=True)
    return _find_transcript_files(paths, harness, namespace, native_id)


def _find_topic_files(paths: Iterable[Path], settings: Settings) -> tuple[list[SourceFile], list[PassedOver]]:
    names = {name: name for name in SOURCES} | {topic: source for source, topic in settings.source_topics.items()}
    files: list[SourceFile] = []
    passed_over: list[PassedOver] = []
    for path in paths:
        count_before = len(files)
        for candidate in _candidates(path, "*.jsonl"):
            source = names.get(candidate.name.removesuffix(".jsonl"))
            if source is None:
                passed_over.append(PassedOver(candidate, "not named after a topic"))
            else:
                files.append(SourceFile(candidate, source, len(files), None, _size(candidate)))
        if len(files) == count_before:
            known = ", ".join(f"{name}.jsonl" for name in sorted(names))
            what = "holds no topic file" if path.is_dir() else "is not named after a topic"
            hint = "for transcripts say --harness and --namespace"
            raise SourceFileError(f"{path}: {what} ({known}); {hint}", usage=True)
    order = list(SOURCES)
    return sorted(files, key=lambda file: order.index(file.source)), passed_over


def _find_transcript_files(
    paths: Iterable[Path], harness: str, namespace: str, native_id: str | None
) -> tuple[list[SourceFile], list[PassedOver]]:
    files: list[SourceFile] = []
    passed_over: list[PassedOver] = []
    for path in paths:
        candidates = _candidates(path, "**/*.jsonl")
        if not candidates:
            raise SourceFileError(f"{path}: holds no .jsonl file", usage=True)
        if native_id is not None and (files or len(candidates) > 1):
            raise SourceFileError("--native-id names one conversation, and there are several files", usage=True)
        for candidate in candidates:
            try:
                transcript = find_transcript_source(candidate, harness, namespace, native_id)
            except OSError as error:
                raise _unreadable(candidate, error) from error
            except ValueError as error:
                # Among many, a file of nobody's (empty, or never more than begun) is no reason to read none.
                if candidate == path:
                    raise SourceFileError(f"{path}: {error}") from error
                passed_over.append(PassedOver(candidate, str(error)))
            else:
                files.append(SourceFile(candidate, "transcripts", len(files), transcript, _size(candidate)))
    return files, passed_over


def _candidates(path: Path, pattern: str) -> list[Path]:
    try:
        if path.is_dir():
            return sorted(found for found in path.glob(pattern) if found.is_file())
        if not path.exists():
            raise SourceFileError(f"{path}: no such file or directory", usage=True)
    except OSError as error:
        raise _unreadable(path, error) from error
    return [path]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> SourceFileError:
    return SourceFileError(f"{path}: {error.strerror or type(error).__name__}")


def read_messages(file: SourceFile, limits: LimitSettings) -> Iterator[SourceMessage]:
    """Yield every message of a file in its order; SourceFileError when the file cannot be read."""
    line_bytes_max = limits.message_bytes_max if file.transcript is None else limits.transcript_line_bytes_max
    try:
        with file.path.open("rb") as stream:
            for number, line in enumerate(read_lines(stream, line_bytes_max), start=1):
                yield _message(file, number, line)
    except OSError as error:
        raise _unreadable(file.path, error) from error


def _message(file: SourceFile, number: int, line: RawLine) -> SourceMessage:
    message = SourceMessage(
        source=file.source,
        origin=str(file.path),
        line=number,
        partition=file.partition,
        offset=number - 1,
        key=None,
        value=None,
        size_bytes=line.size_bytes,
    )
    if line.content is None:
        return message._replace(refused="message_too_large" if file.transcript is None else "line_too_large")
    if not line.content.strip(b" \t\r"):
        return message._replace(skipped="blank_line")
    # A file that is still written ends in the middle of a line; that is no error, and it is read when it is complete.
    if not line.terminated and not _parses(line.content):
        return message._replace(skipped="unfinished_line")
    if file.transcript is not None:
        return message._replace(value=_transcript_value(file.transcript, line))
    key = tombstone_key(line.content)
    return message._replace(value=line.content) if key is None else message._replace(key=key)


def _parses(content: bytes) -> bool:
    try:
        decode_json(content.rstrip(b"\0"))
    except ProjectionError:
        return False
    return True


def tombstone_key(content: bytes) -> bytes | None:
    """Give the message key of a line `{"key": …, "value": null}`; None for a line that is a value."""
    # The projection parses every line anyway, so only what may be a tombstone is parsed here too.
    if len(content) > _TOMBSTONE_BYTES_MAX or b'"key"' not in content or b"null" not in content:
        return None
    try:
        parsed = decode_json(content)
    except ProjectionError:
        return None
    if not isinstance(parsed, dict) or parsed.keys() != {"key", "value"} or parsed["value"] is not None:
        return None
    key = parsed["key"]
    return key.encode("utf-8", "surrogatepass") if isinstance(key, str) else orjson.dumps(key)


def _transcript_value(transcript: TranscriptSource, line: RawLine) -> bytes:
    """Wrap one native line as the transcripts topic carries it."""
    assert line.content is not None
    message = {"source": transcript._asdict(), "byteOffset": line.byte_offset}
    try:
        return orjson.dumps(message | {"line": line.content.decode("utf-8")})
    except UnicodeDecodeError:
        return orjson.dumps(message | {"lineB64": base64.b64encode(line.content).decode("ascii")})
