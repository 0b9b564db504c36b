"""Patience at the start: a broker that is just being replaced refuses for seconds, which must not end a worker.

What cannot pass by itself (a missing topic, a wrong setting, no broker at all) still ends it at once, or nearly so.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import structlog
from aiokafka.errors import KafkaConnectionError, KafkaError

from worker.logs import error_fields

_log = structlog.get_logger(__name__)

# Kafka notices a broker that vanished after nine seconds, and has chosen new leaders some seconds later.
PATIENCE_S: Final = 30.0
# No connection at all: either nothing is there, which is to be said soon, or one was cut off while it was used.
_UNCONNECTED_TRIES_MAX: Final = 3
_PAUSE_S: Final = 1.0

_Result = TypeVar("_Result")


async def patiently(
    work: Callable[[], Awaitable[_Result]], *, patience_s: float = PATIENCE_S, pause_s: float = _PAUSE_S
) -> _Result:
    """Do some work at the start, again and again while what fails it may pass; then its error is raised.

    The work may have been done in part when it is repeated.
    """
    deadline = time.monotonic() + patience_s
    unconnected = 0
    while True:
        try:
            return await work()
        except Exception as error:
            cause = error if isinstance(error, KafkaError | TimeoutError) else error.__cause__
            unconnected += isinstance(cause, KafkaConnectionError)
            if not may_pass(cause) or unconnected >= _UNCONNECTED_TRIES_MAX or time.monotonic() >= deadline:
                raise
            _log.warning("broker_not_ready", **error_fields(cause or error))
        await asyncio.sleep(pause_s)


def may_pass(error: BaseException | None) -> bool:
    """Say whether brokers that change places, or one that does not answer yet, explain an error."""
    return isinstance(error, TimeoutError) or (isinstance(error, KafkaError) and bool(error.retriable))
