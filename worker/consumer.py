"""The one batch loop of the data path: poll, handle, flush, commit; it knows Kafka's groups and nothing of the roles.

Rules for editing this module: committed offsets move in one place (`_settle`) and last; nothing is awaited per
message; a partition that was revoked is never committed, whatever its batch was doing; messages are handed to the
lanes that are there when they arrive, never to those that were there when they were asked for.
"""

import asyncio
import functools
import random
import time
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any

import structlog
from aiokafka.errors import CommitFailedError, IllegalStateError, KafkaError
from mode import Service

from worker.kafka import BrokenProducerError, GroupConsumer, PartitionLostError, TopicPartition
from worker.lanes import (
    Batch,
    MissingOffsetsError,
    RetryLater,
    Role,
    Slot,
    SpoiltLaneError,
    StopWorkerError,
    message_bytes,
    split,
)
from worker.log_ends import LogEnds
from worker.logs import error_fields
from worker.membership import (
    RebalanceListener,
    ensure_still_ours,
    is_unreachable,
    must_be_ours,
    reopen_delay_s,
)
from worker.metrics import Metrics
from worker.reading import Polled, Reader, ReadingRules
from worker.settings_sections import LimitSettings
from worker.standing import CommitWatch

_log = structlog.get_logger(__name__)

_RETRY_FIRST_S = 0.1
# While a lane works, its end is looked for this often; an idle poll may wait longer.
_POLL_BUSY_S = 0.02
# Positions that moved without a message (compaction gaps, transaction markers) are committed at most this often.
_IDLE_COMMIT_S = 1.0
# Memberships that ended in an error one after the other, before it is no use trying again. A broker that cannot be
# reached does not count: it comes back.
_SESSION_FAILURES_MAX = 8
# Failures on the way to Kafka before the lane gets a new producer.
_KAFKA_FAILURES_MAX = 5
# Of the time for draining, what batches in flight get; the rest is for leaving the group and closing clients.
_DRAIN_SHARE = 0.7


