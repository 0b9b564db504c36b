"""A broker that somebody else runs: KAFKA_BOOTSTRAP_SERVERS says where."""

import asyncio
import os
import uuid

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from tests.brokers.broker import Broker, BrokerUnavailableError, wait_until_answers

_ANSWER_TIMEOUT_S = 10.0
_PROBE_TIMEOUT_S = 15.0


def use_external() -> Broker:
    """Use the broker that KAFKA_BOOTSTRAP_SERVERS names; it is never stopped.

    Raises:
        BrokerUnavailableError: the variable is not set, or nothing answers there.
    """
    servers = os.environ.get("KAFKA_BOOTSTRAP_SERVERS")
    if not servers:
        raise BrokerUnavailableError("KAFKA_BOOTSTRAP_SERVERS is not set")
    if not wait_until_answers(servers, timeout_s=_ANSWER_TIMEOUT_S):
        raise BrokerUnavailableError(f"nothing answers at KAFKA_BOOTSTRAP_SERVERS={servers}")
    return Broker(
        name=f"the broker at {servers}",
        bootstrap_servers=servers,
        supports_transactions=asyncio.run(_supports_transactions(servers)),
        stop=lambda: None,
    )


async def _supports_transactions(servers: str) -> bool:
    producer = AIOKafkaProducer(bootstrap_servers=servers, transactional_id=f"test-probe-{uuid.uuid4().hex}")
    try:
        await asyncio.wait_for(producer.start(), _PROBE_TIMEOUT_S)
    except (KafkaError, TimeoutError):
        return False
    else:
        return True
    finally:
        await producer.stop()
