"""Reading for pages: once for all who ask, a few at a time, and never on the event loop."""

import asyncio
import threading
from collections.abc import Collection, Iterator

import pytest

from worker.record_reader import Record
from worker.web import readings
from worker.web.readings import PagesBusy, Readings
from worker.web.run_list import Query

RUN = {"kind": "run", "id": "r", "runId": "r", "at": "2026-11-03T10:00:00Z", "workflowName": "w", "status": "failed"}


class Reader:
    """Counts its readings, and lets them wait."""

    def __init__(self) -> None:
        self.threads: list[str] = []
        self.go_on = threading.Event()

    def read(self, _kinds: Collection[str], _run_id: str | None = None) -> Iterator[Record]:
        self.threads.append(threading.current_thread().name)
        assert self.go_on.wait(30)
        yield RUN


def test_those_who_ask_at_once_share_a_reading_and_those_soon_after_its_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readings, "FRESH_S", 3_600.0)

    async def scene() -> None:
        reader = Reader()
        shared = Readings(reader)
        asking = [asyncio.create_task(shared.runs()) for _ in range(5)]
        await asyncio.sleep(0)
        reader.go_on.set()
        assert {(await asked).listed(Query()).rows[0].run_id for asked in asking} == {"r"}
        await shared.runs()
        assert len(reader.threads) == 1
        assert reader.threads[0].startswith("pages"), "another thread than that of the event loop"

    asyncio.run(scene())


def test_a_list_that_is_no_longer_fresh_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        monkeypatch.setattr(readings, "FRESH_S", 0.0)
        monkeypatch.setattr(readings, "FRESH_SHARE", 0)
        reader = Reader()
        reader.go_on.set()
        shared = Readings(reader)
        await shared.runs()
        await shared.runs()
        assert len(reader.threads) == 2

    asyncio.run(scene())


def test_too_many_different_pages_at_once_are_refused_and_served_later(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        monkeypatch.setattr(readings, "READINGS_MAX", 3)
        reader = Reader()
        shared = Readings(reader)
        asking = [asyncio.create_task(shared.run("run", f"r{number}", len)) for number in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(PagesBusy):
            await shared.run("run", "r3", len)
        reader.go_on.set()
        assert [await asked for asked in asking] == [1, 1, 1]
        assert await shared.run("run", "r3", len) == 1

    asyncio.run(scene())


def test_a_failure_reaches_all_who_wait_and_the_next_reading_begins_anew() -> None:
    async def scene() -> None:
        reader = Reader()
        reader.go_on.set()
        shared = Readings(reader)

        def fail(_records: list[Record]) -> None:
            raise LookupError

        asking = [asyncio.create_task(shared.run("run", "r", fail)) for _ in range(2)]
        for asked in asking:
            with pytest.raises(LookupError):
                await asked
        assert await shared.run("run", "r", len) == 1

    asyncio.run(scene())


def test_while_the_next_list_takes_too_long_the_one_before_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readings, "FRESH_S", 0.0)
    monkeypatch.setattr(readings, "FRESH_SHARE", 0)

    async def scene() -> None:
        reader = Reader()
        reader.go_on.set()
        shared = Readings(reader)
        first = await shared.runs()
        reader.go_on.clear()
        monkeypatch.setattr(readings, "WAIT_S", 0.05)
        assert await shared.runs() is first
        monkeypatch.setattr(readings, "WAIT_S", 30)
        reader.go_on.set()
        assert await shared.runs() is not first

    asyncio.run(scene())


def test_what_is_being_read_when_the_worker_stops_is_given_up() -> None:
    async def scene() -> None:
        reader = Reader()
        shared = Readings(reader)
        # Two are being read, and the third waits for a thread.
        asking = [asyncio.create_task(shared.run("run", f"r{number}", len)) for number in range(3)]
        async with asyncio.timeout(30):
            while len(reader.threads) < 2:
                await asyncio.sleep(0.01)
        shared.close()
        reader.go_on.set()
        for asked in asking:
            with pytest.raises(PagesBusy, match="stops"):
                await asked
        with pytest.raises(PagesBusy, match="stops"):
            await shared.runs()

    asyncio.run(scene())
