"""The project lane: every message has one outcome, and all output is durable before an offset is committed."""

import asyncio
import json
from collections.abc import Coroutine
from typing import Any

import pytest

from projections.facts import decode_fact, partition_of
from projections.sources import Projected
from tests.worker.fakes.driver import LaneDriver
from tests.worker.fakes.kafka import FakeBroker, FakeProducer
from tests.worlds.world import World
from worker.dead_letters.letter import DeadLetter, decode_dead_letter
from worker.kafka import TopicPartition
from worker.metrics import MessageBook, Metrics
from worker.roles import project
from worker.roles.project import ProjectLane
from worker.settings import Settings
from worker.settings_sections import LimitSettings
from worker.topics import own_topics

SECRET = "ZZSECRETZZ"
RUNS = TopicPartition("workflow-runs", 0)
RUN = {"id": "run-1", "workflowName": "w", "status": "running", "revision": 1, "startedAt": "2026-10-01T09:00:00Z"}


class Bench:
    """A project lane over a fake broker."""

    def __init__(self, *partitions: TopicPartition, **limits: Any) -> None:
        self.settings = Settings(partitions=4, limits=LimitSettings(**limits))
        self.broker = FakeBroker()
        self.metrics = Metrics()
        self.producers: list[FakeProducer] = []
        lane = ProjectLane(
            frozenset(partitions or (RUNS,)),
            self.settings,
            self.metrics,
            MessageBook(self.metrics),
            self._make_producer,
        )
        self.driver = LaneDriver(self.broker, lane)
        self.topics = own_topics(self.settings)

    def _make_producer(self) -> Any:
        self.producers.append(FakeProducer(self.broker))
        return self.producers[-1]

    def publish(self, *values: bytes | None, partition: TopicPartition = RUNS) -> None:
        for value in values:
            self.broker.logs[partition].append(value, key=b"run-1")

    def letters(self) -> list[DeadLetter]:
        values = self.broker.values(self.topics.dead_letters)
        return sorted(decode_dead_letter(value) for value in values if value is not None)

    def facts(self) -> list[bytes | None]:
        return self.broker.values(self.topics.facts)

    def count(self, name: Any, **labels: str | int) -> float:
        return self.metrics.value(name, topic=RUNS.topic, partition=RUNS.partition, **labels)


def run(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(story, 20))


def run_message(revision: int) -> bytes:
    return json.dumps({**RUN, "revision": revision}).encode()


def test_poison_between_good_messages_becomes_one_dead_letter_each_and_blocks_nobody() -> None:
    async def story() -> None:
        bench = Bench()
        bench.publish(run_message(1), b'{"kind":"run"', run_message(2), b"\xff\xfe", b"", b"[]", run_message(3))
        await bench.driver.open()
        assert await bench.driver.settle_all() == 7
        assert len(bench.facts()) == 3
        letters = bench.letters()
        assert [(letter.topic, letter.partition, letter.offset) for letter in letters] == [
            ("workflow-runs", 0, offset) for offset in (1, 3, 4, 5)
        ]
        assert [letter.byte_length for letter in letters] == [13, 2, 0, 2]
        assert [letter.reason for letter in letters] == [
            "invalid_json",
            "invalid_utf8",
            "invalid_json",
            "not_an_object",
        ]
        assert bench.broker.committed["group"][RUNS] == 7
        assert bench.count("consumed_messages") == 7
        assert bench.count("projected_messages") == 3
        assert bench.count("dead_lettered_messages", reason="invalid_json") == 2

    run(story())


