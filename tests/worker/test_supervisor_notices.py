"""What the service manager hears: ready when all roles are, alive as often as it asks, stopping at the end."""

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from worker.supervisor_notices import Supervisor, SupervisorNotices


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.settimeout(10)
        yield listening


def heard(manager: socket.socket) -> list[str]:
    return manager.recv(4096).decode().split("\n")


async def until_told(notices: SupervisorNotices, manager: socket.socket, wanted: str) -> list[str]:
    """Start notices, listen until something is told, stop them; gives all that was heard until then."""
    told: list[str] = []
    await notices.start()
    while wanted not in told:
        told += await asyncio.to_thread(heard, manager)
    await notices.stop()
    return told


def test_nobody_is_told_anything_where_nobody_listens() -> None:
    supervisor = Supervisor({})
    assert (supervisor.is_there, supervisor.watchdog_s) == (False, None)
    supervisor.tell("READY=1")


def test_a_manager_hears_that_a_start_is_under_way_then_that_it_is_done_then_the_end(manager: socket.socket) -> None:
    answers = iter([False, False, True])
    supervisor = Supervisor({"NOTIFY_SOCKET": manager.getsockname(), "WATCHDOG_USEC": "30000"})
    told = asyncio.run(until_told(SupervisorNotices(supervisor, lambda: next(answers)), manager, "READY=1"))
    assert told.count("EXTEND_TIMEOUT_USEC=30000000") == 2
    assert told.index("STATUS=restoring state") < told.index("READY=1")
    assert told.count("WATCHDOG=1") >= 2
    later = heard(manager)
    while later != ["STOPPING=1"]:
        assert later == ["WATCHDOG=1"], "ready is told once"
        later = heard(manager)


def test_a_manager_without_a_watchdog_is_told_no_watchdog(manager: socket.socket) -> None:
    supervisor = Supervisor({"NOTIFY_SOCKET": manager.getsockname()})
    told = asyncio.run(until_told(SupervisorNotices(supervisor, lambda: True), manager, "READY=1"))
    assert "WATCHDOG=1" not in told


@pytest.mark.parametrize(
    ("microseconds", "pid", "seconds"),
    [("20000000", None, 20.0), ("0", None, None), ("x", None, None), ("20000000", "1", None)],
)
def test_the_watchdog_is_this_processs_own(microseconds: str, pid: str | None, seconds: float | None) -> None:
    values = {"WATCHDOG_USEC": microseconds, "WATCHDOG_PID": pid or str(os.getpid())}
    assert Supervisor(values).watchdog_s == seconds


def test_a_name_in_the_abstract_namespace_is_one_with_a_nul() -> None:
    name = f"trace-projector-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(f"\0{name}")
        listening.settimeout(10)
        Supervisor({"NOTIFY_SOCKET": f"@{name}"}).tell("READY=1", "STATUS=ready")
        assert heard(listening) == ["READY=1", "STATUS=ready"]


def test_a_manager_that_is_gone_is_logged_and_stops_nobody(tmp_path: Path) -> None:
    with capture_logs() as logs:
        Supervisor({"NOTIFY_SOCKET": str(tmp_path / "gone")}).tell("READY=1")
    assert [entry["event"] for entry in logs] == ["supervisor_not_told"]
