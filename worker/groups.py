"""Consumer groups looked at and moved from outside: how far they have committed, who is in them, where they go on."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer
from aiokafka.errors import (
    CommitFailedError,
    GroupCoordinatorNotAvailableError,
    GroupLoadInProgressError,
    NotCoordinatorForGroupError,
    for_code,
)
from aiokafka.protocol.admin import DeleteGroupsRequest

from worker.kafka import TopicPartition, admin_client, client_options
from worker.settings import Settings
from worker.topic_scan import BrokerFailed, broker_errors, connecting

_Result = TypeVar("_Result")

_COORDINATOR_TRIES = 30
_COORDINATOR_PAUSE_S = 0.3
_POLL_S = 0.5
_NOT_YET = (GroupCoordinatorNotAvailableError, GroupLoadInProgressError, NotCoordinatorForGroupError)


class GroupInUse(Exception):  # noqa: N818  (a state of the world, not a fault of the program)
    """Somebody is a member of the group, so its offsets stay as they are; the text says who has to stop."""


class GroupsClient:
    """One connection to the groups' coordinators; made by ``open_groups``."""

    def __init__(self, settings: Settings, admin: Any) -> None:
        self._settings = settings
        self._admin = admin

    async def committed(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Give the committed offsets of a group; a partition without one is left out."""
        wanted = sorted(partitions)
        if not wanted:
            return {}
        found = await self._ask(lambda: self._admin.list_consumer_group_offsets(group, partitions=wanted))
        return {TopicPartition(*place): entry.offset for place, entry in found.items() if entry.offset >= 0}

    async def member_count(self, group: str) -> int:
        """Count who is in a group now."""
        [response] = await self._ask(lambda: self._admin.describe_consumer_groups([group]))
        [description] = response.groups
        return len(description[5])

    async def require_empty(self, group: str, purpose: str) -> None:
        """Raise GroupInUse while anybody is in a group."""
        count = await self.member_count(group)
        if count:
            raise GroupInUse(
                f"group {group} has {count} member{'s' if count > 1 else ''}: {purpose} needs it empty, because the "
                "broker lets nobody else move its offsets; stop those workers (or that role of them) first"
            )

    async def move(self, group: str, positions: Mapping[TopicPartition, int], purpose: str) -> None:
        """Set the committed offsets of a group that nobody is in. Raises GroupInUse."""
        await self.require_empty(group, purpose)
        consumer = AIOKafkaConsumer(group_id=group, enable_auto_commit=False, **client_options(self._settings))
        # The one complaint that may come is told by the error below.
        coordinator_log = logging.getLogger("aiokafka.consumer.group_coordinator")
        coordinator_log.setLevel(logging.CRITICAL)
        with broker_errors(self._settings):
            await consumer.start()
            try:
                consumer.assign(list(positions))
                await consumer.commit(dict(positions))
            except CommitFailedError as error:
                raise GroupInUse(f"group {group} got a member meanwhile; nothing was moved") from error
            finally:
                await consumer.stop()
                coordinator_log.setLevel(logging.NOTSET)

    async def delete(self, group: str) -> bool:
        """Delete a group with its committed offsets; False when there is none. Raises GroupInUse."""

        async def send() -> Any:
            node = await self._admin.find_coordinator(group)
            return await self._admin._send_request(DeleteGroupsRequest([group]), node)  # noqa: SLF001

        response = await self._ask(send)
        [(_group, code)] = response.results
        name = for_code(code).__name__ if code else ""
        if name == "NonEmptyGroup":
            raise GroupInUse(f"group {group} has members; stop those workers first")
        if name not in ("", "GroupIdNotFound"):
            raise BrokerFailed(f"group {group} cannot be deleted: {name}")
        return not name

    async def wait_until(
        self,
        group: str,
        targets: Mapping[TopicPartition, int],
        timeout_s: float,
        on_behind: Callable[[int], None] = lambda _behind: None,
    ) -> bool:
        """Wait until a group has committed at least so far; False when it made no progress for so long."""
        best, deadline = None, time.monotonic() + timeout_s
        while True:
            committed = await self.committed(group, targets)
            behind = sum(max(0, target - committed.get(place, 0)) for place, target in targets.items())
            on_behind(behind)
            if not behind:
                return True
            if best is None or behind < best:
                best, deadline = behind, time.monotonic() + timeout_s
            if time.monotonic() >= deadline:
                return False
            await asyncio.sleep(_POLL_S)

    async def _ask(self, ask: Callable[[], Awaitable[_Result]]) -> _Result:
        """Ask a coordinator; the first question in a cluster's life, or after a failover, may come too early."""
        with broker_errors(self._settings):
            for _ in range(_COORDINATOR_TRIES - 1):
                try:
                    return await ask()
                except _NOT_YET:
                    await asyncio.sleep(_COORDINATOR_PAUSE_S)
            return await ask()


@asynccontextmanager
async def open_groups(settings: Settings) -> AsyncIterator[GroupsClient]:
    """Connect for as long as groups are looked at. Raises BrokerFailed."""
    admin = admin_client(settings)
    try:
        async with connecting(settings):
            await admin.start()
        yield GroupsClient(settings, admin)
    finally:
        await admin.close()
