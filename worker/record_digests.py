"""Digests of records, per run and altogether: two sets of records are compared without either being held.

A run's digest is over the sorted digests of its records, and the digest of everything over those of the runs, so equal
digests mean equal bytes, and only where they differ is anything looked at more closely.
"""

from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from typing import Any, NamedTuple

from worker.sink import RecordKey

_DIGEST_BYTES = 16


class Leaf(NamedTuple):
    """The run that a record is of, and the digest of its bytes and of what stands beside them."""

    run_id: str
    digest: bytes


Leaves = dict[RecordKey, Leaf]


class Difference(NamedTuple):
    """A record on which two sets differ: ``only_in`` one of them (0 or 1), or in some fields (dotted paths)."""

    run_id: str
    kind: str
    id: str
    only_in: int | None
    fields: tuple[str, ...] = ()


def digest_of(data: bytes, *beside: bytes) -> bytes:
    """Digest a record's bytes and what stands beside them."""
    digest = blake2b(digest_size=_DIGEST_BYTES)
    for part in (data, *beside):
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.digest()


def run_digests(leaves: Leaves) -> dict[str, bytes]:
    """Give the digest of each run."""
    by_run: dict[str, list[tuple[str, str, bytes]]] = {}
    for (kind, record_id), leaf in leaves.items():
        by_run.setdefault(leaf.run_id, []).append((kind, record_id, leaf.digest))
    return {
        run_id: digest_of(*(part for kind, name, digest in sorted(rows) for part in (_text(kind), _text(name), digest)))
        for run_id, rows in by_run.items()
    }


def root_digest(runs: Mapping[str, bytes]) -> str:
    """Give the digest of everything, in hexadecimal."""
    return digest_of(b"", *(part for run_id in sorted(runs) for part in (_text(run_id), runs[run_id]))).hex()


def differing_keys(one: Leaves, other: Leaves) -> list[RecordKey]:
    """Give the records on which two sets differ, by run, going down only where the digests of runs differ."""
    left, right = run_digests(one), run_digests(other)
    differing = {run_id for run_id in left.keys() | right.keys() if left.get(run_id) != right.get(run_id)}
    found: dict[RecordKey, str] = {}
    for leaves, others in ((one, other), (other, one)):
        for key, leaf in leaves.items():
            if leaf.run_id in differing and others.get(key) != leaf:
                found.setdefault(key, leaf.run_id)
    return sorted(found, key=lambda key: (found[key], *key))


def differing_fields(one: Any, other: Any, path: str = "") -> Iterator[str]:
    """Give the dotted paths at which two values of JSON differ; a list is compared as a whole."""
    if isinstance(one, dict) and isinstance(other, dict):
        for name in sorted(one.keys() | other.keys()):
            inner = f"{path}.{name}" if path else name
            if name not in one or name not in other:
                yield inner
            else:
                yield from differing_fields(one[name], other[name], inner)
    elif type(one) is not type(other) or one != other:
        yield path or "(all)"


def _text(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def describe(
    keys: Iterable[RecordKey], one: Mapping[RecordKey, dict[str, Any]], other: Mapping[RecordKey, dict[str, Any]]
) -> Iterator[Difference]:
    """Name what differs in each of some records, whose bodies are given where there are any."""
    for key in keys:
        left, right = one.get(key), other.get(key)
        body = left if left is not None else right
        assert body is not None, "a record that differs is in one of the two"
        run_id = str(body["runId"])
        if left is None or right is None:
            yield Difference(run_id, *key, 0 if right is None else 1)
        else:
            # Equal values in other bytes: another order of fields, or what stands beside the record.
            fields = tuple(differing_fields(left, right)) or ("(bytes)",)
            yield Difference(run_id, *key, None, fields)
