"""Transcript files as messages of the transcripts topic: the one way to read them, whole or on from where one stopped.

A file is read line by line, or it is a document that its harness writes anew every time and that is split into lines.
Either way reading goes on from a checkpoint, which says how far the file was read and proves that it is still the same.
"""

import base64
import contextlib
import os
from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import IO, Final, NamedTuple, Protocol

import orjson

from projections.errors import ProjectionError
from projections.ids import ConversationIdentity, conversation_ref
from projections.sources.transcripts import parse_line
from worker.settings_sections import LimitSettings
from worker.transcripts.files import TranscriptSource
from worker.transcripts.raw_lines import RawLine, read_lines

# Enough to tell two transcripts apart, or one from what it became when it was written anew from somewhere on.
_PROOF_BYTES: Final = 1_024
# What a parser says of a text that stops in its middle.
_UNFINISHED: Final = frozenset({"invalid_json"})


class Checkpoint(NamedTuple):
    """How far a file was read: up to the raw byte ``offset``, always a line's start.

    ``head`` and ``tail`` are digests of the first bytes and of the last ones before the offset. Of a document,
    ``offset`` counts the entries and ``tail`` is the digest of all of them.
    """

    offset: int
    head: str
    tail: str


BEGINNING: Final = Checkpoint(0, "", "")


class TranscriptLine(NamedTuple):
    """One line as a message: ``key`` and ``value`` as they travel, and where the line stands in its file.

    ``refused`` is the reason code of a line that can be no message, ``skipped`` of one that says nothing.
    """

    key: bytes
    value: bytes | None
    byte_offset: int
    size_bytes: int
    refused: str | None = None
    skipped: str | None = None


class DocumentEntry(NamedTuple):
    """One line that a document is split into; its byte offset is 0, so its source id is its own."""

    source_id: str
    ordinal: int | None
    line: bytes


SplitDocument = Callable[[bytes, TranscriptSource], list[DocumentEntry]]
"""Splits a document into its entries; ProjectionError for one that is not whole or not valid."""

SourceOfLine = Callable[[bytes, TranscriptSource], TranscriptSource]
"""Gives the source of one line of a file, where a line knows better than its file."""


class TranscriptReader(Protocol):
    """Reads one open file from a checkpoint on."""

    def lines(self, *, is_closed: bool) -> Iterator[TranscriptLine]:
        """Yield what follows; of a file that is not closed an unfinished end is left for another time."""

    def checkpoint(self) -> Checkpoint:
        """Give where to go on after the last line that was yielded."""


class Envelope:
    """Wraps the lines of one source as the transcripts topic carries them; ProjectionError for a source without ref."""

    def __init__(self, source: TranscriptSource, limits: LimitSettings) -> None:
        identity = ConversationIdentity(source.harness, source.namespace, source.nativeId)
        self.key = conversation_ref(identity).encode()
        self._fields = source._asdict()
        self._source = orjson.Fragment(orjson.dumps(self._fields))
        self._bytes_max = limits.message_bytes_max

    def wrap(self, line: bytes, byte_offset: int) -> bytes:
        """Wrap a line: as text, or as base64 when it is not UTF-8 or so full of escapes that it grew too large."""
        return self._message({"source": self._source, "byteOffset": byte_offset}, line)

    def wrap_entry(self, entry: DocumentEntry) -> bytes:
        """Wrap an entry of a document."""
        message: dict[str, object] = {"source": self._fields | {"sourceId": entry.source_id}, "byteOffset": 0}
        if entry.ordinal is not None:
            message["ordinal"] = entry.ordinal
        return self._message(message, entry.line)

    def _message(self, message: dict[str, object], line: bytes) -> bytes:
        with contextlib.suppress(UnicodeDecodeError):
            value = orjson.dumps(message | {"line": line.decode("utf-8")})
            if len(value) <= self._bytes_max:
                return value
        return orjson.dumps(message | {"lineB64": base64.b64encode(line).decode("ascii")})


