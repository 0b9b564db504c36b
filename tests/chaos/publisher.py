"""A source that never rests: publishes messages from a thread of its own, through every outage of a broker."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from aiokafka.errors import KafkaError

from projections.facts import partition_of
from tests.worlds.world import SourceMessage
from worker.kafka import Producer

SOURCE_PARTITIONS = 2

_DELIVERY_S = 60.0
_END_S = 120.0


class Publisher:
    """Publishes chunks in order, each acknowledged by all replicas in sync before the next one.

    A chunk whose delivery failed is sent again whole by a new producer: a resend within the order of its keys.

    Args:
        servers: where the brokers are.
        topic_of: the topic of each source.
        chunks: what to publish; may be without end.
        pause_s: what each chunk and the wait after it take together; 0 publishes as fast as brokers acknowledge.
    """

    def __init__(
        self,
        servers: str,
        topic_of: Callable[[str], str],
        chunks: Iterable[Sequence[SourceMessage]],
        pause_s: float,
    ) -> None:
        self.published: list[SourceMessage] = []
        self.resent_chunks = 0
        self.longest_delivery_s = 0.0
        self._servers = servers
        self._topic_of = topic_of
        self._chunks = chunks
        self._pause_s = pause_s
        self._sent = 0
        self._error: BaseException | None = None
        self._is_ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def check(self) -> None:
        """Fail when publishing failed."""
        if self._error is not None:
            raise AssertionError("the publisher failed") from self._error

    def stop(self) -> list[SourceMessage]:
        """End after the chunk that is under way, and give all that was published."""
        self._is_ending.set()
        self._thread.join(_END_S)
        assert not self._thread.is_alive(), "the publisher does not end: brokers acknowledge nothing"
        self.check()
        return self.published

    def _run(self) -> None:
        try:
            asyncio.run(self._publish())
        except BaseException as error:  # noqa: BLE001
            # Raised by `check` and `stop`, in the thread that asks.
            self._error = error

    async def _publish(self) -> None:
        producer = await self._producer()
        try:
            for chunk in self._chunks:
                if self._is_ending.is_set():
                    return
                started = time.monotonic()
                producer = await self._deliver(producer, chunk)
                self.published += chunk
                took_s = time.monotonic() - started
                self.longest_delivery_s = max(self.longest_delivery_s, took_s)
                await asyncio.sleep(max(0.0, self._pause_s - took_s))
        finally:
            await producer.abandon()

    async def _producer(self) -> Producer:
        producer = Producer(
            bootstrap_servers=self._servers,
            acks="all",
            enable_idempotence=True,
            linger_ms=2,
            request_timeout_ms=10_000,
            metadata_max_age_ms=5_000,
        )
        await producer.start()
        return producer

    async def _deliver(self, producer: Producer, chunk: Sequence[SourceMessage]) -> Producer:
        """Send a chunk until it is acknowledged; gives the producer that managed to."""
        places = [(message, self._partition(message)) for message in chunk]
        while True:
            with contextlib.suppress(KafkaError, TimeoutError):
                await asyncio.wait_for(self._send(producer, places), _DELIVERY_S)
                return producer
            assert not self._is_ending.is_set(), "brokers acknowledge nothing at the end"
            self.resent_chunks += 1
            await producer.abandon()
            producer = await self._producer()

    async def _send(self, producer: Producer, places: Sequence[tuple[SourceMessage, int]]) -> None:
        deliveries = [
            await producer.send(
                self._topic_of(message.topic), value=message.value, key=message.key, partition=partition
            )
            for message, partition in places
        ]
        await asyncio.gather(*deliveries)

    def _partition(self, message: SourceMessage) -> int:
        self._sent += 1
        if message.topic == "erasures":
            return 0
        spread = message.key.decode("latin-1") if message.key is not None else str(self._sent)
        return partition_of(spread, SOURCE_PARTITIONS)
