"""A database in ClickHouse: one table of the newest versions, a view per record kind, and views to start from.

ClickHouse has neither transactions nor conditional writes: rows are added, and which of several versions of a record
counts is decided when rows are merged and when they are read. So "older never replaces newer" is the table's own rule
(its version column), whoever writes at the same time and in whatever order, and every view reads with FINAL.

A batch is one insert of one block: ClickHouse takes it whole or not at all. Its deduplication token is a digest of the
table's name and of generation, offset and key of every row. (A range of offsets would not do: two partitions have the
same offsets.) A repeated insert is dropped by its token; a generation that is built anew has a table, and so tokens, of
its own. Two batches with one token hold the same rows, because a version is a place in the log: for that reason it also
does no harm that of two rows at one version, from different batches, the last one inserted counts.

There is no SummingMergeTree and no materialized view behind the tables: both add up what is inserted, so a replay would
double it. Sums are views over the newest versions.

Rules for editing: see ``worker.stores.clickhouse``. A change of columns or views is a new ``SCHEMA_VERSION``.
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any, ClassVar, Final, TypeVar

import orjson
from clickhouse_connect.driver.client import Client

from projections.decode import decode_json
from projections.text import storable_text
from worker.sink import SinkRefused, Upsert
from worker.stores.clickhouse import (
    FIXED,
    SCHEMA_VERSION,
    TYPED,
    Meta,
    Place,
    ensure_views,
    kind_columns,
    make_place,
    place_of,
    point_anew,
    read_meta,
)
from worker.stores.clickhouse_server import connect, told
from worker.stores.columns import COLUMNS, PRICING_COLUMNS, row_values
from worker.threaded_sink import ServerSink

_Result = TypeVar("_Result")

_ROWS_PER_FILL: Final = 1_000
_NO_PRICING: Final = (None,) * len(PRICING_COLUMNS)
# Whatever the user's defaults are: a batch is one block, written when the answer comes, and dropped if it was before.
_INSERT_SETTINGS: Final = {
    "async_insert": 0,
    "insert_deduplicate": 1,
    "input_format_parallel_parsing": 0,
    "max_insert_block_size": 2**40,
    "min_insert_block_size_rows": 2**40,
    "min_insert_block_size_bytes": 2**40,
    "date_time_input_format": "'best_effort'",
    "input_format_null_as_default": 0,
}
_INSERT: Final = (
    "INSERT INTO {table} ({columns}) SETTINGS {settings}, insert_deduplication_token = '{token}' "
    "FORMAT JSONCompactEachRow\n"
)
_NAMES: Final = (*FIXED, *TYPED)
# What DateTime64 holds; it would quietly turn another time into one of these.
_FIRST_YEAR: Final = "1900"
_LAST_YEAR: Final = "2299"


def _positions(kind: str) -> tuple[list[int], list[int]]:
    """Where a kind's values stand among all columns, and which of them are times."""
    names = list(TYPED)
    columns = [column.name for column in COLUMNS[kind]]
    times = [number for number, column in enumerate(COLUMNS[kind]) if column.type == "time"]
    return [names.index(name) for name in [*columns, *(PRICING_COLUMNS if kind == "cost" else ())]], times


_POSITIONS: Final = {kind: _positions(kind) for kind in COLUMNS}


class ClickHouseSink(ServerSink[Client]):
    """Keep the newest version of every record in one database, for any number of writers."""

    single_writer: ClassVar[bool] = False
    is_durable: ClassVar[bool] = True

    def __init__(self, location: str, policy_digest: str) -> None:
        super().__init__()
        self._place = place_of(location)
        self._policy_digest = policy_digest
        # What the place pointed to when it was opened; another table lacks what was written into this one.
        self._table: str | None = None

    def _connect(self) -> Client:
        return connect(self._place.server)

    def _told(self, work: Callable[[], _Result]) -> _Result:
        return told(self._place.server, work)

    # ------------------------------------------------------------------------------------------------------ opening

    def _open(self) -> bool:
        return self._connected(self._opened)

    def _opened(self, client: Client) -> bool:
        meta = read_meta(client, self._place)
        if meta is None:
            meta = make_place(client, self._place, self._policy_digest)
        self._check(meta)
        if meta.schema_version < SCHEMA_VERSION:
            meta = _migrate(client, self._place, meta)
        if not self._place.word:
            ensure_views(client, self._place)
        self._table = meta.table
        table = self._place.at(meta.table)
        return not client.query(f"SELECT 1 FROM {table} LIMIT 1").result_rows  # noqa: S608 - our own name

    def _check(self, meta: Meta) -> None:
        """Check that what is there is of our policy and no newer. Raises SinkRefused."""
        if meta.policy_digest != self._policy_digest:
            raise SinkRefused(
                f"{self._place.name} was written under another policy (redaction, key, public_repos, price table, or "
                "another application): read everything again with `export resync`, or make a new export with another "
                "name and database"
            )
        if meta.schema_version > SCHEMA_VERSION:
            raise SinkRefused(
                f"{self._place.name} has schema version {meta.schema_version}, from a newer release than this one"
            )

    # ------------------------------------------------------------------------------------------------------ writing

    def _write(self, batch: Sequence[Upsert]) -> None:
        self._connected(lambda client: self._apply(client, batch))

    def _apply(self, client: Client, batch: Sequence[Upsert]) -> None:
        # Between two writes another table may have been put in this one's place.
        meta = read_meta(client, self._place)
        if meta is not None:
            self._check(meta)
        if meta is None or meta.table != self._table:
            raise SinkRefused(f"{self._place.name} is gone: read everything into a new one with `export resync`")
        _insert(client, self._place, meta.table, [_row(item) for item in batch], token_of(meta.table, batch))


