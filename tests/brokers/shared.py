"""One broker for all test processes of a run: started by the first that needs it, stopped when the last is done.

A broker by itself takes a core for seconds until it is warm, and some of a core while it waits.
"""

import contextlib
import fcntl
import json
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.brokers.broker import Broker


@contextlib.contextmanager
def shared_broker(directory: Path, start: Callable[[], Broker]) -> Iterator[Broker]:
    """Give the broker of all processes that name this directory; the one that started it waits for all others.

    Locks and no counts, because a process that dies gives back its locks.
    """
    told = directory / "kafka.json"
    with (directory / "kafka.starting").open("ab") as starting, (directory / "kafka.using").open("ab") as using:
        # Not while the last one is being stopped.
        fcntl.flock(using, fcntl.LOCK_SH)
        fcntl.flock(starting, fcntl.LOCK_EX)
        if told.exists():
            fcntl.flock(starting, fcntl.LOCK_UN)
            yield Broker(**json.loads(told.read_text()), stop=_leave_running)
            return
        broker = start()
        try:
            address = {"name": broker.name, "bootstrap_servers": broker.bootstrap_servers}
            told.write_text(json.dumps(address | {"supports_transactions": broker.supports_transactions}))
            fcntl.flock(starting, fcntl.LOCK_UN)
            yield broker
            fcntl.flock(using, fcntl.LOCK_EX)
        finally:
            told.unlink(missing_ok=True)
            broker.stop()


def _leave_running() -> None:
    """Stop nothing: who started the broker stops it."""
