"""The fold lane: fenced output, restored state, and records that do not depend on how often either happened."""

import asyncio
import json
from collections.abc import Coroutine, Sequence
from random import Random
from typing import Any

import pytest
from aiokafka.errors import CorruptRecordException

from projections.errors import ProjectionError
from projections.facts import Fact, decode_fact, encode_fact, partition_of
from projections.fold import Change, Fold, FoldResult
from projections.sources import project_message
from tests.worker.fakes.driver import LaneDriver
from tests.worker.fakes.kafka import FakeBroker, FakeConsumer, FakeProducer
from tests.worlds.cluster import clean_pass, place
from tests.worlds.world import World
from worker.dead_letters.letter import decode_dead_letter
from worker.kafka import BrokenProducerError, Message, PartitionLostError, TopicPartition
from worker.lanes import SpoiltLaneError, StopWorkerError
from worker.metrics import Metrics
from worker.roles import fold
from worker.roles.fold import FoldLane, FoldRole, headers_of
from worker.settings import Settings
from worker.state import Held, MemoryFoldStore
from worker.topics import own_topics

COUNT = 2
SETTINGS = Settings(partitions=COUNT)
TOPICS = own_topics(SETTINGS)
FACTS = [TopicPartition(TOPICS.facts, number) for number in range(COUNT)]


class FakeReader:
    """Reads one partition of a fake broker without a group."""

    restored: list[TopicPartition]

    def __init__(self, broker: FakeBroker, restored: list[TopicPartition]) -> None:
        self._consumer = FakeConsumer(broker)
        self.restored = restored

    def assign(self, partitions: Sequence[TopicPartition]) -> None:
        self.restored += partitions
        self._consumer._positions = dict.fromkeys(partitions)

    async def start(self) -> None: ...
    async def stop(self) -> None: ...

    async def getmany(self, *, timeout_ms: int, max_records: int) -> dict[TopicPartition, list[Message]]:
        partitions = self._consumer.assignment()
        return await self._consumer.getmany(*partitions, timeout_ms=min(timeout_ms, 1), max_records=max_records)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._consumer, name)


