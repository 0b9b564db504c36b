"""Whether a broker can fence: found out by asking it for a producer id."""

import asyncio
import logging

from aiokafka.errors import IncompatibleBrokerVersion, UnknownError, UnsupportedVersionError

from worker.kafka import start_producer, transactional_producer
from worker.settings import Settings

_PROBE_ATTEMPTS = 3
_PROBE_PAUSE_S = 0.2


async def has_transactions(settings: Settings) -> bool:
    """Find out by trying whether the broker gives out producer ids, without which nothing can be fenced.

    The embedded broker answers with its general error code; a real broker may do so once in trouble, hence the tries.
    """
    # aiokafka calls the answer that is looked for here an unexpected error.
    sender_log = logging.getLogger("aiokafka.producer.sender")
    sender_log.setLevel(logging.CRITICAL)
    try:
        return await _gets_producer_id(settings)
    finally:
        sender_log.setLevel(logging.NOTSET)


async def _gets_producer_id(settings: Settings) -> bool:
    for _ in range(_PROBE_ATTEMPTS):
        producer = transactional_producer(settings, f"{settings.app_id}-fencing-probe")
        try:
            await start_producer(producer)
        except (IncompatibleBrokerVersion, UnsupportedVersionError):
            return False
        except UnknownError:
            await asyncio.sleep(_PROBE_PAUSE_S)
        else:
            await producer.abandon()
            return True
    return False
