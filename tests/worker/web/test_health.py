"""What probes are told: alive as long as the loop turns, ready while nothing stands still that should move."""

import json
from typing import Any

import pytest

from tests.worker.web.serving import READY, get, probed
from worker.metrics import Metrics
from worker.web.health import Readiness


class Watched:
    """A worker with two roles, of which one is as it should be."""

    def __init__(self, other: Readiness) -> None:
        self.metrics = Metrics()
        self._other = other

    def readiness(self) -> dict[str, Readiness]:
        return {"project": READY, "export:out": self._other}


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({}, 200),
        ({"assigned_partitions": 0, "ready_partitions": 0}, 200),
        ({"paused_partitions": 1}, 200),
        ({"stopped_partitions": 1}, 200),
        ({"is_ready": False, "ready_partitions": 3}, 503),
        ({"standing_partitions": 1}, 503),
    ],
    ids=["quiet", "standing by", "retrying", "stopped by a limit", "restoring", "standing still"],
)
def test_a_worker_is_alive_in_any_case_and_ready_unless_it_restores_or_stands_still(
    changes: dict[str, Any], status: int
) -> None:
    with probed(Watched(READY._replace(**changes))) as address:
        assert get(f"{address}/healthz").status == 200
        got = get(f"{address}/readyz")
    assert got.status == status
    told = json.loads(got.text)
    assert told["ready"] is (status == 200)
    assert told["roles"]["export:out"] == READY._replace(**changes)._asdict()
