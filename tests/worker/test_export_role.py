"""The export lane: records become upserts, and the sink has them before an offset is committed."""

import asyncio
import json
from collections.abc import Coroutine, Sequence
from typing import Any, ClassVar

import pytest

from tests.worker.fakes.driver import LaneDriver
from tests.worker.fakes.kafka import FakeBroker, FakeProducer
from worker.dead_letters.letter import decode_dead_letter
from worker.exports import ExportPolicy
from worker.kafka import TopicPartition
from worker.lanes import RetryLater, StopWorkerError
from worker.metrics import Metrics
from worker.roles import export
from worker.roles.export import ExportLane
from worker.settings import Settings
from worker.settings_sections import LimitSettings
from worker.sink import SinkBusy, SinkRefused, Upsert
from worker.topics import own_topics

SETTINGS = Settings(partitions=2, limits=LimitSettings(batch_messages_max=8))
RECORDS = TopicPartition(own_topics(SETTINGS).records, 0)


class ListSink:
    """Keeps what it is given."""

    single_writer: ClassVar[bool] = False
    is_durable: ClassVar[bool] = True

    def __init__(self, *, is_empty: bool = False) -> None:
        self.batches: list[Sequence[Upsert]] = []
        self.errors: list[Exception] = []
        self.open_errors: list[Exception] = []
        self.write_takes_s = 0.0
        self.is_open = False
        self._is_empty = is_empty

    async def open(self) -> bool:
        if self.open_errors:
            raise self.open_errors.pop(0)
        self.is_open = True
        return self._is_empty

    async def write(self, batch: Sequence[Upsert]) -> None:
        assert self.is_open
        if self.errors:
            raise self.errors.pop(0)
        await asyncio.sleep(self.write_takes_s)
        self.batches.append(list(batch))

    async def close(self) -> None:
        self.is_open = False


class Bench:
    """An export lane over a fake broker and a sink that writes down what it gets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, is_empty: bool = False) -> None:
        self.broker = FakeBroker()
        self.sink = ListSink(is_empty=is_empty)
        self.metrics = Metrics()
        monkeypatch.setattr(export, "plain_producer", lambda _settings: FakeProducer(self.broker))
        lane = ExportLane(
            frozenset((RECORDS,)), SETTINGS, "plain", ExportPolicy.unredacted(origin="test"), self.sink, self.metrics
        )
        self.driver = LaneDriver(self.broker, lane)

    def publish(self, record_id: str, *, is_live: bool = True, kind: str = "run") -> None:
        value = json.dumps({"schema": "titan.trace/v1", "kind": kind, "id": record_id}).encode() if is_live else None
        self.broker.logs[RECORDS].append(value, key=record_id.encode(), headers=[("kind", kind.encode())])


def run(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(story, 20))


def test_a_batch_goes_to_the_sink_with_the_newest_version_of_each_record(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        bench = Bench(monkeypatch)
        bench.publish("a")
        bench.publish("b")
        bench.publish("a")
        bench.publish("c", is_live=False)
        await bench.driver.open()
        await bench.driver.settle_all()
        [batch] = bench.sink.batches
        assert [(item.id, item.offset, item.json is None) for item in batch] == [
            ("a", 2, False),
            ("b", 1, False),
            ("c", 3, True),
        ]
        assert bench.broker.committed["group"][RECORDS] == 4
        assert bench.metrics.value("written_upserts", export="plain") == 3

    run(story())


def test_a_write_that_failed_is_repeated_with_the_same_upserts_before_anything_is_committed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story() -> None:
        bench = Bench(monkeypatch)
        bench.publish("a")
        await bench.driver.open()
        [batch] = await bench.driver.poll()
        bench.driver.lane.handle(batch)
        bench.sink.errors = [ConnectionError(), SinkBusy("locked", 0.5)]
        with pytest.raises(ConnectionError):
            await bench.driver.lane.flush()
        with pytest.raises(RetryLater) as busy:
            await bench.driver.lane.flush()
        assert busy.value.delay_s == 0.5
        assert bench.broker.commits == []
        await bench.driver.lane.flush()
        assert [item.id for item in bench.sink.batches[0]] == ["a"]

    run(story())


def test_a_sink_rests_as_long_as_its_last_write_took_unless_a_batch_was_full(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        bench = Bench(monkeypatch)
        await bench.driver.open()
        assert bench.driver.lane.rest_until == 0
        bench.sink.write_takes_s = 0.05
        bench.publish("a")
        loop = asyncio.get_running_loop()
        began = loop.time()
        await bench.driver.settle_all()
        assert began + 0.099 <= bench.driver.lane.rest_until <= loop.time() + export._REST_MAX_S
        for record_id in ("b", "c", "d", "e"):
            bench.publish(record_id)
        await bench.driver.settle_all()
        assert bench.driver.lane.rest_until == 0

    run(story())


def test_a_sink_that_refuses_stops_the_worker_and_names_the_export(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        bench = Bench(monkeypatch)
        bench.publish("a")
        bench.sink.open_errors = [SinkBusy("locked", 0.1), SinkRefused("another policy")]
        with pytest.raises(RetryLater):
            await bench.driver.open()
        with pytest.raises(StopWorkerError, match="export plain: another policy"):
            await bench.driver.open()
        await bench.driver.open()
        bench.sink.errors = [SinkRefused("another policy")]
        with pytest.raises(StopWorkerError, match="export plain: another policy"):
            await bench.driver.settle()

    run(story())


@pytest.mark.parametrize(("is_empty", "expected"), [(True, ["a", "b"]), (False, ["b"])])
def test_a_sink_that_lost_everything_is_filled_from_the_beginning(
    monkeypatch: pytest.MonkeyPatch, is_empty: bool, expected: list[str]
) -> None:
    async def story() -> None:
        bench = Bench(monkeypatch, is_empty=is_empty)
        bench.publish("a")
        bench.publish("b")
        bench.broker.committed["group"][RECORDS] = 1
        await bench.driver.open()
        await bench.driver.settle_all()
        assert [item.id for batch in bench.sink.batches for item in batch] == expected

    run(story())


def test_what_cannot_be_redacted_does_not_leave_and_does_not_block(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        bench = Bench(monkeypatch)
        log = bench.broker.logs[RECORDS]
        bench.publish("a")
        log.append(b"not json", key=b"x", headers=[("kind", b"run")])
        log.append(b"{}", key=None)
        log.append(b'{"kind":"run","id":"other"}', key=b"y", headers=[("kind", b"run")])
        bench.publish("b")
        await bench.driver.open()
        await bench.driver.settle_all()
        assert [item.id for batch in bench.sink.batches for item in batch] == ["a", "b"]
        letters = [
            decode_dead_letter(value) for value in bench.broker.values(own_topics(SETTINGS).dead_letters) if value
        ]
        assert sorted((letter.offset, letter.reason) for letter in letters) == [
            (1, "invalid_json"),
            (2, "missing_key"),
            (3, "not_its_record"),
        ]
        assert bench.broker.committed["group"][RECORDS] == 5

    run(story())


def test_closing_lets_go_of_the_sink_and_forgets_what_was_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        bench = Bench(monkeypatch)
        bench.publish("a")
        await bench.driver.open()
        [batch] = await bench.driver.poll()
        bench.driver.lane.handle(batch)
        await bench.driver.lane.close()
        assert not bench.sink.is_open
        await bench.driver.open()
        await bench.driver.lane.flush()
        assert bench.sink.batches == []

    run(story())
