"""The port to a destination: what an upsert is, what every sink promises, and the table of sinks by URL scheme.

Rules for editing: a new destination is one module under ``worker/sinks`` and one line in ``SINKS``; being in the table
is being tested by the one contract test, which fails until the destination has a fixture there.
"""

import importlib
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Final, NamedTuple, Protocol

Version = tuple[int, int]
"""Generation and offset in ``trace-records``: what orders the versions of one record."""

RecordKey = tuple[str, str]
"""Kind and id. A run's id is free text that may spell another record's id, so an id alone names nothing."""

SINKS: Final[dict[str, str]] = {
    "clickhouse": "worker.sinks.clickhouse:ClickHouseSink",
    "delta": "worker.sinks.delta_table:DeltaSink",
    "duckdb": "worker.sinks.duckdb_file:DuckDBSink",
    "jsonl": "worker.sinks.jsonl:JsonlSink",
    "kafka": "worker.sinks.kafka_topic:KafkaTopicSink",
    "memory": "worker.sinks.memory:MemorySink",
    "otlp": "worker.sinks.otlp:OtlpSink",
    "parquet": "worker.sinks.parquet_files:ParquetSink",
    "postgresql": "worker.sinks.postgresql:PostgreSQLSink",
    "stdout": "worker.sinks.memory:StdoutSink",
}
"""URL scheme to ``module:class``, as text, so that a driver loads only when a URL names it."""

APPEND_ONLY: Final = frozenset({"otlp"})
"""Schemes whose destination takes nothing back: their modules say what becomes of deletions and of newer versions."""

_STDOUT_URLS: Final = ("-", "jsonl:-")


class SinkBusy(Exception):  # noqa: N818  (backpressure, not an error)
    """Somebody else holds the destination; nothing was written, and the same batch may be tried after a delay."""

    def __init__(self, message: str, delay_s: float) -> None:
        super().__init__(message)
        self.delay_s = delay_s


class SinkRefused(Exception):  # noqa: N818  (a state of the destination, not a fault of the program)
    """The destination must not be written as it is (another policy, a foreign file); only a person can mend it."""


class SinkFailed(Exception):  # noqa: N818  (named as its siblings)
    """The destination failed in a way that may pass; the text holds nothing of a record and may be logged."""


class Pricing(NamedTuple):
    """Where the amount of a cost comes from, or why there is none; a record has no place for it.

    ``basis`` is ``reported``, ``existing_estimate``, ``estimate`` or ``unavailable`` (``reason`` says why);
    ``table_version`` is the version of the price table that was asked, None when the source knew the amount.
    """

    basis: str
    reason: str | None = None
    table_version: str | None = None


class Upsert(NamedTuple):
    """One version of one record on its way into a sink; ``record`` and ``json`` are both None for a deletion.

    ``id`` is the id that may leave, and the record's own; ``json`` holds the record's exact bytes, on one line.
    ``pricing`` stands beside each cost of an export that estimates costs; a sink that has a place for it keeps it.
    """

    kind: str
    id: str
    generation: int
    offset: int
    record: dict[str, Any] | None
    json: bytes | None
    pricing: Pricing | None = None

    @property
    def key(self) -> RecordKey:
        """What is upserted: kind and id."""
        return self.kind, self.id

    @property
    def version(self) -> Version:
        """What guards it: an older version never replaces a newer one."""
        return self.generation, self.offset


class Sink(Protocol):
    """A destination that holds the newest version of every record, one row or line per kind and id.

    Every sink keeps, per key, only the greatest (generation, offset) it was given, deletions included: it remembers
    what was deleted at which version, so an older record stays deleted and a newer one comes back. A version that is
    equal to the one it holds changes nothing. So any batching, order and repetition of upserts leaves the same content.
    """

    @property
    def single_writer(self) -> bool:
        """Whether one member of an export's group has to take all partitions."""
        ...

    is_durable: ClassVar[bool]
    """Whether what was written outlives the process."""

    async def open(self) -> bool:
        """Make ready, the destination made or migrated if need be; whether it holds nothing yet, deletions included.

        A sink that is empty although offsets were committed was lost: its topic has to be read from the start.
        Raises ``SinkBusy`` or ``SinkRefused``. May be called again after ``close``.
        """
        ...

    async def write(self, batch: Sequence[Upsert]) -> None:
        """Apply a batch as a whole; durable (if the sink is) when it returns, and without effect when it raises.

        Raises ``SinkBusy``, ``SinkRefused``, ``SinkFailed`` or ``OSError``; the same batch may always be tried again.
        """
        ...

    async def close(self) -> None:
        """Let go of everything; waits for a write whose caller was cancelled. Does nothing on a closed sink."""
        ...


def open_sink(url: str, policy_digest: str) -> Sink:
    """Make the sink that a URL names; nothing is touched before its ``open``.

    ``policy_digest`` is stored in the destination, which refuses another one later. Raises ``SinkRefused`` for a scheme
    that is not in the table and for a location that the sink cannot use.
    """
    scheme, location = split_sink_url(url)
    module, _, name = SINKS[scheme].partition(":")
    try:
        loaded = importlib.import_module(module)
    except ImportError:
        raise SinkRefused(f"the driver of {scheme}: is missing; install trace-projector[{scheme}]") from None
    sink: Sink = getattr(loaded, name)(location, policy_digest)
    return sink


def split_sink_url(url: str) -> tuple[str, str]:
    """Scheme and location of a sink URL; ``-`` and ``jsonl:-`` are standard output. Raises ``SinkRefused``."""
    if url in _STDOUT_URLS:
        return "stdout", ""
    scheme, colon, location = url.partition(":")
    if not colon or scheme not in SINKS:
        # The URL itself may hold a password, so only its scheme is repeated.
        known = ", ".join(f"{name}:" for name in SINKS)
        raise SinkRefused(f"no sink has the scheme {scheme!r}; there are {known}" if colon else f"no sink URL: {known}")
    return scheme, location


def newest_by_id(batch: Iterable[Upsert]) -> list[Upsert]:
    """The newest version of each record in a batch, in the order in which the records first appear.

    Of two equal versions the first stays, as it would across two batches.
    """
    newest: dict[RecordKey, Upsert] = {}
    for item in batch:
        assert (item.record is None) == (item.json is None), "a record comes with its bytes, a deletion with neither"
        known = newest.get(item.key)
        if known is None or item.version > known.version:
            newest[item.key] = item
    return list(newest.values())
