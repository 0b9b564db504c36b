"""Redriving: the message of a dead letter is read again from its topic and projected as the project role would.

Order of durability: 1. the facts are acknowledged by every replica in sync; 2. the letter is taken back. A crash in
between leaves a letter whose message is projected once more, which changes nothing. A fact carries the place of its
message, and its version comes from the message alone, so the trace is what it would have been the first time.
"""

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import NamedTuple

from projections.facts import partition_of
from worker.dead_letters.box import Found, KeptLetter, LetterFilter, find_originals, read_letters
from worker.dead_letters.letter import DeadLetter, encode_dead_letter
from worker.direct_writer import open_producer
from worker.generations.binding import facts_logs
from worker.generations.log import BoundTopic
from worker.kafka import BatchWriter, TopicPartition
from worker.roles.project import Outcome, letter_of, project_outcome
from worker.settings import Settings
from worker.topic_scan import TopicScan, broker_errors, open_scan
from worker.topics import own_topics

# So many letters become durable together.
_LETTERS_PER_FLUSH = 500


class Redriven(NamedTuple):
    """What became of one letter.

    ``verdict`` is one of: ``projected`` and ``ignored`` (the letter is taken back), ``refused`` and ``partial`` (it
    stays, with the reason of now), ``gone`` (its message cannot be read any more: it stays) and ``foreign`` (its
    message is none of a source topic: it stays). ``detail`` is a bounded reason, or for ``gone`` a sentence.
    """

    kept: KeptLetter
    verdict: str
    detail: str | None = None
    facts: int = 0

    @property
    def is_settled(self) -> bool:
        """Whether the letter is taken back."""
        return self.verdict in ("projected", "ignored")


class Redrive:
    """Redrives letters into facts logs; without a writer it only says what would be."""

    def __init__(
        self, settings: Settings, scan: TopicScan, facts_logs: Sequence[BoundTopic], writer: BatchWriter | None
    ) -> None:
        self._settings = settings
        self._facts_logs = facts_logs
        self._scan = scan
        self._writer = writer
        self._topics = own_topics(settings)
        self._sources = {topic: source for source, topic in settings.source_topics.items()}

    async def run(self, letters: Sequence[KeptLetter]) -> AsyncIterator[Redriven]:
        """Redrive letters and yield what became of each, once it is durable. Raises BrokerFailed."""
        ours = [kept for kept in letters if kept.letter.topic in self._sources and kept.letter.last_offset is None]
        for kept in letters:
            if kept.letter.last_offset is not None:
                yield Redriven(kept, "gone", "its batch is corrupt: no client can read it")
                continue
            if kept.letter.topic not in self._sources:
                yield Redriven(kept, "foreign", "not_a_source_topic")
        pending: list[tuple[Redriven, DeadLetter | None]] = []
        async for found in find_originals(self._scan, ours):
            pending.append(self._project(found))
            if len(pending) >= _LETTERS_PER_FLUSH:
                for redriven in await self._settle(pending):
                    yield redriven
                pending = []
        for redriven in await self._settle(pending):
            yield redriven

    def _project(self, found: Found) -> tuple[Redriven, DeadLetter | None]:
        """Project a message again: what became of it, and the letter that it now deserves."""
        kept, message = found.kept, found.message
        if message is None:
            return Redriven(kept, "gone", found.gone), kept.letter
        topic, partition = kept.letter.topic, kept.letter.partition
        outcome = project_outcome(self._sources[topic], partition, message, self._settings.limits)
        letter = letter_of(TopicPartition(topic, partition), message, outcome)
        if outcome.dead is not None:
            return Redriven(kept, "refused", outcome.dead), letter
        self._collect(outcome)
        if letter is not None:
            return Redriven(kept, "partial", outcome.issues[0], len(outcome.facts)), letter
        if outcome.ignored is not None:
            return Redriven(kept, "ignored", outcome.ignored, len(outcome.facts)), None
        return Redriven(kept, "projected", None, len(outcome.facts)), None

    def _collect(self, outcome: Outcome) -> None:
        if self._writer is not None:
            for aggregate, key, value in outcome.facts:
                for log in self._facts_logs:
                    self._writer.append(log.topic, partition_of(aggregate, log.partitions), key, value)

    async def _settle(self, pending: Sequence[tuple[Redriven, DeadLetter | None]]) -> list[Redriven]:
        """Make facts durable, then take back or renew the letters; in this order."""
        if self._writer is not None:
            with broker_errors(self._settings):
                await self._writer.flush()
                for kept, value in _changed_letters(pending):
                    self._writer.append(self._topics.dead_letters, kept.partition, kept.key, value)
                await self._writer.flush()
        return [redriven for redriven, _letter in pending]


def _changed_letters(
    pending: Sequence[tuple[Redriven, DeadLetter | None]],
) -> Iterator[tuple[KeptLetter, bytes | None]]:
    for redriven, letter in pending:
        if letter is None:
            yield redriven.kept, None
        elif letter != redriven.kept.letter:
            yield redriven.kept, encode_dead_letter(letter)[1]


async def redrive(settings: Settings, wanted: LetterFilter, limit: int, *, dry_run: bool) -> list[Redriven]:
    """Connect and redrive at most so many of the letters that are meant, into all generations of this projection.

    Raises StartError when the settings' generation is none of them, or BrokerFailed.
    """
    async with open_scan(settings) as scan:
        letters = (await read_letters(scan, settings, wanted))[:limit]
        logs = await facts_logs(scan, settings)
        if dry_run or not letters:
            return [one async for one in Redrive(settings, scan, logs, None).run(letters)]
        async with open_producer(settings) as producer:
            return [one async for one in Redrive(settings, scan, logs, BatchWriter(producer)).run(letters)]
