"""One broker process from Kafka's jars."""

import contextlib
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.brokers.broker import LOOPBACK, file_tail

_STOP_TIMEOUT_S = 15.0


def own_settings(node_id: int, voters: str, port: int, controller_port: int) -> dict[str, str]:
    """Return the settings that set a node apart from the others of its cluster."""
    return {
        "node.id": str(node_id),
        "controller.quorum.voters": voters,
        "listeners": f"PLAINTEXT://{LOOPBACK}:{port},CONTROLLER://{LOOPBACK}:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://{LOOPBACK}:{port}",
    }


class KafkaNode:
    """One broker process of a cluster; ``kill`` and ``start`` again keep its data."""

    def __init__(self, java: Sequence[str], node_id: int, port: int, settings: Mapping[str, str], home: Path) -> None:
        self.node_id = node_id
        self.port = port
        self._java = list(java)
        self._home = home
        self._log_path = home / "broker.log"
        self.settings_path = home / "server.properties"
        self._process: subprocess.Popen[bytes] | None = None
        home.mkdir(parents=True)
        lines = [f"{name}={value}\n" for name, value in settings.items()]
        self.settings_path.write_text("".join([*lines, f"log.dirs={self.data_directory}\n"]), encoding="utf-8")

    @property
    def address(self) -> str:
        """Where clients connect to this node."""
        return f"{LOOPBACK}:{self.port}"

    @property
    def data_directory(self) -> Path:
        """Where the node keeps its logs."""
        return self._home / "data"

    @property
    def is_running(self) -> bool:
        """Whether the node's process is alive."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the process and return at once."""
        assert not self.is_running, "the node runs already"
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._java, "kafka.Kafka", str(self.settings_path)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self._home,
                # Ctrl-C is for the tests; the broker ends after them.
                start_new_session=True,
            )

    def stop(self, timeout_s: float = _STOP_TIMEOUT_S) -> None:
        """Ask the process to end, with a hand-over to the other nodes; one that does not end in time is killed."""
        if self._process is not None and self.is_running:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout_s)
        self.kill()

    def kill(self) -> None:
        """End the process without warning, as a power cut would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        """Freeze the process: its connections stay open and nothing answers."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a frozen process go on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def log_tail(self) -> str:
        """Return the end of what the node logged."""
        return file_tail(self._log_path)
