"""Source messages out of files: topic files with one message value a line, and native transcript files."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import orjson

from projections.decode import decode_json
from projections.errors import ProjectionError
from projections.sources import SOURCES
from projections.text import is_blank
from worker.harnesses import HARNESSES
from worker.harnesses.contract import Harness, Transcript
from worker.harnesses.discovery import Found, Unavailable, chosen_places, discover, identify
from worker.settings import Settings
from worker.settings_sections import LimitSettings
from worker.transcripts.files import PassedOver, open_transcript
from worker.transcripts.lines import TranscriptLine, says_nothing
from worker.transcripts.raw_lines import RawLine, read_lines

_TOMBSTONE_BYTES_MAX = 64 << 10


class SourceFileError(Exception):
    """A path that cannot be read as source messages; `usage` tells a wrong command from an unreadable file."""

    def __init__(self, message: str, *, usage: bool = False) -> None:
        self.usage = usage
        super().__init__(message)


class SourceFile(NamedTuple):
    """One file to read: the source it belongs to and, for a native transcript, whose that is."""

    path: Path
    source: str
    partition: int
    transcript: Transcript | None
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
    if is_blank(namespace) or (native_id is not None and is_blank(native_id)):
        raise SourceFileError("a namespace or native id must not be blank", usage=True)
    return _find_transcript_files(paths, HARNESSES[harness], namespace, native_id)


def _find_topic_files(paths: Iterable[Path], settings: Settings) -> tuple[list[SourceFile], list[PassedOver]]:
    names = {name: name for name in SOURCES} | {topic: source for source, topic in settings.source_topics.items()}
    files: list[SourceFile] = []
    passed_over: list[PassedOver] = []
    for path in paths:
        count_before = len(files)
        for candidate in _candidates(path):
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
    paths: Iterable[Path], harness: Harness, namespace: str, native_id: str | None
) -> tuple[list[SourceFile], list[PassedOver]]:
    files: list[SourceFile] = []
    passed_over: list[PassedOver] = []
    for path in paths:
        found = _discovered(path, harness)
        passed_over += found.passed_over
        for file in found.files:
            shown = path / file.relative if path.is_dir() else path
            try:
                transcript = Transcript(file, harness, identify(harness, file, namespace, native_id))
            except OSError as error:
                raise _unreadable(shown, error) from error
            except ValueError as error:
                # Among many, a file of nobody's (empty, or never more than begun) is no reason to read none.
                if shown == path:
                    raise SourceFileError(f"{path}: {error}") from error
                passed_over.append(PassedOver(shown, str(error)))
            else:
                files.append(SourceFile(shown, "transcripts", len(files), transcript, file.size_bytes))
    if native_id is not None and len({file.transcript.source for file in files if file.transcript}) < len(files):
        raise SourceFileError("--native-id names one conversation, and there are several files", usage=True)
    return files, passed_over


def _discovered(path: Path, harness: Harness) -> Found:
    found = discover(chosen_places(harness, [path]))
    if isinstance(found, Found):
        return found
    if isinstance(found, Unavailable):
        raise SourceFileError(found.reason)
    if not path.exists():
        raise SourceFileError(f"{path}: no such file or directory", usage=True)
    raise SourceFileError(f"{path}: holds no {' and no '.join(harness.names).replace('*', '')} file", usage=True)


def _candidates(path: Path) -> list[Path]:
    try:
        if path.is_dir():
            return sorted(found for found in path.glob("*.jsonl") if found.is_file())
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
    try:
        if file.transcript is not None:
            with open_transcript(file.transcript.file) as stream:
                lines = file.transcript.reader(stream, limits).lines(is_closed=True)
                for number, line in enumerate(lines, start=1):
                    yield _message(file, number, line)
        else:
            with file.path.open("rb") as stream:
                for number, raw in enumerate(read_lines(stream, limits.message_bytes_max), start=1):
                    yield _topic_message(file, number, raw)
    except OSError as error:
        raise _unreadable(file.path, error) from error


def _message(file: SourceFile, number: int, line: TranscriptLine | RawLine) -> SourceMessage:
    return SourceMessage(
        source=file.source,
        origin=str(file.path),
        line=number,
        partition=file.partition,
        offset=number - 1,
        key=None,
        value=line.value if isinstance(line, TranscriptLine) else None,
        size_bytes=line.size_bytes,
        refused=line.refused if isinstance(line, TranscriptLine) else None,
        skipped=line.skipped if isinstance(line, TranscriptLine) else None,
    )


def _topic_message(file: SourceFile, number: int, line: RawLine) -> SourceMessage:
    message = _message(file, number, line)
    if line.content is None:
        return message._replace(refused="message_too_large")
    # A file that is still written ends in the middle of a line; that is no error, and it is read when it is complete.
    if (nothing := says_nothing(line)) is not None:
        return message._replace(skipped=nothing)
    key = tombstone_key(line.content)
    return message._replace(value=line.content) if key is None else message._replace(key=key)


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
