"""Arrow schemas of each record kind, and records as Arrow tables: one place for Parquet files and for Delta tables.

Rules for editing: every column comes from ``COLUMNS`` with a type of its own, and nothing is inferred from values, so a
column that is null in a whole batch has its type all the same. Counts are int64. Money is a double, because a record's
amount is one: the column holds the same bits, where a decimal would round. Times are instants to the microsecond; all
digits of them, as of everything else, stand in ``record``, which holds a record's own bytes.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import pyarrow as pa

from projections.decode import decode_json
from projections.text import storable_text
from worker.sink import Upsert
from worker.stores.columns import COLUMNS, PRICING_COLUMNS, row_values

KEY_COLUMNS: Final = ("id", "_generation", "_offset")
DELETIONS: Final = "deletions"

_TYPES: Final = {
    "text": pa.string(),
    "count": pa.int64(),
    "number": pa.float64(),
    "flag": pa.bool_(),
    "time": pa.timestamp("us", tz="UTC"),
    "json": pa.string(),
}
_VERSION_FIELDS: Final = (
    pa.field("_generation", pa.int64(), nullable=False),
    pa.field("_offset", pa.int64(), nullable=False),
)
_ID_FIELD: Final = pa.field("id", pa.string(), nullable=False)
_KIND_FIELD: Final = pa.field("kind", pa.string(), nullable=False)
_RECORD_FIELD: Final = pa.field("record", pa.string(), nullable=False)


def _typed_fields(kind: str) -> list[Any]:
    return [pa.field(column.name, _TYPES[column.type]) for column in COLUMNS[kind]]


def _beside(kind: str) -> tuple[str, ...]:
    return PRICING_COLUMNS if kind == "cost" else ()


def table_schema(kind: str) -> Any:
    """Give the schema of what a sink keeps of a kind: key, version, record, typed columns, what an amount rests on."""
    beside = [pa.field(name, pa.string()) for name in _beside(kind)]
    return pa.schema([_ID_FIELD, *_VERSION_FIELDS, _RECORD_FIELD, *_typed_fields(kind), *beside])


def file_schema(kind: str) -> Any:
    """Give the schema of a file of an export: no version, as there is nothing to be newer than."""
    return pa.schema([_ID_FIELD, _RECORD_FIELD, *_typed_fields(kind)])


DELETIONS_SCHEMA: Final = pa.schema([_KIND_FIELD, _ID_FIELD, *_VERSION_FIELDS])
"""What was deleted at which version, of all kinds."""


def table_of(kind: str, batch: Sequence[Upsert]) -> Any:
    """Living versions of one kind as a table of ``table_schema``; the ids are such that every reader takes them."""
    pricing = [item.pricing or (None,) * len(PRICING_COLUMNS) for item in batch]
    columns: list[Sequence[Any]] = [
        [storable_text(item.id) for item in batch],
        [item.generation for item in batch],
        [item.offset for item in batch],
        [item.json for item in batch],
        *_typed_columns(kind, [item.record for item in batch]),
        *([row[number] for row in pricing] for number in range(len(_beside(kind)))),
    ]
    return _table(columns, table_schema(kind))


def deletions_of(batch: Sequence[Upsert]) -> Any:
    """Give deletions as a table of ``DELETIONS_SCHEMA``."""
    columns: list[Sequence[Any]] = [
        [item.kind for item in batch],
        [storable_text(item.id) for item in batch],
        [item.generation for item in batch],
        [item.offset for item in batch],
    ]
    return _table(columns, DELETIONS_SCHEMA)


def file_table(kind: str, rows: Iterable[tuple[str, bytes]]) -> Any:
    """Ids and bytes of records of one kind as a table of ``file_schema``."""
    pairs = list(rows)
    columns: list[Sequence[Any]] = [
        [storable_text(record_id) for record_id, _ in pairs],
        [data for _, data in pairs],
        *_typed_columns(kind, [decode_json(data) for _, data in pairs]),
    ]
    return _table(columns, file_schema(kind))


def with_typed_columns(kind: str, table: Any) -> Any:
    """Give a table that an older release wrote all the columns of now; those it lacks are read from its records."""
    schema = table_schema(kind)
    missing = [field.name for field in schema if field.name not in table.column_names]
    if missing:
        records = [decode_json(record.encode()) for record in table.column("record").to_pylist()]
        names = [column.name for column in COLUMNS[kind]]
        filled = dict(zip(names, _typed_columns(kind, records), strict=True))
        for name in missing:
            values = filled.get(name, [None] * len(records))
            table = table.append_column(schema.field(name), _array(values, schema.field(name).type))
    return table.select(schema.names).cast(schema)


def _typed_columns(kind: str, records: Sequence[Any]) -> list[Sequence[Any]]:
    if not records:
        return [[] for _ in COLUMNS[kind]]
    return list(zip(*(row_values(kind, record) for record in records), strict=True))


def _table(columns: Sequence[Sequence[Any]], schema: Any) -> Any:
    arrays = [_array(values, field.type) for values, field in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


def _array(values: Sequence[Any], type_: Any) -> Any:
    if pa.types.is_timestamp(type_):
        return pa.array(values, pa.string()).cast(type_)
    return pa.array(values, type_)