class Bench:
    """Some workers' fold lanes over one fake broker that holds the facts of a world."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, is_fenced: bool = True) -> None:
        self.broker = FakeBroker()
        self.metrics = Metrics()
        self.is_fenced = is_fenced
        self.restored: list[TopicPartition] = []
        monkeypatch.setattr(fold, "transactional_producer", lambda _settings, name: FakeProducer(self.broker, name))
        monkeypatch.setattr(fold, "plain_producer", lambda _settings: FakeProducer(self.broker))
        monkeypatch.setattr(fold, "log_reader", lambda _settings: FakeReader(self.broker, self.restored))

    def lane(self, number: int, store: MemoryFoldStore | None = None) -> LaneDriver:
        lane = FoldLane(
            FACTS[number],
            SETTINGS,
            self.metrics,
            store or MemoryFoldStore(),
            asyncio.Semaphore(1),
            is_fenced=self.is_fenced,
            facts_max=1_000,
        )
        return LaneDriver(self.broker, lane)

    def publish(self, fact: Fact) -> None:
        key, value = encode_fact(fact)
        number = partition_of(fact.aggregate, COUNT)
        self.broker.logs[TopicPartition(TOPICS.facts, number)].append(value, key=key)

    def publish_world(self, world: World, seed: int) -> None:
        for message in place(world.messages, Random(seed), 2):
            try:
                facts = project_message(*message).facts
            except ProjectionError:
                continue
            for fact in facts:
                self.publish(fact)

    def records(self) -> dict[str, bytes]:
        return {(key or b"").decode(): value for key, value in self.broker.newest(TOPICS.records).items()}

    async def settle_all(self, lanes: Sequence[LaneDriver], messages_max: int = 1_000) -> None:
        # What one partition tells another comes back through the facts log.
        while sum([await lane.settle(messages_max) for lane in lanes]):
            pass


def run(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(story, 60))


def run_fact(revision: int, run_id: str = "run-1", status: str = "running") -> Fact:
    source = {
        "id": run_id,
        "workflowName": "w",
        "status": status,
        "revision": revision,
        "startedAt": "2026-10-01T09:00:00Z",
    }
    [fact] = project_message("workflow-runs", None, json.dumps(source).encode(), 0, revision).facts
    return fact


@pytest.mark.parametrize("is_fenced", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_any_batching_and_any_number_of_restarts_gives_the_records_of_one_clean_pass(
    monkeypatch: pytest.MonkeyPatch, seed: int, is_fenced: bool
) -> None:
    world = World(seed)

    async def story() -> None:
        bench = Bench(monkeypatch, is_fenced=is_fenced)
        bench.publish_world(world, seed)
        random = Random(seed)
        for _ in range(6):
            lanes = [bench.lane(number) for number in range(COUNT)]
            for lane in lanes:
                await lane.open()
                for _ in range(random.randrange(6)):
                    await lane.settle(random.choice([1, 3, 20]))
            # The workers vanish here: nothing is closed, and their state is gone.
        lanes = [bench.lane(number) for number in range(COUNT)]
        for lane in lanes:
            await lane.open()
        await bench.settle_all(lanes)
        assert bench.records() == clean_pass(world.messages).records

    run(story())


def test_reading_everything_again_emits_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        bench = Bench(monkeypatch)
        bench.publish_world(World(3), 3)
        lanes = [bench.lane(number) for number in range(COUNT)]
        for lane in lanes:
            await lane.open()
        await bench.settle_all(lanes)
        ends = {place: log.end for place, log in bench.broker.logs.items() if place.topic == TOPICS.records}
        for facts in FACTS:
            log = bench.broker.logs[facts]
            for message in list(log.messages):
                if message.value is not None:
                    log.append(message.value, key=message.key)
        await bench.settle_all(lanes)
        assert {place: log.end for place, log in bench.broker.logs.items() if place.topic == TOPICS.records} == ends

    run(story())


def test_a_worker_that_lost_its_partition_can_write_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        bench = Bench(monkeypatch)
        number = partition_of("run:run-1", COUNT)
        zombie = bench.lane(number)
        bench.publish(run_fact(1))
        await zombie.open()
        batches = await zombie.poll()
        zombie.lane.handle(batches[0])
        owner = bench.lane(number)
        await owner.open()
        bench.publish(run_fact(2, status="completed"))
        await owner.settle_all()
        newest = bench.records()
        with pytest.raises(PartitionLostError, match="ProducerFenced"):
            await zombie.lane.commit(zombie.consumer, {FACTS[number]: 1})
        assert bench.records() == newest
        assert bench.broker.committed["group"][FACTS[number]] == bench.broker.logs[FACTS[number]].end

    run(story())


def test_records_derived_facts_tombstones_and_the_offset_become_visible_together_or_not_at_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story() -> None:
        bench = Bench(monkeypatch)
        number = partition_of("run:run-1", COUNT)
        lane = bench.lane(number)
        bench.publish(run_fact(1))
        bench.publish(run_fact(2))
        await lane.open()
        [batch] = await lane.poll()
        lane.lane.handle(batch)
        producer = lane.lane._producer  # type: ignore[attr-defined]
        producer.errors = [OSError("away")]
        with pytest.raises(OSError, match="away"):
            await lane.lane.commit(lane.consumer, {batch.partition: batch.next_offset})
        assert bench.records() == {}
        assert bench.broker.commits == []
        await lane.lane.commit(lane.consumer, {batch.partition: batch.next_offset})
        assert list(bench.records()) == ["run-1"]
        assert bench.broker.commits == [{batch.partition: batch.next_offset}]

    run(story())


def test_a_failure_that_cannot_be_rolled_back_gives_the_lane_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        bench = Bench(monkeypatch)
        lane = bench.lane(partition_of("run:run-1", COUNT))
        bench.publish(run_fact(1))
        await lane.open()
        [batch] = await lane.poll()
        lane.lane.handle(batch)
        producer = lane.lane._producer  # type: ignore[attr-defined]
        producer.errors = [OSError("away")]
        monkeypatch.setattr(producer, "abort_transaction", _refuse)
        with pytest.raises(BrokenProducerError):
            await lane.lane.commit(lane.consumer, {batch.partition: batch.next_offset})

    run(story())


async def _refuse() -> None:
    raise ConnectionError


def test_superseded_facts_are_tombstoned_in_their_own_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        bench = Bench(monkeypatch)
        number = partition_of("execution:e", COUNT)
        lane = bench.lane(number)
        for revision in (1, 2):
            bench.publish(Fact("execution:e", "record", (revision,), {"revision": revision}))
        await lane.open()
        await lane.settle_all()
        tombstones = [message for message in bench.broker.logs[FACTS[number]].messages if message.value is None]
        assert [message.key for message in tombstones] == [bench.broker.logs[FACTS[number]].messages[0].key]

    run(story())


def test_a_partition_that_comes_back_with_nothing_changed_is_not_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        bench = Bench(monkeypatch)
        number = partition_of("run:run-1", COUNT)
        store = MemoryFoldStore()
        bench.publish(run_fact(1))
        lane = bench.lane(number, store)
        await lane.open()
        await lane.settle_all()
        await lane.lane.close()
        bench.restored.clear()
        lane = bench.lane(number, store)
        await lane.open()
        assert bench.restored == []
        bench.publish(run_fact(2, status="completed"))
        await lane.settle_all()
        assert b'"completed"' in bench.records()["run-1"]

    run(story())


def test_a_partition_that_somebody_else_has_worked_on_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        bench = Bench(monkeypatch)
        number = partition_of("run:run-1", COUNT)
        store = MemoryFoldStore()
        bench.publish(run_fact(1))
        lane = bench.lane(number, store)
        await lane.open()
        await lane.settle_all()
        await lane.lane.close()
        other = bench.lane(number)
        await other.open()
        bench.publish(run_fact(2))
        await other.settle_all()
        bench.restored.clear()
        await bench.lane(number, store).open()
        assert bench.restored == [FACTS[number]]

    run(story())


def test_state_that_is_ahead_of_what_was_committed_is_thrown_away(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        bench = Bench(monkeypatch)
        number = partition_of("run:run-1", COUNT)
        store = MemoryFoldStore()
        lane = bench.lane(number, store)
        bench.publish(run_fact(1))
        await lane.open()
        [batch] = await lane.poll()
        lane.lane.handle(batch)
        await lane.lane.close()
        assert store.take(number) is None
        lane = bench.lane(number, store)
        await lane.open()
        await lane.settle_all()
        assert list(bench.records()) == ["run-1"]

    run(story())


def test_a_fact_that_cannot_be_folded_is_left_out_and_the_others_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    apply = Fold.apply

    def faulty(self: Fold, items: Sequence[tuple[int, Fact]]) -> FoldResult:
        result = apply(self, items)
        if any(fact.aggregate == "run:bad" for _, fact in items):
            raise KeyError("bad")
        return result

    monkeypatch.setattr(Fold, "apply", faulty)

    async def story() -> None:
        bench = Bench(monkeypatch)
        good = [f"good-{number}" for number in range(20)]
        number = partition_of("run:bad", COUNT)
        beside = [name for name in good if partition_of(f"run:{name}", COUNT) == number]
        for name in [beside[0], "bad", *beside[1:]]:
            bench.publish(run_fact(1, name))
        lane = bench.lane(number)
        await lane.open()
        [batch] = await lane.poll()
        with pytest.raises(SpoiltLaneError):
            lane.lane.handle(batch)
        lane.lane.abandoned([batch])
        await lane.lane.close()
        await lane.open()
        await lane.settle_all()
        assert sorted(bench.records()) == sorted(beside)
        [letter] = [decode_dead_letter(value) for value in bench.broker.values(TOPICS.dead_letters) if value]
        assert (letter.topic, letter.offset, letter.reason) == (TOPICS.facts, 1, "fold_failed")

    run(story())


def test_a_foreign_message_in_the_facts_log_is_buried(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        bench = Bench(monkeypatch)
        number = partition_of("run:run-1", COUNT)
        bench.broker.logs[FACTS[number]].append(b"hello", key=b"hello")
        bench.publish(run_fact(1))
        lane = bench.lane(number)
        await lane.open()
        await lane.settle_all()
        assert list(bench.records()) == ["run-1"]
        [letter] = [decode_dead_letter(value) for value in bench.broker.values(TOPICS.dead_letters) if value]
        assert (letter.offset, letter.reason) == (0, "invalid_fact")
        # It is there at the next restore too.
        await bench.lane(number).open()

    run(story())


def test_a_facts_log_that_was_made_anew_stops_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        bench = Bench(monkeypatch)
        bench.broker.committed["group"][FACTS[0]] = 100
        bench.broker.logs[FACTS[0]].end = 5
        with pytest.raises(StopWorkerError, match="ends at offset 5, and 100 was committed"):
            await bench.lane(0).open()

    run(story())


@pytest.mark.parametrize("error", [CorruptRecordException(), UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid")])
def test_a_facts_log_that_cannot_be_read_stops_the_worker_instead_of_making_another_state_of_it(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    async def story() -> None:
        bench = Bench(monkeypatch)
        bench.broker.committed["group"][FACTS[0]] = 3
        log = bench.broker.logs[FACTS[0]]
        for _message in range(3):
            log.append(None, key=b"gone")
        log.corrupt, log.corrupt_error = frozenset((1,)), error
        with pytest.raises(StopWorkerError, match="cannot be read, at or behind offset 0: mend it"):
            await bench.lane(0).open()

    run(story())


def test_a_store_forgets_partitions_that_went_elsewhere() -> None:
    store = MemoryFoldStore()
    for number in range(3):
        store.keep(number, Held(Fold(generation=1), number))
    store.forget_others(frozenset((1,)))
    kept = store.take(1)
    assert kept is not None
    assert kept.position == 1
    assert [store.take(number) for number in range(3)] == [None, None, None]


def test_what_was_decided_against_a_fact_is_a_gauge_over_all_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        bench = Bench(monkeypatch)
        role = FoldRole(SETTINGS, bench.metrics, MemoryFoldStore(), is_fenced=True)
        lanes = [LaneDriver(bench.broker, lane) for lane in role.make_lanes(frozenset(FACTS))]
        for number in range(4):
            for name in ("a", "b"):
                body = {"body": {"eventId": name, "kind": "prepare"}, "digest": name}
                bench.publish(Fact(f"execution:e{number}", "transition:0", (), body, (0, number)))
        for lane in lanes:
            await lane.open()
        await bench.settle_all(lanes)
        found = {
            sample.labels["finding"]: sample.value
            for family in bench.metrics.families()
            for sample in family.samples
            if sample.name == "trace_projector_fold_findings"
        }
        assert (found["event_conflicts"], found["refused_transitions"]) == (4, 4)

    run(story())


def test_the_split_of_cache_writes_is_in_the_headers_of_its_cost() -> None:
    change = Change("cost", "cost:response:h:n:c:r", None, b"{}", {"ttl5m": 1, "ttl1h": 2})
    assert headers_of(change) == [("kind", b"cost"), ("cache-write-split", b'{"ttl5m":1,"ttl1h":2}')]


def test_the_headers_of_a_tombstone_let_its_id_be_redacted() -> None:
    change = Fold(generation=1).apply([(0, run_fact(1))]).changes[0]
    assert headers_of(change) == [("kind", b"run")]
    artifact = change._replace(kind="artifact", repo="acme/docs")
    assert headers_of(artifact) == [("kind", b"artifact")]
    assert headers_of(artifact._replace(record=None)) == [("kind", b"artifact"), ("repo", b"acme/docs")]


def test_facts_read_back_from_the_log_are_the_facts_that_were_written() -> None:
    fact = run_fact(7)
    assert decode_fact(*encode_fact(fact)) == fact


def test_a_run_that_is_called_like_its_pull_request_shares_no_key_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "pr:acme/app#7"
    seen = {"artifactKind": "pr", "repo": "acme/app", "number": 7}
    step = {"stepId": "s", "iteration": 0, "completedAt": "2026-10-01T09:00:01Z"}
    source = {"id": name, "workflowName": "w", "status": "running", "revision": 1, "startedAt": "2026-10-01T09:00:00Z"}
    source["stepResults"] = {"s": {**step, "data": {"titan.trace.artifacts": [seen]}}}

    async def story() -> None:
        bench = Bench(monkeypatch)
        for one in project_message("workflow-runs", None, json.dumps(source).encode(), 0, 0).facts:
            bench.publish(one)
        lanes = [bench.lane(number) for number in range(COUNT)]
        for lane in lanes:
            await lane.open()
        await bench.settle_all(lanes)
        # What compaction leaves: the newest message of each key.
        kinds = {json.loads(value)["kind"] for value in bench.records().values() if json.loads(value)["id"] == name}
        assert kinds == {"run", "artifact"}

    run(story())
