"""What an aggregate said last, so that it says only what differs."""

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, NamedTuple

import orjson

from projections.canonical import encode_record

_DIGEST_BYTES = 16


class Change(NamedTuple):
    """A record as it now is, or (``record`` is None) that it is gone.

    ``repo`` is the repository of an artifact, which a deletion needs to be redacted like its record was.
    ``cache_write_split`` {ttl5m, ttl1h} says how many tokens of a cost's cache writes live how long, where the source
    says so: a record has no place for it, and without it cache writes have no price.
    """

    kind: str
    id: str
    repo: str | None
    record: bytes | None
    cache_write_split: Mapping[str, int] | None = None


class Said(NamedTuple):
    """One derived fact as its sender now means it; ``body`` None withdraws it."""

    aggregate: str
    key: str
    body: Any


class Emitter:
    """The records and derived facts of one aggregate as they were last emitted, kept as digests."""

    __slots__ = ("_facts", "_records", "changes", "said")

    def __init__(self) -> None:
        self._records: dict[str, tuple[str, str | None, bytes]] = {}
        self._facts: dict[tuple[str, str], bytes] = {}
        self.changes: list[Change] = []
        self.said: list[Said] = []

    def take(self) -> tuple[list[Change], list[Said]]:
        """Give what changed since the last take."""
        changes, said = self.changes, self.said
        self.changes, self.said = [], []
        return changes, said

    def put_record(self, record: dict[str, Any], cache_write_split: Mapping[str, int] | None = None) -> None:
        """Say how a record now is, and what is known beside it."""
        data = encode_record(record)
        record_id, kind, repo = record["id"], record["kind"], record.get("repo")
        beside = b"" if cache_write_split is None else orjson.dumps(cache_write_split)
        digest = blake2b(data + beside, digest_size=_DIGEST_BYTES).digest()
        held = self._records.get(record_id)
        if held is not None and held[2] == digest:
            return
        self._records[record_id] = (kind, repo, digest)
        self.changes.append(Change(kind, record_id, repo, data, cache_write_split))

    def drop_record(self, record_id: str) -> None:
        """Say that a record is gone; nothing when it never was."""
        held = self._records.pop(record_id, None)
        if held is not None:
            self.changes.append(Change(held[0], record_id, held[1], None))

    def put_fact(self, aggregate: str, key: str, body: Any) -> None:
        """Say a derived fact; None withdraws it."""
        name = (aggregate, key)
        if body is None:
            if self._facts.pop(name, None) is not None:
                self.said.append(Said(aggregate, key, None))
            return
        digest = blake2b(orjson.dumps(body), digest_size=_DIGEST_BYTES).digest()
        if self._facts.get(name) != digest:
            self._facts[name] = digest
            self.said.append(Said(aggregate, key, body))

    def replace(
        self,
        records: list[dict[str, Any]],
        facts: dict[tuple[str, str], Any],
        cache_write_splits: Mapping[str, Mapping[str, int]] | None = None,
    ) -> None:
        """Say everything at once: what is not named any more is gone; splits are by the id of their record."""
        splits = cache_write_splits or {}
        named = {record["id"] for record in records}
        for gone in [record_id for record_id in self._records if record_id not in named]:
            self.drop_record(gone)
        for record in records:
            self.put_record(record, splits.get(record["id"]))
        for name in [name for name in self._facts if name not in facts]:
            self.put_fact(*name, None)
        for (aggregate, key), body in facts.items():
            self.put_fact(aggregate, key, body)
