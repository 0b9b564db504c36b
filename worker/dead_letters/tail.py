"""The newest dead letters, off the end of their topic: however long that is, so much of it is read and no more."""

from collections.abc import Mapping
from typing import NamedTuple

from worker.dead_letters.letter import DeadLetter, letter_at
from worker.kafka import TopicPartition
from worker.settings import Settings
from worker.topic_scan import Span, open_scan
from worker.topics import own_topics


class TailLetter(NamedTuple):
    """A dead letter, and when it was last written."""

    letter: DeadLetter
    written_ms: int


class LetterTail(NamedTuple):
    """The letters that stand in what was read, the newest first; and how much was read of how much there is.

    Both count entries of the topic: a letter that was written again or taken back is more than one.
    """

    letters: tuple[TailLetter, ...]
    entries_read: int
    entries: int


async def read_tail(settings: Settings, entries_max: int) -> LetterTail:
    """Connect and read so many of the newest entries, shared out among the partitions. Raises BrokerFailed."""
    standing: dict[bytes, TailLetter] = {}
    async with open_scan(settings) as scan:
        spans = await scan.spans(await scan.partitions([own_topics(settings).dead_letters]))
        tails = _tails(spans, entries_max)
        async for place, messages in scan.read(tails):
            for message in messages:
                # All entries about one letter are in one partition, so whatever is the last here is so in the topic.
                key = message.key or b""
                standing.pop(key, None)
                if message.value is not None and (letter := letter_at(place, message)) is not None:
                    standing[key] = TailLetter(letter, message.timestamp)
    letters = sorted(standing.values(), key=_place_of)
    letters.sort(key=lambda kept: kept.written_ms, reverse=True)
    return LetterTail(tuple(letters), _entries(tails), _entries(spans))


def _place_of(kept: TailLetter) -> tuple[str, int, int]:
    return kept.letter.topic, kept.letter.partition, kept.letter.offset


def _entries(spans: Mapping[TopicPartition, Span]) -> int:
    return sum(span.length for span in spans.values())


def _tails(spans: Mapping[TopicPartition, Span], entries_max: int) -> dict[TopicPartition, Span]:
    """Cut the spans down to so many entries; what a short one leaves over goes to the longer ones."""
    tails = {}
    left = entries_max
    for number, (place, span) in enumerate(sorted(spans.items(), key=lambda item: item[1].length)):
        taken = min(span.length, left // (len(spans) - number))
        left -= taken
        tails[place] = span._replace(start=span.end - taken)
    return tails
