"""ClickHouse for tests: its engine in a process of its own (see ``clickhouse_front``), started when a test wants it."""

import atexit
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import NamedTuple

import clickhouse_connect
import pytest
from clickhouse_connect.driver.client import Client

USER = "tester"
PASSWORD = "ZZPASSWORDZZ"
_START_TIMEOUT_S = 60.0
_REPOSITORY = Path(__file__).resolve().parents[2]


class Server(NamedTuple):
    """An engine that runs: where it listens on loopback, where its data is, and its process."""

    port: int
    directory: Path
    process: "subprocess.Popen[bytes]"

    def url(self, database: str, *, port: int | None = None) -> str:
        return f"clickhouse://{USER}:{PASSWORD}@127.0.0.1:{port or self.port}/{database}"

    def connect(self, database: str | None = None) -> Client:
        """Connect as a person would who looks at what is in a database."""
        return clickhouse_connect.get_client(
            host="127.0.0.1",
            port=self.port,
            username=USER,
            password=PASSWORD,
            database=database,
            tz_mode="aware",
            autogenerate_session_id=False,
        )

    def kill(self) -> None:
        """End it as a machine does that loses its power."""
        self.process.kill()
        self.process.wait()


@cache
def server() -> Server:
    """Give the session's server."""
    return start()


def start(directory: Path | None = None, port: int | None = None) -> Server:
    """Start a server, anew on a directory that another one left behind."""
    if directory is None:
        directory = Path(tempfile.mkdtemp(prefix="trace-ch-"))
        atexit.register(shutil.rmtree, directory, ignore_errors=True)
    port = port or _free_port()
    command = [sys.executable, "-m", "tests.stores.clickhouse_front", str(port), str(directory), f"{USER}:{PASSWORD}"]
    with (directory / "front.log").open("ab") as log:
        process = subprocess.Popen(command, cwd=_REPOSITORY, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    started = Server(port, directory, process)
    # Registered last, so that it runs before the directory is removed.
    atexit.register(started.kill)
    _wait_for(started)
    return started


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _wait_for(started: Server) -> None:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", started.port)).close()
        except OSError:
            if started.process.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"ClickHouse did not start:\n{(started.directory / 'front.log').read_text()[-2000:]}")
            time.sleep(0.05)
        else:
            return