def test_a_fault_of_the_projection_in_one_message_is_its_dead_letter_and_says_nothing_of_its_content(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(_source: str, _key: bytes, value: bytes, *_place: int, **_options: int) -> Projected:
        if SECRET.encode() in value:
            raise KeyError(value)
        return Projected([], "no_change")

    async def story() -> None:
        bench = Bench()
        bench.publish(b"{}", f'{{"a": "{SECRET}"}}'.encode(), b"{}")
        await bench.driver.open()
        await bench.driver.settle_all()
        assert [(letter.offset, letter.reason) for letter in bench.letters()] == [(1, "unexpected_error")]
        assert bench.count("ignored_messages", reason="no_change") == 2
        assert SECRET.encode() not in b"".join(filter(None, bench.broker.values(bench.topics.dead_letters)))
        assert SECRET.encode() not in bench.metrics.exposition()

    monkeypatch.setattr(project, "project_message", broken)
    run(story())


def test_parts_that_were_refused_inside_a_message_leave_a_partial_letter(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        bench = Bench()
        bench.publish(b"{}")
        await bench.driver.open()
        await bench.driver.settle_all()
        [letter] = bench.letters()
        assert (letter.reason, letter.is_partial) == ("invalid_gate", True)
        assert bench.count("partial_messages", reason="invalid_gate") == 1
        assert bench.count("ignored_messages", reason="nothing_to_project") == 1

    monkeypatch.setattr(
        project, "project_message", lambda *_a, **_k: Projected([], "nothing_to_project", ("invalid_gate",))
    )
    run(story())


def test_a_message_above_the_limit_is_not_even_parsed() -> None:
    async def story() -> None:
        bench = Bench(message_bytes_max=200)
        bench.publish(run_message(1), b"{" + b" " * 300 + b"}")
        await bench.driver.open()
        await bench.driver.settle_all()
        assert [(letter.offset, letter.reason) for letter in bench.letters()] == [(1, "message_too_large")]

    run(story())


def test_a_message_with_too_many_facts_is_a_dead_letter() -> None:
    async def story() -> None:
        snapshot = {**RUN, "activeSteps": {f"s{n}": _active_step(n) for n in range(5)}}
        bench = Bench(facts_per_message_max=3)
        bench.publish(json.dumps(snapshot).encode())
        await bench.driver.open()
        await bench.driver.settle_all()
        assert [letter.reason for letter in bench.letters()] == ["too_many_facts"]
        assert bench.facts() == []

    run(story())


def nested(depth: int) -> bytes:
    """Give a snapshot that is nested so deep."""
    return json.dumps(RUN).removesuffix("}").encode() + b',"x":' + b"[" * (depth - 1) + b"]" * (depth - 1) + b"}"


def native_line(line: str) -> bytes:
    source = {"harness": "claude-code", "namespace": "n", "nativeId": "c", "sourceId": "s", "format": "claude-code"}
    return json.dumps({"source": source, "byteOffset": 0, "line": line}).encode()


@pytest.mark.parametrize(
    ("limit", "at_limit", "beyond", "reason"),
    [
        ("transcript_line_bytes_max", native_line('{"a":"123"}'), native_line('{"a":"1234"}'), "line_too_long"),
        ("json_depth_max", native_line("[" * 11 + "]" * 11), native_line("[" * 12 + "]" * 12), "line_too_deep"),
        ("json_depth_max", nested(11), nested(12), "too_deep"),
    ],
)
def test_what_is_beyond_a_limit_of_the_settings_is_a_dead_letter_that_names_it(
    limit: str, at_limit: bytes, beyond: bytes, reason: str
) -> None:
    async def story() -> None:
        place = TopicPartition("transcripts" if reason.startswith("line") else "workflow-runs", 0)
        bench = Bench(place, **{limit: 11})
        bench.publish(at_limit, beyond, partition=place)
        await bench.driver.open()
        await bench.driver.settle_all()
        assert [letter.offset for letter in bench.letters() if letter.reason == reason] == [1]

    run(story())


def _active_step(number: int) -> dict[str, Any]:
    return {
        "kind": "legacy",
        "stepId": f"s{number}",
        "iterKey": f"s{number}:0",
        "attempt": 0,
        "startedAt": "2026-10-01T09:00:00Z",
    }


def test_facts_go_to_the_partition_of_their_aggregate_whatever_partition_the_message_came_from() -> None:
    async def story() -> None:
        messages = World(seed=5).messages
        sources = [TopicPartition(topic, 0) for topic in sorted({message.topic for message in messages})]
        bench = Bench(*sources)
        for message in messages:
            bench.broker.logs[TopicPartition(message.topic, 0)].append(message.value, key=message.key)
        await bench.driver.open()
        await bench.driver.settle_all(messages_max=17)
        placed = [
            (partition.partition, decode_fact(message.key, message.value).aggregate)
            for partition, log in bench.broker.logs.items()
            if partition.topic == bench.topics.facts
            for message in log.messages
            if message.key is not None and message.value is not None
        ]
        assert len(placed) > 20
        assert all(partition == partition_of(aggregate, 4) for partition, aggregate in placed)

    run(story())


def test_projecting_again_writes_the_same_keys_and_values() -> None:
    async def story() -> None:
        bench = Bench()
        bench.publish(run_message(1), run_message(2))
        await bench.driver.open()
        await bench.driver.settle_all()
        once = bench.broker.newest(bench.topics.facts)
        bench.broker.committed["group"].clear()
        await bench.driver.open()
        await bench.driver.settle_all(messages_max=1)
        assert bench.broker.newest(bench.topics.facts) == once

    run(story())


def test_a_flush_that_failed_sends_everything_again_and_only_then_commits() -> None:
    async def story() -> None:
        bench = Bench()
        bench.publish(*[run_message(number) for number in range(1, 9)])
        await bench.driver.open()
        [batch] = await bench.driver.poll()
        bench.driver.lane.accepted([batch])
        bench.driver.lane.handle(batch)
        bench.producers[-1].errors = [OSError("away")]
        with pytest.raises(OSError, match="away"):
            await bench.driver.lane.flush()
        assert bench.broker.commits == []
        await bench.driver.lane.flush()
        assert len(bench.broker.newest(bench.topics.facts)) == 8

    run(story())


def test_an_abandoned_batch_is_accounted_for_as_read_again() -> None:
    async def story() -> None:
        bench = Bench()
        bench.publish(run_message(1), run_message(2))
        await bench.driver.open()
        batches = await bench.driver.poll()
        bench.driver.lane.accepted(batches)
        bench.driver.lane.handle(batches[0])
        bench.driver.lane.abandoned(batches)
        await bench.driver.lane.close()
        assert bench.count("consumed_messages") == 2
        assert bench.count("ignored_messages", reason="read_again") == 2
        assert bench.count("projected_messages") == 0
        assert bench.producers[-1].is_abandoned

    run(story())
