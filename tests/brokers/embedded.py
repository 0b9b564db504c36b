"""The embedded broker, for tests on a machine without Docker and Java."""

from tests.brokers.broker import Broker, BrokerUnavailableError
from worker.embedded_broker import EmbeddedBroker, EmbeddedBrokerError


def start_embedded() -> Broker:
    """Start the broker of the extra ``embedded``.

    Raises:
        BrokerUnavailableError: the extra is not installed or the broker did not start.
    """
    broker = EmbeddedBroker()
    try:
        broker.start()
    except EmbeddedBrokerError as error:
        raise BrokerUnavailableError(str(error)) from error
    return Broker(
        name="the embedded broker (tansu; no transactions)",
        bootstrap_servers=broker.bootstrap_servers,
        supports_transactions=False,
        stop=broker.stop,
    )