def token_of(table: str, batch: Iterable[Upsert]) -> str:
    """Name a batch by what is in it: equal for the same versions of the same records in the same table alone."""
    rows = sorted((item.kind, item.id, item.generation, item.offset) for item in batch)
    digest = hashlib.sha256(table.encode())
    for kind, record_id, generation, offset in rows:
        # An id may hold anything, so its length comes first.
        text = storable_text(record_id).encode()
        digest.update(b"\n%s %d %d %d " % (kind.encode(), generation, offset, len(text)) + text)
    return digest.hexdigest()


def _row(item: Upsert) -> list[Any]:
    """The values of one row, in the order of all columns."""
    head = [item.kind, storable_text(item.id), item.generation, item.offset]
    if item.record is None or item.json is None:
        return [*head, 1, "", *([None] * len(TYPED))]
    pricing = (item.pricing or _NO_PRICING) if item.kind == "cost" else ()
    return [*head, 0, item.json.decode(), *_typed(item.kind, item.record, pricing)]


def _typed(kind: str, record: dict[str, Any], beside: Sequence[str | None]) -> list[Any]:
    positions, times = _POSITIONS[kind]
    values = row_values(kind, record)
    for number in times:
        values[number] = _time(values[number])
    row: list[Any] = [None] * len(TYPED)
    for position, value in zip(positions, [*values, *beside], strict=True):
        row[position] = value
    return row


def _time(value: str | None) -> str | None:
    return value if value is not None and _FIRST_YEAR <= value[:4] <= _LAST_YEAR else None


def _insert(client: Client, place: Place, table: str, rows: Sequence[list[Any]], token: str) -> None:
    statement = _INSERT.format(
        table=place.at(table),
        columns=", ".join(_NAMES),
        settings=", ".join(f"{name} = {value}" for name, value in _INSERT_SETTINGS.items()),
        token=token,
    )
    client.raw_insert("", insert_block=statement.encode() + b"\n".join(map(orjson.dumps, rows)))


def _migrate(client: Client, place: Place, meta: Meta) -> Meta:
    """Add the columns that an older release's table lacks, and fill them from the records.

    Rows are written once more at their own versions, of which the last one counts; whoever writes a newer version
    meanwhile is newer.
    """
    table = place.at(meta.table)
    known = {str(row[0]) for row in client.query(f"DESCRIBE TABLE {table}").result_rows}
    added = [name for name in TYPED if name not in known]
    for name in added:
        client.command(f"ALTER TABLE {table} ADD COLUMN IF NOT EXISTS {name} {TYPED[name]}")
    kinds = [kind for kind in COLUMNS if any(name in kind_columns(kind) for name in added)]
    for kind in kinds:
        _fill(client, place, meta.table, kind)
    return point_anew(client, place, meta)


def _fill(client: Client, place: Place, table: str, kind: str) -> None:
    prices = PRICING_COLUMNS if kind == "cost" else ()
    names = ", ".join(["id", "_generation", "_offset", "record", *prices])
    query = f"SELECT {names} FROM {place.at(table)} FINAL WHERE kind = '{kind}'"  # noqa: S608 - our own names
    with client.query_rows_stream(query) as stream:
        rows = iter(stream)
        while chunk := list(islice(rows, _ROWS_PER_FILL)):
            filled = [
                [kind, record_id, generation, offset, 0, record, *_typed(kind, decode_json(record.encode()), beside)]
                for record_id, generation, offset, record, *beside in chunk
            ]
            # Not the token of the batch that these rows first came in.
            versions = [Upsert(kind, row[1], row[2], row[3], None, None) for row in filled]
            _insert(client, place, table, filled, token_of(f"{table} {SCHEMA_VERSION}", versions))
