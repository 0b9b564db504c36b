"""The tables of a DuckDB file and the statements that write to them.

Rules for editing: a change of tables or views is a new ``SCHEMA_VERSION``; ``migrate`` brings older files up to it.
"""

import json
from collections.abc import Container, Iterable
from typing import Any, Final

import duckdb

from worker.stores.columns import COLUMNS, PRICING_COLUMNS, Column
from worker.stores.views import DUCKDB, view_queries

SCHEMA_VERSION: Final = 4
_SQL_TYPES: Final = {
    "text": "VARCHAR",
    "count": "BIGINT",
    "number": "DOUBLE",
    "flag": "BOOLEAN",
    "time": "TIMESTAMPTZ",
    "json": "JSON",
}

# A record is text and not JSON: DuckDB's JSON refuses escapes of lone surrogates, and one such row would take its batch
# down. The operators of JSON (record ->> '$.error') work on it all the same.
#
# No table of records has an index: DuckDB reads the whole index of a table with every attach and writes it with every
# checkpoint. Rows are found by joining the batch with a column of digests instead, which takes 16 bytes a row: with
# 200,000 records a write of 100 scattered ones took 0.6 of the time.
_KEY_COLUMNS: Final = "id VARCHAR NOT NULL, _key UUID NOT NULL, _generation BIGINT NOT NULL, _offset BIGINT NOT NULL"
_KEY: Final = "sha256(id)[1:32]::UUID"
_BESIDE: Final[dict[str, tuple[str, ...]]] = {"cost": PRICING_COLUMNS}
_DEFINITIONS: Final = {
    **{
        f"trace_{kind}": f"CREATE TABLE IF NOT EXISTS trace_{kind} ({_KEY_COLUMNS}, record VARCHAR NOT NULL, "
        f"{', '.join(f'{column.name} {_SQL_TYPES[column.type]}' for column in columns)}"
        f"{''.join(f', {name} VARCHAR' for name in _BESIDE.get(kind, ()))});"
        for kind, columns in COLUMNS.items()
    },
    "trace_deletions": f"CREATE TABLE IF NOT EXISTS trace_deletions (kind VARCHAR NOT NULL, {_KEY_COLUMNS});",
}
_META: Final = "CREATE TABLE IF NOT EXISTS trace_meta (name VARCHAR PRIMARY KEY, value VARCHAR NOT NULL);"
TABLES: Final = "\n".join([*_DEFINITIONS.values(), _META])
_ANEW: Final = "_trace_projector_anew"

VIEWS: Final = "".join(f"CREATE OR REPLACE VIEW {name} AS {query};" for name, query in view_queries(DUCKDB).items())

_IS_NEWER: Final = "(incoming._generation, incoming._offset) > ({0}._generation, {0}._offset)"
_IS_SAME_DELETED: Final = "incoming.kind = trace_deletions.kind AND incoming._key = trace_deletions._key"
# What an equal or a newer deletion has outlived; what is left outlives every deletion of its record.
PASS_OVER_DELETED: Final = f"""
DELETE FROM incoming USING trace_deletions WHERE {_IS_SAME_DELETED} AND NOT {_IS_NEWER.format("trace_deletions")};
DELETE FROM trace_deletions USING incoming WHERE {_IS_SAME_DELETED};
"""  # noqa: S608 - every part is a constant of this module


def _shape(columns: Iterable[Column]) -> str:
    """What DuckDB is to read out of a record's JSON for these columns: their keys, nested as they are there."""
    shape: dict[str, Any] = {}
    for column in columns:
        level = shape
        for key in column.path[:-1]:
            level = level.setdefault(key, {})
        read_as = "VARCHAR" if column.type == "time" else _SQL_TYPES[column.type]
        assert level.setdefault(column.path[-1], read_as) == read_as, "a key is read in one way, whatever the kind"
    return json.dumps(shape)


def _parsed(columns: Iterable[Column], text: str) -> str:
    """What a text gives for these columns; one that DuckDB's JSON refuses gives NULL in every column."""
    return f"json_transform(CASE WHEN json_valid({text}) THEN {text} END, '{_shape(columns)}')"


def _value(column: Column) -> str:
    value = ".".join(["parsed", *(f'"{key}"' for key in column.path)])
    return f"TRY_CAST({value} AS TIMESTAMPTZ)" if column.type == "time" else value


def _staged(column: Column) -> str:
    """The name of a value in ``incoming``: columns of one name may stand for different keys in different kinds."""
    return f'"{".".join(column.path)}"'


# What is read out of JSON is read for all kinds at once: planning a statement that takes apart what was read costs more
# than running it on a small batch, so there is one such statement a write and not one for each kind.
_OF_ALL_KINDS: Final = tuple({column.path: column for columns in COLUMNS.values() for column in columns}.values())
_STAGE: Final = f"""
CREATE OR REPLACE TEMP TABLE incoming AS
SELECT * EXCLUDE (storable, parsed), {_KEY} AS _key,
    {", ".join(f"{_value(column)} AS {_staged(column)}" for column in _OF_ALL_KINDS)}
FROM (
    SELECT *, {_parsed(_OF_ALL_KINDS, "coalesce(storable, record)")} AS parsed
    FROM (
        SELECT unnest($kind::VARCHAR[]) AS kind, unnest($id::VARCHAR[]) AS id,
            unnest($generation::BIGINT[]) AS _generation, unnest($offset::BIGINT[]) AS _offset,
            unnest($record::VARCHAR[]) AS record, {{beside}}
    )
)
"""  # noqa: S608 - every part is a constant of this module


