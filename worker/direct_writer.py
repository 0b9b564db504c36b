"""A producer for a command that writes a few messages of its own, connected for as long as it writes."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from worker.kafka import Producer, idempotent_producer, plain_producer, start_producer
from worker.settings import Settings
from worker.topic_scan import broker_errors
from worker.transaction_probe import has_transactions


@asynccontextmanager
async def open_producer(settings: Settings) -> AsyncIterator[Producer]:
    """Connect a producer whose messages every replica in sync acknowledges; where the broker can tell, once each.

    Raises BrokerFailed.
    """
    with broker_errors(settings):
        is_idempotent = await has_transactions(settings)
        producer = (idempotent_producer if is_idempotent else plain_producer)(settings)
        await start_producer(producer)
    try:
        yield producer
    finally:
        await producer.abandon()
