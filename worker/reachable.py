"""Why no broker was reached: clients try every address and keep to themselves what went wrong."""

import asyncio
import ssl
from typing import Final

from aiokafka.conn import create_conn
from aiokafka.errors import (
    AuthenticationFailedError,
    AuthenticationMethodNotSupported,
    IllegalSaslStateError,
    KafkaError,
    SaslAuthenticationFailed,
    UnsupportedSaslMechanismError,
)

from worker.kafka import client_options
from worker.settings import Settings

_TIMEOUT_S: Final = 10.0
_REFUSED: Final = (AuthenticationFailedError, SaslAuthenticationFailed, IllegalSaslStateError)
_NO_SUCH_WAY: Final = (AuthenticationMethodNotSupported, UnsupportedSaslMechanismError)


async def why_unreachable(settings: Settings) -> str:
    """Connect to each address once more, alone, and say for an operator what is wrong with the way there.

    Names settings, and no value of one but addresses, protocol and mechanism.
    """
    for server in settings.bootstrap_servers.split(","):
        told = await _try(settings, server)
        if told is not None:
            return f"the broker at {server} {told}"
    return (
        f"no Kafka broker answers at {settings.bootstrap_servers}; start one, or correct bootstrap_servers "
        "(environment: TRACE_PROJECTOR_BOOTSTRAP_SERVERS)"
    )


async def _try(settings: Settings, server: str) -> str | None:
    """Say what is wrong with one address that answers; None for one that does not."""
    kafka = settings.kafka
    options = client_options(settings)
    del options["bootstrap_servers"]
    host, _, port = server.rpartition(":")
    try:
        connection = await asyncio.wait_for(create_conn(host.strip("[]"), int(port), **options), _TIMEOUT_S)
    except ssl.SSLCertVerificationError:
        return "has a certificate that kafka.ssl_ca_file does not vouch for, or one for another name"
    except ssl.SSLError:
        return f"does not speak TLS as kafka.security_protocol {kafka.security_protocol} says, or wants ssl_cert_file"
    except _REFUSED:
        return "refuses kafka.sasl_username with this kafka.sasl_password"
    except _NO_SUCH_WAY:
        return f"does not know kafka.sasl_mechanism {kafka.sasl_mechanism}"
    except (KafkaError, OSError, TimeoutError):
        if not await is_listening(host, port):
            return None
    else:
        connection.close()
    return f"takes connections and answers none; is kafka.security_protocol {kafka.security_protocol} what it speaks?"


async def is_listening(host: str, port: str) -> bool:
    """Say whether something takes connections at an address."""
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(host.strip("[]"), int(port)), _TIMEOUT_S)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True
