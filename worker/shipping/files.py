"""Which files `ship` has to read and from where on, and their lines in chunks; nothing here waits for a broker."""

import os
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final, NamedTuple

from worker.harnesses import HARNESSES
from worker.harnesses.contract import Place, Transcript
from worker.harnesses.discovery import Discovery, Found, NotWritten, Unavailable, discover
from worker.settings_sections import LimitSettings
from worker.shipping.sender import Delivery, Outgoing
from worker.shipping.state import Shipped, ShipState
from worker.transcripts.files import PassedOver, TranscriptFile, open_transcript
from worker.transcripts.lines import BEGINNING, Checkpoint, TranscriptLine, is_continued

REFUSED_SHOWN_MAX: Final = 20

NOTICES: Final[Mapping[str, str]] = {
    "truncated": "is shorter than what was shipped of it; it is shipped again from its beginning",
    "rewritten": "no longer begins with what was shipped of it; it is shipped again from its beginning",
    "replaced": "is another file than the one that was shipped; it is shipped from its beginning",
    "doubled": "has the source id of another file; where the two differ, only one line of two counts",
}


class Where(NamedTuple):
    """A line's place for whoever hears that it was refused: its file, its first byte's offset there, its length."""

    path: Path
    byte_offset: int
    size_bytes: int


class RefusedLine(NamedTuple):
    """A line that can be no message of the topic: where it stands and why, never what it says."""

    where: Where
    reason: str


class Selection(NamedTuple):
    """What is shipped: the places of each harness, in which namespace, and only one conversation's if it is named."""

    places: Mapping[str, Sequence[Place]]
    namespace: str
    native_id: str | None = None
    conversation: str | None = None


class ChunkLimits(NamedTuple):
    """How much is sent together; one line more is always allowed."""

    bytes: int
    lines: int


class _Look(NamedTuple):
    """How a file was when it was last looked at."""

    size_bytes: int
    modified_ns: int
    identity: tuple[int, int]


@dataclass
class ShipTally:
    """What happened: shipped lines, bytes and files, and what was not shipped, by reason code."""

    lines: int = 0
    bytes: int = 0
    files: set[Path] = field(default_factory=set)
    skipped: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    refused_lines: list[RefusedLine] = field(default_factory=list)
    noticed: Counter[str] = field(default_factory=Counter)
    passed_over: list[PassedOver] = field(default_factory=list)
    unfinished: int = 0

    def refuse(self, line: RefusedLine) -> None:
        """Count a line that was not shipped, and keep the place of the first ones."""
        self.refused[line.reason] += 1
        if len(self.refused_lines) < REFUSED_SHOWN_MAX:
            self.refused_lines.append(line)


class Work(NamedTuple):
    """A file with something to read: whose it is, and where to go on."""

    transcript: Transcript
    start: Checkpoint


@dataclass
class Chunk:
    """Messages that are sent together, and what is true of their files once all of them have arrived.

    ``bytes`` counts those of the messages, ``read_bytes`` those of the lines, messages or not.
    """

    rows: list[Outgoing] = field(default_factory=list)
    bytes: int = 0
    lines: int = 0
    read_bytes: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    refused: list[RefusedLine] = field(default_factory=list)
    shipped: list[Shipped] = field(default_factory=list)
    finished: list[tuple[TranscriptFile, int]] = field(default_factory=list)

    def add(self, path: Path, line: TranscriptLine) -> None:
        """Take one line."""
        self.lines += 1
        self.read_bytes += line.size_bytes + 1
        where = Where(path, line.byte_offset, line.size_bytes)
        if line.value is not None:
            self.rows.append(Outgoing(line.key, line.value, where))
            self.bytes += len(line.value)
        elif line.refused is not None:
            self.refused.append(RefusedLine(where, line.refused))
        else:
            assert line.skipped is not None
            self.skipped[line.skipped] += 1


