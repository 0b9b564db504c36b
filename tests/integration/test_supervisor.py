"""A worker under a service manager: ready when its roles are, alive from then on, and it says that it stops."""

import socket

import pytest

from tests.integration.pipeline import PATIENCE_S, Pipeline

pytestmark = pytest.mark.integration


def test_a_worker_tells_its_manager_when_it_is_ready_and_when_it_stops(pipeline: Pipeline) -> None:
    pipeline.create_topics()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(pipeline.directory / "notify"))
        manager.settimeout(PATIENCE_S)
        worker = pipeline.worker(NOTIFY_SOCKET=str(pipeline.directory / "notify"), WATCHDOG_USEC="1500000")
        worker.start()
        told: list[str] = []
        while "READY=1" not in told:
            told += manager.recv(4096).decode().split("\n")
        assert worker.get("/readyz")[0] == 200
        assert manager.recv(4096) == b"WATCHDOG=1"
        assert worker.stop() == 0
        while told[-1] != "STOPPING=1":
            told += manager.recv(4096).decode().split("\n")
        assert told.count("READY=1") == 1
