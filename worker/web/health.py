"""The pages for whoever watches a worker: live, ready, and its metrics."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, NamedTuple, Protocol

import faust
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import SecretStr

from worker.metrics import Metrics
from worker.web.access import is_allowed


class Readiness(NamedTuple):
    """How far one role is: partitions that the group has given, those whose state is restored, and those that wait.

    Stopped partitions have had too many dead letters, or stand at a corrupt batch: that was decided, is told by alerts,
    and makes no worker unready. Standing ones have messages to read and a committed offset that does not move, which
    nobody decided: until it does their worker is not ready, though what it has besides goes on.
    """

    is_ready: bool
    assigned_partitions: int
    ready_partitions: int
    paused_partitions: int
    stopped_partitions: int
    standing_partitions: int


class Watched(Protocol):
    """What the pages show of a worker."""

    metrics: Metrics

    def readiness(self) -> Mapping[str, Readiness]:
        """Give the readiness of every role that runs here."""


def add_pages(app: faust.App, watched: Watched, token: SecretStr | None = None) -> None:
    """Put the pages on an app that has not started yet; the metrics are for those who name the token, if there is one.

    Whether a worker is alive and ready is told to everybody: probes have no secrets, and the answer holds none.
    """

    @app.page("/healthz")
    async def healthz(web: Any, _request: Any) -> Any:
        # That this answers at all is the message: the event loop that moves the data is the one that serves pages.
        return web.json({"live": True})

    @app.page("/readyz")
    async def readyz(web: Any, _request: Any) -> Any:
        roles = watched.readiness()
        is_ready = all(readiness.is_ready and not readiness.standing_partitions for readiness in roles.values())
        return web.json(
            {"ready": is_ready, "roles": {role: readiness._asdict() for role, readiness in roles.items()}},
            status=HTTPStatus.OK if is_ready else HTTPStatus.SERVICE_UNAVAILABLE,
        )

    @app.page("/metrics")
    async def metrics(web: Any, request: Any) -> Any:
        if not is_allowed(request.headers.get("Authorization", ""), token):
            return web.text("401: this page wants a bearer token", status=HTTPStatus.UNAUTHORIZED)
        return web.bytes(watched.metrics.exposition(), headers={"Content-Type": CONTENT_TYPE_LATEST})