class ShipFiles:
    """The chosen files, compared with what was shipped of them."""

    def __init__(
        self, selection: Selection, state: ShipState, limits: LimitSettings, say: Callable[[TranscriptFile, str], None]
    ) -> None:
        self._selection = selection
        self._state = state
        self._limits = limits
        self._say = say
        self._looks: dict[Path, _Look] = {}
        self._unfinished: set[Path] = set()
        self._passed_over: dict[Path, str] = {}
        self._owners: dict[str, Path] = {}
        self.discoveries: dict[str, Discovery] = {}
        self.tally = ShipTally()

    def scan(self) -> list[Work]:
        """Look at all places; gives the files of which something may have to be shipped."""
        is_first = not self.discoveries
        self.discoveries = {name: discover(places) for name, places in self._selection.places.items()}
        listed = [
            (name, file) for name, found in self.discoveries.items() if isinstance(found, Found) for file in found.files
        ]
        if is_first:
            self._state.drop_gone(self._roots(), {file.identity for _, file in listed})
        work = [item for name, file in listed if (item := self._work(name, file)) is not None]
        self._forget_others({file.path for _, file in listed})
        return work

    def _roots(self) -> set[Path]:
        """Give the roots that could be looked into: what is missing below them is gone."""
        return {
            place.path.resolve()
            for name, found in self.discoveries.items()
            if isinstance(found, Found)
            for place in self._selection.places[name]
            if place.path.is_dir()
        }

    def _forget_others(self, paths: set[Path]) -> None:
        self._looks = {path: look for path, look in self._looks.items() if path in paths}
        self._unfinished &= paths
        self._passed_over = {path: reason for path, reason in self._passed_over.items() if path in paths}
        self._owners = {source_id: path for source_id, path in self._owners.items() if path in paths}
        self.tally.passed_over = [PassedOver(path, reason) for path, reason in self._passed_over.items()]
        for found in self.discoveries.values():
            if isinstance(found, Found | NotWritten):
                self.tally.passed_over += found.passed_over

    def unavailable(self) -> dict[str, str]:
        """Give the harnesses of which nothing can be said, and why."""
        return {name: found.reason for name, found in self.discoveries.items() if isinstance(found, Unavailable)}

    def _work(self, name: str, file: TranscriptFile) -> Work | None:
        """Give what there is to do about a file; None when it is as it was, or nobody's, or not wanted."""
        if self._looks.get(file.path) == _look(file):
            return None
        try:
            with open_transcript(file) as stream:
                work = self._resumed(name, file, stream)
        except OSError as error:
            self._pass_over(file, error.strerror or type(error).__name__)
            return None
        except ValueError as error:
            self._pass_over(file, str(error))
            return None
        self._passed_over.pop(file.path, None)
        if self._selection.conversation not in (None, work.transcript.source.nativeId):
            self._looks[file.path] = _look(file)
            return None
        self._note_owner(work.transcript)
        return work

    def _pass_over(self, file: TranscriptFile, reason: str) -> None:
        # As it is now nobody can tell; when it changes it is looked at again.
        self._looks[file.path] = _look(file)
        self._passed_over[file.path] = reason

    def _resumed(self, name: str, file: TranscriptFile, stream: IO[bytes]) -> Work:
        """Find out whose a file is and where to go on; ValueError for nobody's."""
        harness, namespace, native_id = HARNESSES[name], self._selection.namespace, self._selection.native_id
        before = self._state.at_path(name, namespace, file)
        candidates = (self._state.renamed_or_same(name, namespace, file), before)
        known = [shipped for shipped in candidates if shipped is not None and shipped.checkpoint.offset > 0]
        if harness.split(file.relative) is not None:
            # A document is another file every time; what of it is new, its entries tell.
            source = harness.identify(stream, file.relative, namespace, native_id)
            start = next((shipped.checkpoint for shipped in known if shipped.source == source), BEGINNING)
            return Work(Transcript(file, harness, source), start)
        for shipped in known:
            if native_id in (None, shipped.source.nativeId) and is_continued(stream, shipped.checkpoint):
                return Work(Transcript(file, harness, shipped.source), shipped.checkpoint)
        source = harness.identify(stream, file.relative, namespace, native_id)
        if before is not None and before.checkpoint.offset > 0 and native_id in (None, before.source.nativeId):
            self._notice(file, _what_happened(file, before))
        return Work(Transcript(file, harness, source), BEGINNING)

    def _note_owner(self, transcript: Transcript) -> None:
        path, source_id = transcript.file.path, transcript.source.sourceId
        owner = self._owners.setdefault(source_id, path)
        if owner != path and not os.path.lexists(owner):
            self._owners[source_id] = path
        elif owner != path:
            self._notice(transcript.file, "doubled")

    def _notice(self, file: TranscriptFile, what: str) -> None:
        self.tally.noticed[what] += 1
        self._say(file, NOTICES[what])

    def chunks(self, work: Sequence[Work], limits: ChunkLimits) -> Generator[Chunk, None, None]:
        """Read files up to where they ended when they were looked at, in chunks that may hold lines of several."""
        chunk = Chunk()
        for item in work:
            file = item.transcript.file
            try:
                with open_transcript(file) as stream:
                    if not _is_as_found(stream, item):
                        continue
                    reader = item.transcript.reader(stream, self._limits, item.start)
                    for line in reader.lines(is_closed=False):
                        chunk.add(file.path, line)
                        if chunk.bytes >= limits.bytes or chunk.lines >= limits.lines:
                            chunk.shipped.append(_shipped(item, reader.checkpoint()))
                            yield chunk
                            chunk = Chunk()
                        if (
                            not item.transcript.is_document
                            and line.byte_offset + line.size_bytes >= file.size_bytes - 1
                        ):
                            break
                    end = reader.checkpoint()
            except OSError as error:
                self._pass_over(file, error.strerror or type(error).__name__)
                continue
            chunk.shipped.append(_shipped(item, end))
            chunk.finished.append((file, 0 if item.transcript.is_document else file.size_bytes - end.offset))
        yield chunk

    def settle(self, chunk: Chunk, delivery: Delivery) -> None:
        """Take note that a chunk has arrived, but for what was refused."""
        tally = self.tally
        tally.lines += len(chunk.rows) - len(delivery.refused)
        tally.bytes += sum(row.place.size_bytes for row in chunk.rows)
        tally.bytes -= sum(row.place.size_bytes for row in delivery.refused)
        tally.skipped += chunk.skipped
        for line in chunk.refused:
            tally.refuse(line)
        for row in delivery.refused:
            tally.refuse(RefusedLine(row.place, "message_too_large_for_topic"))
        tally.files.update(row.place.path for row in chunk.rows)
        for shipped in chunk.shipped:
            self._state.note(shipped)
        for partition, offset in delivery.acknowledged.items():
            self._state.acknowledged[partition] = max(offset, self._state.acknowledged.get(partition, 0))
        for file, rest_bytes in chunk.finished:
            self._looks[file.path] = _look(file)
            (self._unfinished.add if rest_bytes > 0 else self._unfinished.discard)(file.path)
        tally.unfinished = len(self._unfinished)


def _look(file: TranscriptFile) -> _Look:
    return _Look(file.size_bytes, file.modified_ns, file.identity)


def _shipped(item: Work, checkpoint: Checkpoint) -> Shipped:
    file = item.transcript.file
    return Shipped(os.fspath(file.path), file.identity, item.transcript.source, checkpoint)


def _what_happened(file: TranscriptFile, before: Shipped) -> str:
    if file.identity != before.identity:
        return "replaced"
    return "truncated" if file.size_bytes < before.checkpoint.offset else "rewritten"


def _is_as_found(stream: IO[bytes], item: Work) -> bool:
    """Say whether an open file is the one that was looked at; if it is not, the next look will tell what it is."""
    status = os.fstat(stream.fileno())
    if (status.st_dev, status.st_ino) != item.transcript.file.identity:
        return False
    return item.transcript.is_document or status.st_size >= item.start.offset
