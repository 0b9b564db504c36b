"""The page of dead letters: counts, the newest one by one, how to redrive them; and how seldom the broker is asked."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from tests.worker.web.serving import file_of, get, hostile_records, serving, settings_of
from worker.dead_letters.letter import DeadLetter
from worker.dead_letters.tail import LetterTail, TailLetter
from worker.settings import Settings
from worker.topic_scan import BrokerFailed
from worker.web import letters as letters_module
from worker.web.letters import LetterQuery, Letters, view_letters
from worker.web.run_list import ROWS_PER_PAGE

NOON_MS = 1_793_880_000_000
MARK = "<img src=x onerror=alert(1)>"


def letter(offset: int, topic: str = "runs", reason: str = "invalid_json", **fields: Any) -> TailLetter:
    values: dict[str, Any] = {"partition": 2, "timestamp_ms": NOON_MS, "field": "steps[].id", "byte_length": 4_096}
    known = {"projection_version": 7, "is_partial": False}
    return TailLetter(DeadLetter(topic=topic, offset=offset, reason=reason, **(values | known | fields)), NOON_MS + 1)


LETTERS = (
    letter(5),
    letter(4, reason="invalid_field", is_partial=True),
    letter(3, topic="gates", field=None, timestamp_ms=-1),
    letter(2, reason="corrupt_batch", last_offset=9),
)
TAIL = LetterTail(LETTERS, 7, 7)


class Broker:
    """Gives a tail, counts how often it was asked, and can be made to wait or to fail."""

    def __init__(self, tail: LetterTail = TAIL) -> None:
        self.tail = tail
        self.asked = 0
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.failure: BrokerFailed | None = None

    async def read(self, _settings: Settings, entries_max: int) -> LetterTail:
        self.asked += 1
        assert entries_max == letters_module.ENTRIES_MAX
        await self.go_on.wait()
        if self.failure is not None:
            raise self.failure
        return self.tail


# --------------------------------------------------------------------------------------------------------- what it says


def shown(tmp_path: Path, tail: LetterTail, path: str = "/dead-letters") -> str:
    settings = settings_of(file_of(tmp_path, hostile_records()))
    with serving(settings, letters=Letters(settings, Broker(tail).read)) as address:
        got = get(address + path)
    assert got.status == 200
    return " ".join(got.text.split())


def test_each_letter_is_told_by_place_reason_field_times_and_projection(tmp_path: Path) -> None:
    text = shown(tmp_path, TAIL)
    rows = [re.sub("<[^>]+>", " ", row).split() for row in re.findall(r"<tr> <th [^>]*place.*?</tr>", text)]
    sent = ["2026-11-05", "12:00:00"]
    assert rows[0] == ["runs/2/5", "invalid_json", "steps[].id", *sent, *sent, "4,096", "7"]
    assert rows[1][1:4] == ["invalid_field", "a", "part"]
    assert rows[2] == ["gates/2/3", "invalid_json", "–", "–", *sent, "4,096", "7"]
    assert rows[3][:4] == ["runs/2/2", "to", "9", "corrupt_batch"]
    assert "All 4 that there are" in text


def test_they_are_counted_by_reason_and_by_topic_the_most_frequent_first() -> None:
    page = view_letters(TAIL, LetterQuery(topic="runs"))
    assert page.reasons == [("invalid_json", 2), ("corrupt_batch", 1), ("invalid_field", 1)]
    assert page.topics == [("runs", 3), ("gates", 1)]
    assert [kept.letter.offset for kept in page.rows] == [5, 4, 2]


def test_what_redrives_them_is_the_command_for_those_that_are_shown(tmp_path: Path) -> None:
    text = shown(tmp_path, TAIL, "/dead-letters?reason=invalid_json&topic=runs")
    assert "trace-projector dead-letters redrive --topic runs --reason invalid_json --dry-run" in text
    assert "1 of these: invalid_json, runs" in text
    text = shown(tmp_path, TAIL, "/dead-letters?reason=%24%28reboot%29")
    assert "None of the newest is one of these" in text
    assert "redrive --dry-run" in text
    assert "redrive --reason" not in text, "a command is made of nothing that only an address said"


def test_the_rest_of_a_long_topic_is_said_to_be_left_out(tmp_path: Path) -> None:
    text = shown(tmp_path, TAIL._replace(entries_read=10_000, entries=123_456_789))
    assert "Of the newest 10,000 of 123,456,789 entries of their topic only" in text
    text = shown(tmp_path, LetterTail((), 10_000, 123_456_789))
    assert "None among the newest 10,000 of 123,456,789 entries" in text
    assert "Every message that was read could be projected" in shown(tmp_path, LetterTail((), 4, 4))


def test_many_letters_are_paged_and_the_pages_keep_what_was_chosen(tmp_path: Path) -> None:
    many = LetterTail(tuple(letter(number) for number in range(2 * ROWS_PER_PAGE + 1)), 200, 200)
    text = shown(tmp_path, many, "/dead-letters?reason=invalid_json&page=2")
    assert "Page 2 of 3" in text
    assert 'rel="next" href="/dead-letters?reason=invalid_json&amp;page=3"' in text
    assert len(view_letters(many, LetterQuery(page=99)).rows) == 1


def test_nothing_in_a_letter_is_markup(tmp_path: Path) -> None:
    hostile = LetterTail((letter(1, topic=MARK, reason=MARK, field=f"{MARK}\u202e"),), 1, 1)
    text = shown(tmp_path, hostile)
    assert "<img" not in text
    assert "\u202e" not in text


# ------------------------------------------------------------------------------------------------- when it cannot be


def test_without_a_broker_the_page_says_what_it_would_show_and_what_it_needs(tmp_path: Path) -> None:
    with serving(settings_of(file_of(tmp_path, hostile_records()))) as address:
        got = get(f"{address}/dead-letters")
        assert got.status == 200
        assert "kept in a topic of Kafka, and these pages were opened without one" in got.text
        assert 'href="/dead-letters"' in get(f"{address}/runs").text


def test_a_broker_that_is_away_is_said_and_asked_again(tmp_path: Path) -> None:
    settings = settings_of(file_of(tmp_path, hostile_records()), web_token="t")
    broker = Broker()
    broker.failure = BrokerFailed("no Kafka broker answers at kafka:9092")
    with serving(settings, letters=Letters(settings, broker.read)) as address:
        assert get(f"{address}/dead-letters").status == 401
        got = get(f"{address}/dead-letters", Authorization="Bearer t")
        assert (got.status, "no Kafka broker answers at kafka:9092." in got.text) == (503, True)
        broker.failure = None
        assert get(f"{address}/dead-letters", Authorization="Bearer t").status == 200


def test_those_who_ask_at_once_share_a_reading_and_those_soon_after_its_result() -> None:
    async def scene() -> None:
        broker = Broker()
        broker.go_on.clear()
        letters = Letters(Settings(), broker.read)
        asking = [asyncio.create_task(letters.tail()) for _ in range(5)]
        await asyncio.sleep(0)
        asking[0].cancel()
        await asyncio.sleep(0)
        broker.go_on.set()
        assert [await asked for asked in asking[1:]] == [TAIL] * 4
        assert await letters.tail() == TAIL
        assert broker.asked == 1

    asyncio.run(scene())


def test_what_is_no_longer_fresh_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(letters_module, "FRESH_S", 0.0)

    async def scene() -> None:
        broker = Broker()
        letters = Letters(Settings(), broker.read)
        await letters.tail()
        broker.tail = LetterTail((), 0, 0)
        assert await letters.tail() == LetterTail((), 0, 0)

    asyncio.run(scene())


def test_a_broker_that_does_not_deliver_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(letters_module, "READ_TIMEOUT_S", 0.01)

    async def scene() -> None:
        broker = Broker()
        broker.go_on.clear()
        with pytest.raises(BrokerFailed, match="did not give the dead letters"):
            await Letters(Settings(), broker.read).tail()

    asyncio.run(scene())


def test_what_is_being_read_when_the_worker_stops_is_given_up() -> None:
    async def scene() -> None:
        broker = Broker()
        broker.go_on.clear()
        letters = Letters(Settings(), broker.read)
        asking = asyncio.create_task(letters.tail())
        await asyncio.sleep(0)
        letters.close()
        with pytest.raises(BrokerFailed, match="stops"):
            await asking
        letters.close()

    asyncio.run(scene())
