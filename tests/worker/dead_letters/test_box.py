"""Dead letters as their topic holds them, with what somebody else wrote there."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any

import pytest
import structlog

from tests.worker.fakes.kafka import FakeMessage
from worker.dead_letters.box import LetterFilter, read_letters
from worker.dead_letters.letter import dead_letter, encode_dead_letter
from worker.kafka import TopicPartition
from worker.settings import Settings
from worker.topics import own_topics

SETTINGS = Settings()
PLACE = TopicPartition(own_topics(SETTINGS).dead_letters, 0)


class FakeScan:
    """The topic of dead letters with these messages in its only partition."""

    def __init__(self, messages: Sequence[FakeMessage]) -> None:
        self._messages = messages

    async def partitions(self, _topics: Iterable[str]) -> list[TopicPartition]:
        return [PLACE]

    async def spans(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, object]:
        return dict.fromkeys(partitions)

    async def read(self, spans: Mapping[TopicPartition, Any]) -> AsyncIterator[tuple[TopicPartition, Any]]:
        for place in spans:
            yield place, self._messages


@pytest.mark.parametrize("value", [b"", b"SECRET", b"\xff", b"[]", b"7", b'{"topic":"SECRET"}'])
def test_a_message_of_somebody_else_among_the_dead_letters_is_said_and_hides_no_letter(value: bytes) -> None:
    letter = dead_letter("workflow-runs", 0, FakeMessage(3, None, b"x"), "invalid_json")
    messages = [FakeMessage(0, b"SECRET", value), FakeMessage(1, *encode_dead_letter(letter))]
    with structlog.testing.capture_logs() as logs:
        kept = asyncio.run(read_letters(FakeScan(messages), SETTINGS, LetterFilter()))  # type: ignore[arg-type]
    assert [found.letter for found in kept] == [letter]
    [told] = logs
    assert (told["event"], told["topic"], told["offset"]) == ("dead_letter_not_read", PLACE.topic, 0)
    assert "SECRET" not in repr(told)
