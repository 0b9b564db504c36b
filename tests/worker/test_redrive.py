"""Redriving without a broker: what becomes of a letter, in which order, and which letters are meant."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from typing import Any

import pytest

from projections.facts import decode_fact
from tests.worker.fakes.kafka import FakeMessage
from worker.dead_letters.box import KeptLetter, LetterFilter, count_letters
from worker.dead_letters.letter import dead_letter, decode_dead_letter, encode_dead_letter
from worker.generations.log import BoundTopic
from worker.kafka import TopicPartition
from worker.redrive import Redrive, Redriven
from worker.settings import Settings
from worker.settings_sections import LimitSettings
from worker.topic_scan import Original
from worker.topics import own_topics

RUN = {"id": "run-1", "workflowName": "w", "status": "running", "revision": 1, "startedAt": "2026-10-01T09:00:00Z"}
GOOD = json.dumps(RUN).encode()


class FakeScan:
    """Topics as dictionaries of what stands at which offset."""

    def __init__(self, logs: dict[str, dict[int, FakeMessage]]) -> None:
        self._logs = logs

    async def partition_counts(self, topics: Iterable[str]) -> dict[str, int]:
        return {topic: 1 for topic in topics if topic in self._logs}

    async def originals(self, partition: TopicPartition, offsets: Iterable[int]) -> AsyncIterator[Original]:
        for offset in sorted(offsets):
            message = self._logs[partition.topic].get(offset)
            yield Original(offset, message, None if message else "deleted")


class FakeWriter:
    """Writes down what was flushed, flush by flush."""

    def __init__(self) -> None:
        self.flushed: list[list[tuple[str, int, bytes, bytes | None]]] = []
        self._pending: list[tuple[str, int, bytes, bytes | None]] = []

    def append(self, topic: str, partition: int, key: bytes, value: bytes | None) -> None:
        self._pending.append((topic, partition, key, value))

    async def flush(self) -> None:
        self.flushed.append(self._pending)
        self._pending = []


def kept(topic: str, message: FakeMessage, reason: str = "unexpected_error", *, written_ms: int = 0) -> KeptLetter:
    letter = dead_letter(topic, 0, message, reason)
    return KeptLetter(letter, written_ms, encode_dead_letter(letter)[0], 2)


def redrive(
    letters: list[KeptLetter], logs: dict[str, dict[int, FakeMessage]], writer: FakeWriter | None, **limits: int
) -> list[Redriven]:
    settings = Settings(limits=LimitSettings(**limits))

    async def collect() -> list[Redriven]:
        facts_logs = [BoundTopic(own_topics(settings).facts, None, 4), BoundTopic("facts of another", None, 2)]
        machine = Redrive(settings, FakeScan(logs), facts_logs, writer)  # type: ignore[arg-type]
        return [result async for result in machine.run(letters)]

    return asyncio.run(collect())


def test_facts_are_durable_before_the_letter_is_taken_back_and_keep_the_place_of_their_message() -> None:
    message = FakeMessage(7, b"run-1", GOOD, timestamp=5)
    writer = FakeWriter()
    [result] = redrive([kept("workflow-runs", message)], {"workflow-runs": {7: message}}, writer)
    assert (result.verdict, result.facts, result.is_settled) == ("projected", 1, True)
    topics = own_topics(Settings())
    [facts, letters] = writer.flushed
    # Every generation of this projection gets them.
    assert [topic for topic, *_ in facts] == [topics.facts, "facts of another"]
    assert decode_fact(facts[0][2], facts[0][3] or b"").source == (0, 7)
    assert letters == [(topics.dead_letters, 2, b"workflow-runs/0/7", None)]


def test_a_message_refused_for_another_reason_now_renews_its_letter() -> None:
    message = FakeMessage(7, b"run-1", GOOD, timestamp=5)
    writer = FakeWriter()
    letter = kept("workflow-runs", message)
    [result] = redrive([letter], {"workflow-runs": {7: message}}, writer, message_bytes_max=10)
    assert (result.verdict, result.detail, result.is_settled) == ("refused", "message_too_large", False)
    [facts, letters] = writer.flushed
    assert facts == []
    [(_topic, partition, key, value)] = letters
    assert (partition, key) == (2, letter.key)
    assert decode_dead_letter(value or b"").reason == "message_too_large"


@pytest.mark.parametrize(
    ("stands", "words"),
    [
        ({}, "deleted by retention"),
        ({7: FakeMessage(7, b"run-1", GOOD, timestamp=6)}, "another message stands at its offset"),
        ({7: FakeMessage(7, b"run-1", GOOD + b" ", timestamp=5)}, "another message stands at its offset"),
    ],
)
def test_a_message_that_is_gone_or_another_keeps_its_letter(stands: dict[int, FakeMessage], words: str) -> None:
    writer = FakeWriter()
    letter = kept("workflow-runs", FakeMessage(7, b"run-1", GOOD, timestamp=5))
    [result] = redrive([letter], {"workflow-runs": stands}, writer)
    assert (result.verdict, result.is_settled) == ("gone", False)
    assert words in (result.detail or "")
    assert writer.flushed == [[], []]


def test_letters_of_our_own_topics_are_no_source_messages_and_stay() -> None:
    letter = kept("trace-projector-g1-trace-records", FakeMessage(1, b"k", b"v"))
    [result] = redrive([letter], {}, FakeWriter())
    assert (result.verdict, result.is_settled) == ("foreign", False)


def test_a_topic_that_is_gone_is_said() -> None:
    [result] = redrive([kept("workflow-runs", FakeMessage(1, b"k", b"v"))], {}, FakeWriter())
    assert (result.verdict, "does not exist any more" in (result.detail or "")) == ("gone", True)


def test_a_dry_run_writes_nothing_and_says_what_would_become_of_each() -> None:
    message = FakeMessage(7, b"run-1", GOOD, timestamp=5)
    [result] = redrive([kept("workflow-runs", message)], {"workflow-runs": {7: message}}, None)
    assert (result.verdict, result.facts) == ("projected", 1)


@pytest.mark.parametrize(
    ("wanted", "is_meant"),
    [
        (LetterFilter(), True),
        (LetterFilter(topics=frozenset({"workflow-runs"})), True),
        (LetterFilter(topics=frozenset({"transcripts"})), False),
        (LetterFilter(reasons=frozenset({"invalid_json"})), False),
        (LetterFilter(since_ms=10), True),
        (LetterFilter(since_ms=11), False),
        (LetterFilter(until_ms=10), False),
        (LetterFilter(names=frozenset({"workflow-runs/0/7"})), True),
        (LetterFilter(names=frozenset({"workflow-runs/0/8"})), False),
    ],
)
def test_every_condition_of_a_filter_has_to_hold(wanted: LetterFilter, *, is_meant: bool) -> None:
    assert wanted.holds(kept("workflow-runs", FakeMessage(7, b"k", b"v"), written_ms=10)) is is_meant


def test_letters_are_counted_by_topic_and_reason_the_most_frequent_first() -> None:
    def one(topic: str, reason: str, offset: int) -> Any:
        return kept(topic, FakeMessage(offset, None, b""), reason, written_ms=offset)

    counts = count_letters([one("a", "x", 1), one("a", "y", 2), one("b", "x", 3), one("a", "y", 9)])
    assert [(count.topic, count.reason, count.letters, count.oldest_ms, count.newest_ms) for count in counts] == [
        ("a", "y", 2, 2, 9),
        ("a", "x", 1, 1, 1),
        ("b", "x", 1, 3, 3),
    ]
