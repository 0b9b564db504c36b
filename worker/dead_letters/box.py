"""The dead letters that there are, picked by topic, reason and time, and the messages that they are about."""

from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import NamedTuple

from worker.dead_letters.letter import DeadLetter, letter_at
from worker.kafka import Message, TopicPartition
from worker.settings import Settings
from worker.topic_scan import GONE, BrokerFailed, Original, TopicScan, open_scan
from worker.topics import own_topics


class KeptLetter(NamedTuple):
    """A dead letter as its topic holds it: when it was last written, and the key and partition that name it there."""

    letter: DeadLetter
    written_ms: int
    key: bytes
    partition: int

    @property
    def name(self) -> str:
        """The place of the message that it is about, as the commands take it."""
        return f"{self.letter.topic}/{self.letter.partition}/{self.letter.offset}"


class LetterFilter(NamedTuple):
    """Which letters are meant; an empty set and None mean any. Times are those at which a letter was written."""

    topics: frozenset[str] = frozenset()
    reasons: frozenset[str] = frozenset()
    since_ms: int | None = None
    until_ms: int | None = None
    names: frozenset[str] = frozenset()

    def holds(self, kept: KeptLetter) -> bool:
        """Whether a letter is meant."""
        return (
            (not self.names or kept.name in self.names)
            and (not self.topics or kept.letter.topic in self.topics)
            and (not self.reasons or kept.letter.reason in self.reasons)
            and (self.since_ms is None or kept.written_ms >= self.since_ms)
            and (self.until_ms is None or kept.written_ms < self.until_ms)
        )


class Found(NamedTuple):
    """A letter and what stands now at the place of its message; ``gone`` says in words why it is no longer there."""

    kept: KeptLetter
    message: Message | None
    gone: str | None


async def read_letters(scan: TopicScan, settings: Settings, wanted: LetterFilter) -> list[KeptLetter]:
    """Read the letters that stand, ordered by the place of their messages. Raises BrokerFailed."""
    topic = own_topics(settings).dead_letters
    partitions = await scan.partitions([topic])
    if not partitions:
        raise BrokerFailed(f"there is no topic {topic}: no worker of {settings.app_id} has been started here")
    standing: dict[bytes, KeptLetter] = {}
    async for place, messages in scan.read(await scan.spans(partitions)):
        for message in messages:
            key = message.key or b""
            if message.value is None:
                standing.pop(key, None)
            elif (letter := letter_at(place, message)) is not None:
                standing[key] = KeptLetter(letter, message.timestamp, key, place.partition)
    chosen = [kept for kept in standing.values() if wanted.holds(kept)]
    return sorted(chosen, key=lambda kept: (kept.letter.topic, kept.letter.partition, kept.letter.offset))


async def find_originals(scan: TopicScan, letters: Sequence[KeptLetter]) -> AsyncIterator[Found]:
    """Read the message of each letter again, from its topic by its offset. Raises BrokerFailed.

    A message that stands at the offset and has not the time and size that the letter names is another one.
    """
    by_partition: dict[TopicPartition, dict[int, KeptLetter]] = {}
    for kept in letters:
        place = TopicPartition(kept.letter.topic, kept.letter.partition)
        by_partition.setdefault(place, {})[kept.letter.offset] = kept
    counts = await scan.partition_counts({place.topic for place in by_partition})
    for place, at_offset in by_partition.items():
        if place.partition >= counts.get(place.topic, 0):
            for kept in at_offset.values():
                yield Found(kept, None, "its topic, or this partition of it, does not exist any more")
            continue
        async for original in scan.originals(place, at_offset):
            yield _found(at_offset[original.offset], original)


def _found(kept: KeptLetter, original: Original) -> Found:
    message = original.message
    if message is None:
        assert original.gone is not None
        return Found(kept, None, GONE[original.gone])
    if (message.timestamp, len(message.value or b"")) != (kept.letter.timestamp_ms, kept.letter.byte_length):
        return Found(kept, None, "another message stands at its offset now: the topic was made anew")
    return Found(kept, message, None)


async def list_letters(settings: Settings, wanted: LetterFilter) -> list[KeptLetter]:
    """Connect and read the letters that stand, in the order of their messages. Raises BrokerFailed."""
    async with open_scan(settings) as scan:
        return await read_letters(scan, settings, wanted)


async def look_at(
    settings: Settings, topic: str, partition: int, offset: int, *, with_message: bool
) -> tuple[KeptLetter | None, Found | None]:
    """Connect and find one letter, and its message if that is asked for. Raises BrokerFailed."""
    wanted = LetterFilter(names=frozenset({f"{topic}/{partition}/{offset}"}))
    async with open_scan(settings) as scan:
        letters = await read_letters(scan, settings, wanted)
        if letters and with_message:
            async for found in find_originals(scan, letters):
                return found.kept, found
    return (letters[0] if letters else None), None


class LetterCount(NamedTuple):
    """How many letters of one topic have one reason, and how many of them are about parts of a message."""

    topic: str
    reason: str
    letters: int
    partial: int
    oldest_ms: int
    newest_ms: int


def count_letters(letters: Iterable[KeptLetter]) -> list[LetterCount]:
    """Count letters by topic and reason, most frequent first."""
    groups: dict[tuple[str, str], list[KeptLetter]] = {}
    for kept in letters:
        groups.setdefault((kept.letter.topic, kept.letter.reason), []).append(kept)
    counts = [
        LetterCount(
            topic=topic,
            reason=reason,
            letters=len(group),
            partial=Counter(kept.letter.is_partial for kept in group)[True],
            oldest_ms=min(kept.written_ms for kept in group),
            newest_ms=max(kept.written_ms for kept in group),
        )
        for (topic, reason), group in groups.items()
    ]
    return sorted(counts, key=lambda count: (-count.letters, count.topic, count.reason))