class LineReader:
    """Reads a file that grows by lines."""

    def __init__(
        self,
        stream: IO[bytes],
        source: TranscriptSource,
        limits: LimitSettings,
        start: Checkpoint = BEGINNING,
        source_of_line: SourceOfLine | None = None,
    ) -> None:
        self._stream = stream
        self._source = source
        self._limits = limits
        self._source_of_line = source_of_line
        self._envelopes = {source: Envelope(source, limits)}
        self._end = start.offset

    def lines(self, *, is_closed: bool) -> Iterator[TranscriptLine]:
        self._stream.seek(self._end)
        for raw in read_lines(self._stream, self._limits.transcript_line_bytes_max, self._end):
            if not raw.terminated and not is_closed:
                return
            self._end = raw.end
            yield self._line(raw)

    def checkpoint(self) -> Checkpoint:
        return checkpoint_at(self._stream, self._end)

    def _line(self, raw: RawLine) -> TranscriptLine:
        envelope = self._envelopes[self._source]
        line = TranscriptLine(envelope.key, None, raw.byte_offset, raw.size_bytes)
        if raw.content is None:
            return line._replace(refused="line_too_large")
        if (nothing := says_nothing(raw)) is not None:
            return line._replace(skipped=nothing)
        if self._source_of_line is not None:
            try:
                envelope = self._envelope_of(self._source_of_line(raw.content, self._source))
            except ProjectionError as error:
                return line._replace(refused=error.reason)
        return line._replace(key=envelope.key, value=envelope.wrap(raw.content, raw.byte_offset))

    def _envelope_of(self, source: TranscriptSource) -> Envelope:
        envelope = self._envelopes.get(source)
        if envelope is None:
            envelope = self._envelopes[source] = Envelope(source, self._limits)
        return envelope


class DocumentReader:
    """Reads a file that is written anew every time, and of that what was not read before."""

    def __init__(
        self,
        stream: IO[bytes],
        source: TranscriptSource,
        limits: LimitSettings,
        start: Checkpoint,
        split: SplitDocument,
    ) -> None:
        self._stream = stream
        self._source = source
        self._limits = limits
        self._start = start
        self._split = split
        self._envelope = Envelope(source, limits)
        self._count = start.offset
        self._digest = sha256()
        self._tail = start.tail

    def lines(self, *, is_closed: bool) -> Iterator[TranscriptLine]:
        self._stream.seek(0)
        data = self._stream.read(self._limits.in_flight_bytes_max + 1)
        nothing = TranscriptLine(self._envelope.key, None, 0, len(data))
        if len(data) > self._limits.in_flight_bytes_max:
            yield nothing._replace(refused="document_too_large")
            return
        try:
            entries = self._split(data, self._source)
        except ProjectionError as error:
            # Most likely it is being written; whoever writes it will finish.
            if is_closed or error.reason not in _UNFINISHED:
                yield nothing._replace(refused=error.reason)
            return
        for entry in self._unread(entries):
            self._count += 1
            self._note(entry)
            line = nothing._replace(size_bytes=len(entry.line))
            if len(entry.line) > self._limits.transcript_line_bytes_max:
                yield line._replace(refused="line_too_large")
            else:
                yield line._replace(value=self._envelope.wrap_entry(entry))

    def _unread(self, entries: list[DocumentEntry]) -> list[DocumentEntry]:
        """Give the entries after those that were read, or all of them when these are not what they were."""
        if len(entries) >= self._count:
            for entry in entries[: self._count]:
                self._note(entry)
            if self._count == 0 or self._digest.hexdigest() == self._start.tail:
                return entries[self._count :]
        self._count = 0
        self._digest = sha256()
        return entries

    def _note(self, entry: DocumentEntry) -> None:
        self._digest.update(repr((entry.source_id, entry.ordinal, len(entry.line))).encode("utf-8", "surrogatepass"))
        self._digest.update(entry.line)
        self._tail = self._digest.hexdigest()

    def checkpoint(self) -> Checkpoint:
        return Checkpoint(self._count, "", self._tail)


def says_nothing(raw: RawLine) -> str | None:
    """Give the reason code of a line without any word in it: blank, nothing but NULs, or not finished yet."""
    assert raw.content is not None
    text = raw.content.rstrip(b"\0")
    if not text.strip(b" \t\r"):
        return "nul_line" if len(text) < len(raw.content) else "blank_line"
    if not raw.terminated and not _parses(text):
        return "unfinished_line"
    return None


def _parses(text: bytes) -> bool:
    try:
        parse_line(text)
    except ProjectionError:
        return False
    return True


def checkpoint_at(stream: IO[bytes], offset: int) -> Checkpoint:
    """Make the checkpoint of a byte offset of an open file."""
    if offset == 0:
        return BEGINNING
    proof_bytes = min(offset, _PROOF_BYTES)
    descriptor = stream.fileno()
    head, tail = (sha256(os.pread(descriptor, proof_bytes, place)) for place in (0, offset - proof_bytes))
    return Checkpoint(offset, head.hexdigest(), tail.hexdigest())


def is_continued(stream: IO[bytes], checkpoint: Checkpoint) -> bool:
    """Say whether an open file still begins with what was read up to a checkpoint of it."""
    return checkpoint_at(stream, checkpoint.offset) == checkpoint