def stage_sql(given: Container[str]) -> str:
    """Make the statement that puts a batch into ``incoming``, out of lists of which those of ``given`` are there."""
    names = ("storable", *PRICING_COLUMNS)
    # A list costs as much when all of it is NULL, and most batches have nothing to say in these columns.
    sources = {name: f"unnest(${name}::VARCHAR[])" if name in given else "NULL::VARCHAR" for name in names}
    return _STAGE.replace("{beside}", ", ".join(f"{source} AS {name}" for name, source in sources.items()))


def _remove_older_sql(kind: str) -> str:
    return f"""
    DELETE FROM trace_{kind} USING incoming
    WHERE incoming.kind = '{kind}' AND incoming._key = trace_{kind}._key AND {_IS_NEWER.format(f"trace_{kind}")}
    """  # noqa: S608 - every part is a constant of this module


def _of_kind(kind: str, *, is_deletion: bool) -> str:
    """Say which of a batch are to be stored: those whose record has no row, which were new or have had it removed."""
    return f"""
    incoming WHERE kind = '{kind}' AND record IS {"NULL" if is_deletion else "NOT NULL"}
        AND NOT EXISTS (SELECT 1 FROM trace_{kind} WHERE trace_{kind}._key = incoming._key)
    """  # noqa: S608 - every part is a constant of this module


def _insert_sql(kind: str) -> str:
    typed = (f"{_staged(column)} AS {column.name}" for column in COLUMNS[kind])
    names = ["id", "_key", "_generation", "_offset", "record", *typed, *_BESIDE.get(kind, ())]
    return f"INSERT INTO trace_{kind} BY NAME SELECT {', '.join(names)} FROM {_of_kind(kind, is_deletion=False)}"  # noqa: S608


def _remember_deletions_sql(kind: str) -> str:
    return (
        "INSERT INTO trace_deletions BY NAME SELECT kind, id, _key, _generation, _offset "  # noqa: S608
        f"FROM {_of_kind(kind, is_deletion=True)}"
    )


REMOVE_OLDER: Final = {kind: _remove_older_sql(kind) for kind in COLUMNS}
INSERT: Final = {kind: _insert_sql(kind) for kind in COLUMNS}
REMEMBER_DELETIONS: Final = {kind: _remember_deletions_sql(kind) for kind in COLUMNS}


def is_empty(connection: duckdb.DuckDBPyConnection) -> bool:
    """Whether a file holds neither a record nor a deletion."""
    tables = [*(f"trace_{kind}" for kind in COLUMNS), "trace_deletions"]
    rows = " UNION ALL ".join(f"(SELECT 1 FROM {table} LIMIT 1)" for table in tables)  # noqa: S608 - our own names
    return connection.execute(rows).fetchone() is None


def migrate(connection: duckdb.DuckDBPyConnection) -> None:
    """Make the tables and views of an older file anew; what it lacks is filled from its records.

    Columns that somebody added stay, indexes that somebody made do not.
    """
    connection.execute("BEGIN")
    connection.execute(TABLES)
    for table, definition in _DEFINITIONS.items():
        columns = COLUMNS.get(table.removeprefix("trace_"), ())
        held = {name: type_ for name, type_, *_ in connection.execute(f"DESCRIBE {table}").fetchall()}
        connection.execute(definition.replace(table, _ANEW, 1))
        known = {name for name, *_ in connection.execute(f"DESCRIBE {_ANEW}").fetchall()}
        for name in [name for name in held if name not in known]:
            connection.execute(f'ALTER TABLE {_ANEW} ADD COLUMN "{name}" {held[name]}')
        added = [column for column in columns if column.name not in held]
        parsed = f"{_parsed(added, 'record')} AS parsed" if added else "NULL AS parsed"
        values = [
            "* EXCLUDE (parsed)",
            *([] if "_key" in held else [f"{_KEY} AS _key"]),
            *(f"{_value(column)} AS {column.name}" for column in added),
        ]
        connection.execute(
            f"INSERT INTO {_ANEW} BY NAME SELECT {', '.join(values)} FROM (SELECT *, {parsed} FROM {table})"  # noqa: S608
        )
        connection.execute(f"DROP TABLE {table}")
        connection.execute(f"ALTER TABLE {_ANEW} RENAME TO {table}")
    connection.execute(VIEWS)
    connection.execute("UPDATE trace_meta SET value = ? WHERE name = 'schema_version'", [str(SCHEMA_VERSION)])
    connection.execute("COMMIT")
    connection.execute("CHECKPOINT sink")
