"""Sinks without a file: one that tests read, and one that prints its records when it is closed."""

import sys
from collections.abc import Sequence
from typing import ClassVar, Final

from worker.sink import Pricing, RecordKey, SinkRefused, Upsert, Version, newest_by_id


class MemoryStore:
    """The newest version of every record, and under which policy they were written."""

    def __init__(self) -> None:
        self.policy_digest: str | None = None
        self.entries: dict[RecordKey, tuple[Version, bytes | None]] = {}
        self.pricing: dict[RecordKey, Pricing | None] = {}
        self.changes_total = 0

    def apply(self, batch: Sequence[Upsert]) -> None:
        """Take in a batch as a whole."""
        changed: dict[RecordKey, tuple[Version, bytes | None]] = {}
        pricing: dict[RecordKey, Pricing | None] = {}
        for item in newest_by_id(batch):
            known = self.entries.get(item.key)
            if known is None or item.version > known[0]:
                changed[item.key] = item.version, item.json
                pricing[item.key] = item.pricing
        self.entries |= changed
        self.pricing |= pricing
        self.changes_total += len(changed)

    def records(self) -> list[bytes]:
        """Bytes of the living records in the order of their ids' UTF-8, then of their kinds."""
        # Text compares by code points, which is the order of UTF-8 bytes.
        live = sorted((record_id, kind) for (kind, record_id), (_, json) in self.entries.items() if json is not None)
        lines = (self.entries[kind, record_id][1] for record_id, kind in live)
        return [json for json in lines if json is not None]


_STORES: Final[dict[str, MemoryStore]] = {}


def memory_store(name: str) -> MemoryStore:
    """What the sinks ``memory:<name>`` of this process hold together."""
    return _STORES.setdefault(name, MemoryStore())


class MemorySink:
    """Keep records in this process: in a store that ``memory:NAME`` names and shares, or in one of its own."""

    single_writer: ClassVar[bool] = False
    is_durable: ClassVar[bool] = False

    def __init__(self, location: str, policy_digest: str) -> None:
        self.store = memory_store(location) if location else MemoryStore()
        self._policy_digest = policy_digest

    async def open(self) -> bool:
        if self.store.policy_digest not in (None, self._policy_digest):
            raise SinkRefused("the memory sink holds records of another policy; give the export another name there")
        self.store.policy_digest = self._policy_digest
        return not self.store.entries

    async def write(self, batch: Sequence[Upsert]) -> None:
        self.store.apply(batch)

    async def close(self) -> None:
        """Nothing is held."""


class StdoutSink:
    """Collect records and write them to standard output when closed: one line each, in the order of their ids."""

    single_writer: ClassVar[bool] = True
    is_durable: ClassVar[bool] = False

    def __init__(self, location: str, policy_digest: str) -> None:
        if location:
            raise SinkRefused("standard output has no path: write stdout: or -")
        self.store = MemoryStore()
        self.store.policy_digest = policy_digest

    async def open(self) -> bool:
        return not self.store.entries

    async def write(self, batch: Sequence[Upsert]) -> None:
        self.store.apply(batch)

    async def close(self) -> None:
        lines, self.store.entries = self.store.records(), {}
        sys.stdout.buffer.writelines(line + b"\n" for line in lines)
        sys.stdout.buffer.flush()
