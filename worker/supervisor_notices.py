"""What the service manager is told (sd_notify): ready, still alive, stopping; nothing where nobody listens.

The protocol is a datagram of text to the socket that NOTIFY_SOCKET names. That the event loop sends the datagrams is
the message: a loop that is stuck sends none, and the manager starts the worker again.
"""

import os
import socket
from collections.abc import Callable, Mapping
from typing import Final

import structlog
from mode import Service

_log = structlog.get_logger(__name__)

_LOOK_S: Final = 1.0
# A start that is under way asks for this much more time whenever it is looked at.
_EXTEND_US: Final = 30_000_000


class Supervisor:
    """The way to the service manager; without NOTIFY_SOCKET there is none, and telling does nothing."""

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        values = os.environ if environ is None else environ
        name = values.get("NOTIFY_SOCKET", "")
        # A name in Linux's abstract namespace begins with a NUL, which stands in no variable.
        self._address = f"\0{name[1:]}" if name.startswith("@") else name
        self.watchdog_s = _watchdog_s(values)

    @property
    def is_there(self) -> bool:
        """Whether anybody listens."""
        return bool(self._address)

    def tell(self, *notices: str) -> None:
        """Send notices. A manager that is gone or busy is no reason to stop: the failure is logged."""
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as way:
                way.setblocking(False)  # noqa: FBT003  (its only argument)
                way.sendto("\n".join(notices).encode(), self._address)
        except OSError as error:
            _log.warning("supervisor_not_told", reason=error.strerror or type(error).__name__)


def _watchdog_s(values: Mapping[str, str]) -> float | None:
    """Give within which time the manager wants to hear of us; None when it does not, or means another process."""
    text, pid = values.get("WATCHDOG_USEC", ""), values.get("WATCHDOG_PID", str(os.getpid()))
    if not (text.isascii() and text.isdigit() and int(text) > 0) or pid != str(os.getpid()):
        return None
    return int(text) / 1_000_000


class SupervisorNotices(Service):
    """Tells the service manager when all roles are ready, and again and again that the worker is alive."""

    def __init__(self, supervisor: Supervisor, is_ready: Callable[[], bool]) -> None:
        super().__init__()
        self._supervisor = supervisor
        self._is_ready = is_ready
        self._was_ready = False

    async def on_start(self) -> None:
        if self._supervisor.is_there:
            self.add_future(self._keep_telling())

    async def on_stop(self) -> None:
        self._supervisor.tell("STOPPING=1")

    async def _keep_telling(self) -> None:
        # Half of what the manager waits for would do; a look that comes late must not be the last.
        watchdog_s = self._supervisor.watchdog_s
        pause_s = _LOOK_S if watchdog_s is None else min(_LOOK_S, watchdog_s / 3)
        while not self.should_stop:
            self._supervisor.tell(*self._notices())
            await self.sleep(pause_s)

    def _notices(self) -> list[str]:
        alive = [] if self._supervisor.watchdog_s is None else ["WATCHDOG=1"]
        if self._was_ready:
            return alive or ["STATUS=ready"]
        if self._is_ready():
            self._was_ready = True
            return ["READY=1", "STATUS=ready", *alive]
        return [f"EXTEND_TIMEOUT_USEC={_EXTEND_US}", "STATUS=restoring state", *alive]
