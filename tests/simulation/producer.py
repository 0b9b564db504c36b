"""The virtual producer, behind the port that the worker's writers use.

It does what aiokafka does as far as the worker rests on it: batches of a partition go out one after the other and on
their own, whoever waits for them; with idempotence a batch is resent until it is stored, once; without, a lost answer
is an error, stored or not; a producer that was replaced fails for good; closing leaves to the network what is on its
way and drops the rest.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from aiokafka.errors import (
    ConcurrentTransactions,
    InvalidProducerEpoch,
    KafkaError,
    KafkaTimeoutError,
    ProducerClosed,
    ProducerFenced,
    UnknownError,
)

from tests.simulation.broker import VirtualBroker
from tests.simulation.network import RETRY_BACKOFF_S, LostError
from worker.kafka import Header, Outgoing, TopicPartition

State = Literal["new", "ready", "in transaction", "ending", "fatal"]

_TRANSACTION_TIMEOUT_S = 60.0


class VirtualBatch:
    """A batch builder that takes so many messages."""

    def __init__(self, room: int) -> None:
        self.rows: list[Outgoing] = []
        self._room = room

    def append(
        self, *, timestamp: int | None, key: bytes, value: bytes | None, headers: Sequence[Header]
    ) -> object | None:
        assert timestamp is None
        # What aiokafka's compiled builder insists on.
        assert type(headers) is list
        if len(self.rows) >= self._room:
            return None
        self.rows.append((key, value, headers))
        return self


class VirtualProducer:
    """A producer: plain, idempotent, or with a name that fences its predecessors."""

    def __init__(self, broker: VirtualBroker, *, is_idempotent: bool, name: str | None = None) -> None:
        self._broker = broker
        self._network = broker.network
        self._is_idempotent = is_idempotent
        self._name = name
        self._state: State = "new"
        self._producer_id: int | None = None
        self._epoch = 0
        self._is_closed = False
        self._queues: dict[TopicPartition, list[tuple[VirtualBatch, asyncio.Future[None]]]] = defaultdict(list)
        self._pumps: dict[TopicPartition, asyncio.Task[None]] = {}
        # What takes part in the open transaction: partitions and a group.
        self._added: set[TopicPartition | str] = set()

    # -------------------------------------------------------------------------------------------------- life cycle

    async def start(self) -> None:
        await self._network.ask("connect", lambda: None)
        if self._name is not None:
            name = self._name
            start = self._broker.transactions.start
            self._producer_id, self._epoch = await self._coordinate(
                "init producer", lambda: start(name, _TRANSACTION_TIMEOUT_S)
            )
        self._state = "ready"

    async def abandon(self) -> None:
        self._is_closed = True
        self._fail_queued(ProducerClosed())
        for pump in list(self._pumps.values()):
            pump.cancel()
        await asyncio.gather(*self._pumps.values(), return_exceptions=True)

    def _fail_queued(self, error: KafkaError) -> None:
        for queue in self._queues.values():
            for _batch, delivery in queue:
                if not delivery.done():
                    delivery.set_exception(error)
                    # Whoever asked for it may be gone.
                    delivery.exception()
            queue.clear()

    # ---------------------------------------------------------------------------------------------------- sending

    def create_batch(self) -> VirtualBatch:
        return VirtualBatch(self._broker.random.randint(1, 40))

    async def send_batch(self, batch: VirtualBatch, topic: str, *, partition: int) -> asyncio.Future[None]:
        if self._is_closed:
            raise ProducerClosed
        if self._state == "fatal":
            raise ProducerFenced
        assert self._name is None or self._state == "in transaction", "aiokafka sends in a transaction only"
        place = TopicPartition(topic, partition)
        delivery: asyncio.Future[None] = self._broker.loop.create_future()
        self._queues[place].append((batch, delivery))
        if place not in self._pumps:
            pump = self._pumps[place] = asyncio.ensure_future(self._pump(place))
            pump.add_done_callback(lambda _pump: self._pumps.pop(place, None))
        return delivery

    async def _pump(self, place: TopicPartition) -> None:
        queue = self._queues[place]
        while queue:
            batch, delivery = queue[0]
            error: KafkaError | None = None
            try:
                await self._deliver(place, batch)
            except (InvalidProducerEpoch, ProducerFenced):
                self._fail()
                return
            except KafkaError as caught:
                error = caught
            if not queue or queue[0][1] is not delivery:
                return
            queue.pop(0)
            if delivery.done():
                continue
            if error is None:
                delivery.set_result(None)
            else:
                delivery.set_exception(error)
                delivery.exception()

    async def _deliver(self, place: TopicPartition, batch: VirtualBatch) -> None:
        if self._name is not None and place not in self._added:
            name, epoch = self._name, self._epoch
            add = self._broker.transactions.add
            await self._coordinate("add partitions", lambda: add(name, epoch, partitions=[place]))
            self._added.add(place)
        chance = self._network.weather.refusal_chance
        if chance and self._broker.random.random() < chance:
            raise UnknownError
        effect = self._storing(place, batch.rows)
        if self._is_idempotent:
            await self._network.ask("produce", effect)
            return
        try:
            await self._network.ask_once("produce", effect)
        except LostError:
            raise KafkaTimeoutError from None

    def _storing(self, place: TopicPartition, rows: Sequence[Outgoing]) -> Callable[[], None]:
        is_stored = False

        def store() -> None:
            nonlocal is_stored
            # The sequence number of an idempotent producer tells a resend; a plain one asks only once anyway.
            if is_stored:
                return
            self._broker.append(
                place,
                rows,
                producer_id=self._producer_id,
                epoch=self._epoch,
                is_transaction=self._name is not None,
            )
            is_stored = True

        return store

    # ------------------------------------------------------------------------------------------------ transactions

    async def begin_transaction(self) -> None:
        assert self._state == "ready", "a transaction begins when the last one has ended"
        self._state = "in transaction"
        self._added.clear()

    async def send_offsets_to_transaction(self, offsets: Mapping[TopicPartition, int], group: str) -> None:
        assert self._state == "in transaction"
        name, epoch, producer_id = self._name, self._epoch, self._producer_id
        assert name is not None
        assert producer_id is not None
        broker = self._broker
        kept = dict(offsets)
        await self._coordinate("add offsets", lambda: broker.transactions.add(name, epoch, groups=[group]))
        self._added.add(group)
        await self._coordinate(
            "commit offsets in transaction",
            lambda: broker.groups.commit_in_transaction(group, producer_id, epoch, kept),
        )

    async def commit_transaction(self) -> None:
        await self._end(is_committed=True)

    async def abort_transaction(self) -> None:
        await self._end(is_committed=False)

    async def _end(self, *, is_committed: bool) -> None:
        if self._state == "fatal":
            raise ProducerFenced
        assert self._state == "in transaction"
        self._state = "ending"
        await asyncio.gather(*self._pumps.values())
        if not self._added:
            self._state = "ready"
            return
        name, epoch = self._name, self._epoch
        assert name is not None
        end = self._broker.transactions.end
        operation = "commit transaction" if is_committed else "abort transaction"
        # As in aiokafka, what has begun goes on when the one who waits for it is gone.
        ending = asyncio.ensure_future(self._coordinate(operation, lambda: end(name, epoch, is_committed=is_committed)))
        ending.add_done_callback(_look_at)
        await asyncio.shield(ending)
        self._state = "ready"

    async def _coordinate(self, operation: str, effect: Callable[[], Any]) -> Any:
        """Ask a coordinator until it has time; a producer that was replaced finds out here."""
        while True:
            try:
                return await self._network.ask(operation, effect)
            except ConcurrentTransactions:
                await asyncio.sleep(RETRY_BACKOFF_S)
                if self._is_closed:
                    raise ProducerClosed from None
            except InvalidProducerEpoch:
                self._fail()
                raise ProducerFenced from None

    def _fail(self) -> None:
        self._state = "fatal"
        self._fail_queued(ProducerFenced())


def _look_at(future: asyncio.Future[Any]) -> None:
    """Take note of an error that nobody may be left to hear of."""
    if not future.cancelled():
        future.exception()
