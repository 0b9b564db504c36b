"""State on disk: a restart reads what is kept, what cannot be trusted is discarded, and the records stay the same."""

import asyncio
import shutil
import stat
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

import orjson
import pytest
from rocksdict import Options, Rdict
from structlog.testing import capture_logs

from projections.facts import Fact, encode_fact, partition_of
from tests.worker.fakes.driver import LaneDriver
from tests.worker.test_fold_role import COUNT, FACTS, SETTINGS, TOPICS, Bench, run, run_fact
from tests.worlds.cluster import clean_pass
from tests.worlds.world import World
from worker.dead_letters.letter import decode_dead_letter
from worker.lanes import Batch, CorruptBatch, SpoiltLaneError
from worker.roles.fold import FoldLane, FoldRole
from worker.settings import Settings
from worker.state import LocalFoldStore, StateFailedError
from worker.state_rocks import RocksBackend, local_store

NUMBER = partition_of("run:run-1", COUNT)
KEY = b"\x00state"


class DiskBench(Bench):
    """Lanes whose state is on disk; `lane` makes a new worker on the same disk."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, directory: Path, *, facts_max: int = 1_000) -> None:
        super().__init__(monkeypatch)
        self.directory = directory
        self.facts_max = facts_max
        self.topic_id = "topic-1"

    def disk(self) -> LocalFoldStore:
        return local_store(Settings(state_dir=self.directory, partitions=COUNT), self.topic_id, 1)

    def worker(self, number: int = NUMBER) -> LaneDriver:
        lane = FoldLane(
            FACTS[number],
            SETTINGS,
            self.metrics,
            self.disk(),
            asyncio.Semaphore(1),
            is_fenced=True,
            facts_max=self.facts_max,
        )
        return LaneDriver(self.broker, lane)

    async def worked_on(self, number: int = NUMBER) -> None:
        """Let a worker settle everything and stop."""
        worker = self.worker(number)
        await worker.open()
        await worker.settle_all()
        await worker.lane.close()

    def database(self, number: int = NUMBER) -> Path:
        return self.directory / "fold" / "trace-projector-g1" / f"partition-{number}"

    def rows(self, number: int = NUMBER) -> dict[bytes, bytes]:
        database = Rdict(str(self.database(number)), Options(raw_mode=True))
        rows = [(key, value) for key, value in database.items() if isinstance(key, bytes)]
        database.close()
        return dict(rows)

    def restored_facts(self, place: str) -> float:
        return self.metrics.value("restored_facts", **{"from": place})


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> DiskBench:
    return DiskBench(monkeypatch, tmp_path)


@pytest.mark.parametrize("facts_max", [1, 50, 100_000])
@pytest.mark.parametrize("seed", range(3))
def test_any_batching_any_restarts_and_any_bound_give_the_records_of_one_clean_pass(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, seed: int, facts_max: int
) -> None:
    world = World(seed)

    async def story() -> None:
        bench = DiskBench(monkeypatch, tmp_path, facts_max=facts_max)
        bench.publish_world(world, seed)
        random = Random(seed)
        for _restart in range(6):
            workers = [bench.worker(number) for number in range(COUNT)]
            for worker in workers:
                await worker.open()
                for _ in range(random.randrange(6)):
                    await worker.settle(random.choice([1, 3, 20]))
            for worker in workers:
                await worker.lane.close()
        workers = [bench.worker(number) for number in range(COUNT)]
        for worker in workers:
            await worker.open()
        await bench.settle_all(workers)
        assert bench.records() == clean_pass(world.messages).records
        assert bench.restored_facts("log") == 0
        assert bench.restored_facts("local") > 0
        for worker in workers:
            await worker.lane.close()

    run(story())


def test_a_restart_with_local_state_reads_nothing_from_the_log(bench: DiskBench) -> None:
    async def story() -> None:
        bench.publish(run_fact(1))
        await bench.worked_on()
        bench.restored.clear()
        worker = bench.worker()
        await worker.open()
        assert bench.restored == []
        bench.publish(run_fact(2, status="completed"))
        await worker.settle_all()
        assert b'"completed"' in bench.records()["run-1"]
        assert (bench.restored_facts("log"), bench.restored_facts("local")) == (0, 1)
        await worker.lane.close()

    run(story())


def ledger_record(revision: int) -> Fact:
    return Fact("execution:e", "record", (revision,), {"revision": revision})


def test_the_disk_holds_the_facts_as_they_are_in_the_log_without_superseded_ones(bench: DiskBench) -> None:
    async def story() -> None:
        number = partition_of("execution:e", COUNT)
        for revision in range(3):
            bench.publish(ledger_record(revision))
        await bench.worked_on(number)
        rows = bench.rows(number)
        meta = orjson.loads(rows.pop(KEY))
        assert rows == dict([encode_fact(ledger_record(2))])
        # The tombstones of the superseded facts stand behind them in the log.
        assert meta["position"] == bench.broker.logs[FACTS[number]].end == 5

    run(story())


def test_a_tombstone_in_the_log_takes_its_fact_from_the_disk(bench: DiskBench) -> None:
    async def story() -> None:
        number = partition_of("execution:e", COUNT)
        key, _value = encode_fact(ledger_record(1))
        bench.publish(ledger_record(1))
        await bench.worked_on(number)
        assert key in bench.rows(number)
        bench.broker.logs[FACTS[number]].append(None, key=key)
        await bench.worked_on(number)
        assert key not in bench.rows(number)

    run(story())


def test_state_that_is_behind_is_brought_up_from_the_log_and_emits_nothing(bench: DiskBench, tmp_path: Path) -> None:
    async def story() -> None:
        bench.publish(run_fact(1))
        await bench.worked_on()
        old = tmp_path / "old"
        shutil.copytree(bench.directory, old)
        bench.publish(run_fact(2, status="completed"))
        await bench.worked_on()
        bench.directory = old
        records = len(bench.broker.values(TOPICS.records))
        worker = bench.worker()
        await worker.open()
        # Of the log, what is behind the old position: the second snapshot.
        assert bench.restored_facts("log") == 1
        assert await worker.settle_all() == 0
        assert len(bench.broker.values(TOPICS.records)) == records
        bench.publish(run_fact(3, status="failed"))
        await worker.settle_all()
        assert b'"failed"' in bench.records()["run-1"]
        await worker.lane.close()

    run(story())


def ahead(bench: DiskBench) -> None:
    bench.broker.committed["group"][FACTS[NUMBER]] = 0


def foreign(bench: DiskBench) -> None:
    bench.topic_id = "made anew"


def unfinished(bench: DiskBench) -> None:
    change_meta(bench, totals=None)


def foreign_version(bench: DiskBench) -> None:
    change_meta(bench, projectionVersion=0)


def corrupt(bench: DiskBench) -> None:
    (bench.database() / "CURRENT").write_text("MANIFEST-000000\n")


def corrupt_meta(bench: DiskBench) -> None:
    database = Rdict(str(bench.database()), Options(raw_mode=True))
    database[KEY] = b"{"
    database.close()


def change_meta(bench: DiskBench, **values: Any) -> None:
    meta = orjson.loads(bench.rows()[KEY])
    database = Rdict(str(bench.database()), Options(raw_mode=True))
    database[KEY] = orjson.dumps({**meta, **values})
    database.close()


@pytest.mark.parametrize("spoil", [ahead, foreign, foreign_version, unfinished, corrupt, corrupt_meta])
def test_state_that_cannot_be_trusted_is_discarded_with_the_reason_and_read_from_the_log(
    bench: DiskBench, spoil: Any
) -> None:
    async def story() -> None:
        bench.publish(run_fact(1))
        await bench.worked_on()
        # Nothing of this may be used.
        database = Rdict(str(bench.database()), Options(raw_mode=True))
        database[encode_fact(run_fact(9, status="failed"))[0]] = encode_fact(run_fact(9, status="failed"))[1]
        database.close()
        spoil(bench)
        with capture_logs() as logs:
            worker = bench.worker()
            await worker.open()
        [line] = [line for line in logs if line["event"] == "state_discarded"]
        assert line["partition"] == NUMBER
        words = {"foreign_version": {"foreign"}, "corrupt": {"corrupt", "failed"}, "corrupt_meta": {"corrupt"}}
        assert line["reason"] in words.get(spoil.__name__, {spoil.__name__})
        bench.publish(run_fact(2, status="completed"))
        await worker.settle_all()
        assert b'"completed"' in bench.records()["run-1"]
        await worker.lane.close()
        assert orjson.loads(bench.rows()[KEY])["position"] == bench.broker.logs[FACTS[NUMBER]].end

    run(story())


def test_state_that_another_process_holds_is_left_alone_and_the_log_is_read(bench: DiskBench) -> None:
    async def story() -> None:
        bench.publish(run_fact(1))
        await bench.worked_on()
        holder = Rdict(str(bench.database()), Options(raw_mode=True))
        with capture_logs() as logs:
            worker = bench.worker()
            await worker.open()
        assert [(line["event"], line["reason"]) for line in logs if "reason" in line] == [("state_not_used", "locked")]
        assert bench.restored_facts("log") == 1
        bench.publish(run_fact(2, status="completed"))
        await worker.settle_all()
        assert b'"completed"' in bench.records()["run-1"]
        await worker.lane.close()
        holder.close()
        assert orjson.loads(bench.rows()[KEY])["position"] == 1

    run(story())


def test_a_write_that_fails_gives_the_lane_up_and_the_state_is_made_anew(
    bench: DiskBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        bench.publish(run_fact(1))
        worker = bench.worker()
        await worker.open()
        write = RocksBackend.write

        def fail(self: RocksBackend, rows: Mapping[bytes, bytes | None]) -> None:
            del self, rows
            monkeypatch.setattr(RocksBackend, "write", write)
            raise StateFailedError("failed")

        monkeypatch.setattr(RocksBackend, "write", fail)
        with pytest.raises(SpoiltLaneError):
            await worker.settle()
        # The outputs and their offset were durable before.
        assert list(bench.records()) == ["run-1"]
        with capture_logs() as logs:
            await worker.lane.close()
            await worker.open()
        assert [line["event"] for line in logs] == ["state_discarded"]
        assert bench.restored_facts("log") == 1
        bench.publish(run_fact(2, status="completed"))
        await worker.settle_all()
        assert b'"completed"' in bench.records()["run-1"]
        await worker.lane.close()

    run(story())


def test_a_fact_on_disk_that_cannot_be_read_gives_the_lane_up_and_the_state_is_made_anew(bench: DiskBench) -> None:
    async def story() -> None:
        bench.publish(run_fact(1))
        await bench.worked_on()
        database = Rdict(str(bench.database()), Options(raw_mode=True))
        database[encode_fact(run_fact(1))[0]] = b"{"
        database.close()
        worker = bench.worker()
        await worker.open()
        bench.publish(run_fact(2, status="completed"))
        with pytest.raises(SpoiltLaneError):
            await worker.settle()
        await worker.lane.close()
        await worker.open()
        await worker.settle_all()
        assert b'"completed"' in bench.records()["run-1"]
        assert bench.broker.values(TOPICS.dead_letters) == []
        await worker.lane.close()

    run(story())


def test_a_corrupt_batch_of_the_facts_log_that_was_given_up_is_one_dead_letter(bench: DiskBench) -> None:
    async def story() -> None:
        worker = bench.worker()
        await worker.open()
        batch = Batch(FACTS[NUMBER], (), 7, CorruptBatch(2, 7, 900))
        worker.lane.handle(batch)
        await worker.lane.flush()
        await worker.lane.commit(worker.consumer, {batch.partition: batch.next_offset})
        worker.lane.settled([batch])
        await worker.lane.close()
        [letter] = [decode_dead_letter(value) for value in bench.broker.values(TOPICS.dead_letters) if value]
        assert (letter.offset, letter.last_offset, letter.reason) == (2, 6, "corrupt_batch")
        assert orjson.loads(bench.rows()[KEY])["position"] == 7

    run(story())


def test_what_is_held_back_is_counted_after_a_restart_before_anything_is_loaded(bench: DiskBench) -> None:
    async def story() -> None:
        number = partition_of("execution:e", COUNT)
        for name in ("a", "b"):
            body = {"body": {"eventId": name, "kind": "prepare"}, "digest": name}
            bench.publish(Fact("execution:e", "transition:0", (), body, (0, 1)))
        await bench.worked_on(number)
        worker = bench.worker(number)
        await worker.open()
        lane = worker.lane
        assert isinstance(lane, FoldLane)
        assert lane.facts_held == 0
        assert lane.findings()["event_conflicts"] == 1
        assert bench.restored_facts("local") == 0
        await lane.close()

    run(story())


def test_the_bound_on_facts_in_memory_is_shared_by_the_partitions(bench: DiskBench) -> None:
    async def story() -> None:
        limits = SETTINGS.limits.model_copy(update={"state_facts_max": 2 * COUNT})
        settings = SETTINGS.model_copy(update={"limits": limits})
        role = FoldRole(settings, bench.metrics, bench.disk(), is_fenced=True)
        lanes = role.make_lanes(frozenset(FACTS))
        drivers = [LaneDriver(bench.broker, lane) for lane in lanes]
        for number in range(40):
            bench.publish(run_fact(1, f"run-{number}"))
        for driver in drivers:
            await driver.open()
        await bench.settle_all(drivers, 10)
        assert [lane.facts_held for lane in lanes if isinstance(lane, FoldLane)] == [2] * COUNT
        [gauge] = [family for family in bench.metrics.families() if family.name == "trace_projector_state_facts"]
        assert [sample.value for sample in gauge.samples] == [2.0 * COUNT]
        for lane in lanes:
            await lane.close()

    run(story())


def test_only_the_owner_may_enter_the_directory_of_the_state(bench: DiskBench) -> None:
    async def story() -> None:
        bench.publish(run_fact(1))
        await bench.worked_on()
        for directory in (bench.database(), bench.database().parent):
            assert stat.S_IMODE(directory.stat().st_mode) == 0o700

    run(story())


def test_a_long_restore_is_written_in_parts_and_the_same_facts_are_there_after_it(
    bench: DiskBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.roles.fold._RESTORE_ROWS_MAX", 3)

    async def story() -> None:
        for number in range(30):
            bench.publish(run_fact(1, f"run-{number}"))
        await bench.worked_on()
        rows = bench.rows()
        shutil.rmtree(bench.directory)
        bench.facts_max = 4
        worker = bench.worker()
        await worker.open()
        lane = worker.lane
        assert isinstance(lane, FoldLane)
        assert lane.facts_held <= 4
        assert await worker.settle_all() == 0
        await lane.close()
        assert bench.rows() == rows

    run(story())