class BatchConsumer(Service):
    """Runs one role: a member of its consumer group, whose lanes work side by side on one event loop."""

    def __init__(
        self,
        role: Role,
        limits: LimitSettings,
        metrics: Metrics,
        rules: ReadingRules = ReadingRules(),  # noqa: B008  (a named tuple cannot change)
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.role = role
        self._limits = limits
        self._metrics = metrics
        self._consumer: GroupConsumer | None = None
        self._slots: list[Slot] = []
        self._is_assigned = False
        self._wake = asyncio.Event()
        self._poll_task: asyncio.Future[None] | None = None
        self._log_ends = LogEnds()
        self._reader = Reader(role.name, limits, rules, metrics, lambda: self._slots)
        self._watch = CommitWatch(role.name, limits.standstill_s)
        self._role_log = _log.bind(role=role.name)

    # ---------------------------------------------------------------------------------------- what pages ask for

    def is_ready(self) -> bool:
        """Say whether the group has given partitions (or none: a standby) and all of them are restored."""
        return self._is_assigned and all(slot.is_open for slot in self._slots)

    def partition_counts(self) -> tuple[int, int]:
        """Count partitions: assigned, and restored."""
        assigned = sum(len(slot.lane.partitions) for slot in self._slots)
        return assigned, sum(len(slot.lane.partitions) for slot in self._slots if slot.is_open)

    def lag_messages(self) -> dict[TopicPartition, int]:
        """Count the messages between committed offset and end of each partition, as far as its end is known."""
        return {} if self._consumer is None else self._log_ends.lags(self._consumer, self._slots)

    async def look_at_ends(self) -> None:
        """Ask where logs end, which fetching tells only of partitions that are not paused. Raises KafkaError."""
        if self._consumer is not None:
            await self._log_ends.look(self._consumer)

    def standstill_s(self) -> float:
        """Tell for how long a partition that has messages to read has not moved its committed offset, at most."""
        return self._watch.longest_s(time.monotonic())

    def standing_partitions(self) -> int:
        """Count partitions that have messages to read and whose committed offset has not moved for too long."""
        return self._watch.standing_partitions()

    def oldest_in_flight_s(self) -> float:
        """Tell how long the oldest batch has been waiting to become durable; 0 when there is none."""
        since = [slot.busy_since for slot in self._slots if slot.busy_since is not None]
        return time.monotonic() - min(since) if since else 0.0

    def paused_partitions(self) -> int:
        """Count partitions that are paused because their last try failed."""
        return sum(len(slot.lane.partitions) for slot in self._slots if slot.retry_count)

    def stopped_partitions(self) -> int:
        """Count partitions that stand still: too many of their messages became dead letters, or a batch is corrupt."""
        return sum(len(slot.stopped_partitions) for slot in self._slots)

    def corrupt_partitions(self) -> list[TopicPartition]:
        """Give the partitions that stand still before a corrupt batch."""
        return [partition for slot in self._slots for partition in slot.corrupt_at]

    # ------------------------------------------------------------------------------------------------ life cycle

    async def on_start(self) -> None:
        self._poll_task = self.add_future(self._run())

    async def on_stop(self) -> None:
        await self.drain()

    async def drain(self) -> None:
        """Stop polling, let the batches in flight become durable for a while, leave the group; may be called twice."""
        if self._poll_task is not None:
            # getmany may be waiting for a rebalance to end; it hands over nothing before it returns, so this is safe.
            self._poll_task.cancel()
            self._poll_task = None
        await self._leave(self._limits.shutdown_drain_s)

    async def _run(self) -> None:
        """Be a member of the group, and become one again when aiokafka has got into a state that it does not leave."""
        failures = 0
        while not self.should_stop:
            self._reader.has_polled = False
            try:
                await self._be_member()
            except StopWorkerError:
                raise
            except Exception as error:
                failures = 1 if self._reader.has_polled else failures + (not is_unreachable(error))
                self._role_log.warning("membership_failed", failures=failures, **error_fields(error))
                if failures >= _SESSION_FAILURES_MAX:
                    raise
                await self._leave(self._limits.shutdown_drain_s)
                await self.sleep(self._retry_delay_s(max(failures, 4), error))

    async def _be_member(self) -> None:
        consumer = self._consumer = self.role.make_consumer()
        listener = RebalanceListener(
            functools.partial(self._revoked, consumer), functools.partial(self._assigned, consumer), self.crash
        )
        consumer.subscribe(self.role.topics, listener=listener)
        await consumer.start()
        while not self.should_stop:
            await self._poll(consumer)
            self._watch.look(consumer, self._slots, time.monotonic())

    async def _leave(self, timeout_s: float) -> None:
        # From here on this consumer's rebalances are no longer ours to follow.
        consumer, self._consumer = self._consumer, None
        self._is_assigned = False
        await self._release(timeout_s * _DRAIN_SHARE)
        if consumer is not None:
            await _give_time(consumer.stop(), timeout_s * (1 - _DRAIN_SHARE))

    # ------------------------------------------------------------------------------------------------------ poll

    async def _poll(self, consumer: GroupConsumer) -> None:
        """Hand what has arrived to idle lanes, at most one batch each."""
        ready = [slot for slot in self._slots if slot.is_ready]
        if not ready or sum(slot.in_flight_bytes for slot in self._slots) >= self._limits.in_flight_bytes_max:
            self._wake.clear()
            await _give_time(self._wake.wait(), self._limits.batch_wait_s)
            return
        wait_s = _POLL_BUSY_S if any(slot.is_working for slot in self._slots) else self._limits.batch_wait_s
        polled = await self._reader.poll(consumer, wait_s, _POLL_BUSY_S, self.sleep)
        for slot in self._slots:
            if slot.is_ready:
                await self._dispatch(consumer, slot, polled)

    async def _dispatch(self, consumer: GroupConsumer, slot: Slot, polled: Polled) -> None:
        """Start a lane on what was polled for it, or on offsets that moved without a message."""
        batches = [
            # The position counts gaps and transaction markers after the last message, which no message would carry.
            Batch(
                partition,
                polled.messages.get(partition, ()),
                await consumer.position(partition),
                polled.corrupt.get(partition),
            )
            for partition in slot.running_partitions
        ]
        moved = [batch for batch in batches if batch.messages or batch.next_offset > slot.committed[batch.partition]]
        now = time.monotonic()
        if not moved or (now < slot.idle_commit_at and not any(batch.messages or batch.corrupt for batch in moved)):
            return
        slot.idle_commit_at = now + _IDLE_COMMIT_S
        slot.busy_since = now
        slot.in_flight_bytes = sum(message_bytes(message) for batch in moved for message in batch.messages)
        slot.waiting = list(split(moved, self._limits.batch_bytes_max))
        slot.lane.accepted(moved)
        self._start(slot, self._work(consumer, slot))

    def _start(self, slot: Slot, work: Any) -> None:
        slot.task = asyncio.ensure_future(work)
        slot.task.add_done_callback(lambda task: self._finished(slot, task))

    def _finished(self, slot: Slot, task: asyncio.Task[None]) -> None:
        for part in slot.waiting:
            slot.lane.abandoned(part)
        if slot.busy_since is not None:
            self._metrics.count("busy_seconds", time.monotonic() - slot.busy_since, role=self.role.name)
        slot.task, slot.waiting, slot.in_flight_bytes, slot.busy_since = None, [], 0, None
        self._wake.set()
        error = None if task.cancelled() else task.exception()
        if error is None:
            return
        delay_s = reopen_delay_s(error)
        if delay_s is None:
            self.add_future(self.crash(error))
            return
        self._role_log.warning("lane_lost", **error_fields(error))
        if slot in self._slots and self._consumer is not None:
            self._start(slot, self._open(self._consumer, slot, delay_s, must_be_ours=must_be_ours(error)))

    # ------------------------------------------------------------------------------------ handle, flush, commit

    async def _work(self, consumer: GroupConsumer, slot: Slot) -> None:
        while slot.waiting:
            await self._settle(consumer, slot, slot.waiting[0])
            settled = slot.waiting.pop(0)
            slot.lane.settled(settled)
            self._reader.skipped((batch.partition, batch.corrupt) for batch in settled)
        slot.rest(self._wake.set)

    async def _settle(self, consumer: GroupConsumer, slot: Slot, batches: Sequence[Batch]) -> None:
        """Make a batch durable, in this order and no other.

        1. handle: every message becomes output, or a dead letter; without IO.
        2. flush: all of that output, dead letters included, is durable downstream.
        3. commit: the exact next positions become the committed offsets.

        A failure of 2 or 3 pauses the lane's partitions and repeats both, for ever, while other lanes go on. A lost
        partition, a broken producer and a cancelled task leave without a commit: the batch is read again.
        """
        for batch in batches:
            slot.lane.handle(batch)
            # Other lanes, heartbeats and pages get their turn between partitions.
            await asyncio.sleep(0)
        stopped_at = slot.lane.stopped_at
        positions = {
            batch.partition: min(batch.next_offset, stopped_at.get(batch.partition, batch.next_offset))
            for batch in batches
        }
        while True:
            try:
                await slot.lane.flush()
                await slot.lane.commit(consumer, positions)
            except (CommitFailedError, IllegalStateError) as error:
                raise PartitionLostError(type(error).__name__) from None
            except (PartitionLostError, BrokenProducerError, SpoiltLaneError, StopWorkerError):
                raise
            except Exception as error:
                if isinstance(error, KafkaError) and slot.retry_count >= _KAFKA_FAILURES_MAX:
                    raise BrokenProducerError from error
                # Whatever a sink raises, the batch must not be lost.
                await self._pause(consumer, slot, error)
            else:
                break
        slot.committed |= positions
        self._recovered(consumer, slot)
        self._hold_stopped(consumer, slot)
        self._metrics.count("settled_batches", role=self.role.name)

    async def _pause(self, consumer: GroupConsumer, slot: Slot, error: Exception) -> None:
        slot.retry_count += 1
        delay_s = self._retry_delay_s(slot.retry_count, error)
        consumer.pause(*(slot.lane.partitions & consumer.assignment()))
        self._metrics.count("retries", role=self.role.name)
        self._role_log.warning("retrying", retry=slot.retry_count, delay_s=round(delay_s, 3), **error_fields(error))
        await asyncio.sleep(delay_s)

    def _retry_delay_s(self, retry: int, error: Exception) -> float:
        delay_max_s = self._limits.sink_retry_delay_max_s
        if isinstance(error, RetryLater):
            return min(error.delay_s, delay_max_s)
        # Half of the delay is jitter: workers that failed together do not come back together.
        return min(_RETRY_FIRST_S * 2.0 ** min(retry, 16), delay_max_s) * random.uniform(0.5, 1)  # noqa: S311

    def _recovered(self, consumer: GroupConsumer, slot: Slot) -> None:
        if slot.retry_count:
            slot.retry_count = 0
            consumer.resume(*(slot.running_partitions & consumer.assignment()))
            self._role_log.info("recovered")

    def _hold_stopped(self, consumer: GroupConsumer, slot: Slot) -> None:
        """Let partitions that stopped stand where they are to go on one day, with nothing of them held in memory."""
        for partition in slot.stopped_partitions & consumer.assignment():
            consumer.pause(partition)
            consumer.seek(partition, slot.committed[partition])

    # ------------------------------------------------------------------------------------------------- rebalance

    async def _revoked(self, consumer: GroupConsumer) -> None:
        """Drain what is in flight while the group waits; heartbeats go on meanwhile."""
        if consumer is self._consumer:
            self._is_assigned = False
            await self._release(self._limits.shutdown_drain_s)

    def _assigned(self, consumer: GroupConsumer, partitions: frozenset[TopicPartition]) -> None:
        """Make lanes and let them open on their own: until this returns, the member sends no heartbeat."""
        if consumer is not self._consumer:
            return
        self._slots = [Slot(lane) for lane in self.role.make_lanes(partitions)]
        for slot in self._slots:
            self._start(slot, self._open(consumer, slot))
        self._is_assigned = True
        self._wake.set()
        self._role_log.info("assigned", partitions=len(partitions))

    async def _open(
        self, consumer: GroupConsumer, slot: Slot, delay_s: float | None = None, *, must_be_ours: bool = False
    ) -> None:
        """Open a lane and move its partitions to where it wants to read on; repeated until it works.

        With a delay it is opened once more; one that must be ours, only while the group still counts this member.
        """
        slot.is_open = False
        if delay_s is not None:
            await slot.lane.close()
            await asyncio.sleep(delay_s)
        positions: Mapping[TopicPartition, int] | None = None
        while positions is None:
            try:
                positions = await self._try_to_open(consumer, slot, must_be_ours=must_be_ours)
            except (CommitFailedError, IllegalStateError) as error:
                raise PartitionLostError(type(error).__name__) from None
            except (PartitionLostError, StopWorkerError):
                raise
            except Exception as error:  # noqa: BLE001  (a sink or a broker that is away comes back)
                await self._pause(consumer, slot, error)
        for partition, offset in positions.items():
            consumer.seek(partition, offset)
        slot.committed = dict(positions)
        slot.is_open = True
        self._recovered(consumer, slot)
        self._hold_stopped(consumer, slot)

    async def _try_to_open(
        self, consumer: GroupConsumer, slot: Slot, *, must_be_ours: bool
    ) -> Mapping[TopicPartition, int] | None:
        try:
            if must_be_ours:
                await ensure_still_ours(consumer, slot.lane.partitions)
            return await slot.lane.open(consumer)
        except MissingOffsetsError as missing:
            await self._reader.skip_missing(consumer, missing)
            return None

    async def _release(self, timeout_s: float) -> None:
        """Take all lanes out of the loop: let busy ones finish for a while, cancel what is left, close them."""
        slots, self._slots = self._slots, []
        # A lane that waits for its next try, or for its state, would only use up the time of the others.
        hopeful = [slot.task for slot in slots if slot.is_working and slot.task is not None]
        if hopeful:
            await asyncio.wait(hopeful, timeout=timeout_s)
        tasks = [slot.task for slot in slots if slot.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for closed in await asyncio.gather(*(slot.lane.close() for slot in slots), return_exceptions=True):
            if isinstance(closed, Exception):
                self._role_log.warning("close_failed", **error_fields(closed))


async def _give_time(work: Awaitable[object], timeout_s: float) -> None:
    """Wait for something, but not for ever."""
    try:
        await asyncio.wait_for(work, timeout_s)
    except TimeoutError:
        return
