"""A schema in PostgreSQL: a table per record kind, the record beside its typed columns, and views to start from.

Rules for editing: one row per key holds a record or its deletion, so that one statement with one condition guards every
write, whoever else writes at the same time. Writers take rows in the order of their keys, kind by kind, and never wait
for each other in a circle. A change of columns or views is a new ``SCHEMA_VERSION``; views grow at their ends only.
"""

import hashlib
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, Final, TypeVar

from psycopg import sql

from projections.decode import decode_json
from projections.text import storable_text
from worker.sink import SinkRefused, Upsert
from worker.stores.columns import COLUMNS, PRICING_COLUMNS, row_values
from worker.stores.postgresql import (
    Connection,
    connect,
    has_schema,
    lock,
    place_of,
    read_meta,
    relations,
    told,
    transaction,
    writing,
)
from worker.stores.views import POSTGRESQL, view_queries
from worker.threaded_sink import ServerSink

SCHEMA_VERSION: Final = 1

_Result = TypeVar("_Result")
_ROWS_PER_FETCH: Final = 1_000
_NO_PRICING: Final = (None,) * len(PRICING_COLUMNS)
_SQL_TYPES: Final = {
    "text": "text",
    "count": "bigint",
    "number": "double precision",
    "flag": "boolean",
    "time": "timestamptz",
    "json": "jsonb",
}

# The key is a digest of the id: no index of PostgreSQL but a hash holds a text of more than 2,704 bytes, and an id may
# be longer. A record is text, because jsonb refuses escapes of NUL and of lone surrogates. NULL stands for a deletion.
_FIXED: Final = {
    "_key": "bytea PRIMARY KEY",
    "id": "text NOT NULL",
    "_generation": "bigint NOT NULL",
    "_offset": "bigint NOT NULL",
    "record": "text",
}
_HASHED: Final = ("id", "run_id", "attempt_id")


def _columns(kind: str) -> dict[str, str]:
    """Name and type of a kind's columns behind the fixed ones."""
    typed = {column.name: _SQL_TYPES[column.type] for column in COLUMNS[kind]}
    return typed | (dict.fromkeys(PRICING_COLUMNS, "text") if kind == "cost" else {})


def _table_sql(kind: str) -> str:
    columns = _columns(kind)
    (at,) = (column.name for column in COLUMNS[kind] if column.path == ("at",))
    definitions = ", ".join(f"{name} {definition}" for name, definition in (_FIXED | columns).items())
    hashed: list[str] = [name for name in _HASHED if name in (_FIXED | columns) and (kind, name) != ("run", "run_id")]
    # Which costs count is told over all those of a conversation.
    hashed += ["conversation"] if kind == "cost" else []
    return "".join(
        [
            f"CREATE TABLE IF NOT EXISTS stored_{kind} ({definitions});\n",
            *(f"ALTER TABLE stored_{kind} ADD COLUMN IF NOT EXISTS {name} {t};\n" for name, t in columns.items()),
            *(
                f"CREATE INDEX IF NOT EXISTS stored_{kind}_{name} ON stored_{kind} USING hash ({name});\n"
                for name in hashed
            ),
            f"CREATE INDEX IF NOT EXISTS stored_{kind}_{at} ON stored_{kind} ({at});\n",
        ]
    )


# One staging table for all kinds: columns of one name have one type. A session may have the table of an earlier
# transaction or, behind a pooler, of another release: hence the version.
_STAGED: Final = {name: definition.partition(" ")[0] for name, definition in _FIXED.items()} | {
    name: type_ for kind in COLUMNS for name, type_ in _columns(kind).items()
}
_STAGE_NAME: Final = f"pg_temp.incoming_{SCHEMA_VERSION}"
_STAGE: Final = (
    f"CREATE TEMPORARY TABLE IF NOT EXISTS {_STAGE_NAME} "
    f"(kind text, {', '.join(f'{name} {type_}' for name, type_ in _STAGED.items())}) ON COMMIT DELETE ROWS"
)
_PLACES: Final = {name: place for place, name in enumerate(_STAGED, start=1)}


def _upsert_sql(kind: str) -> str:
    names = [*_FIXED, *_columns(kind)]
    return f"""
    INSERT INTO stored_{kind} AS held ({", ".join(names)})
    SELECT {", ".join(names)} FROM {_STAGE_NAME} WHERE kind = '{kind}' ORDER BY _key
    ON CONFLICT (_key) DO UPDATE SET {", ".join(f"{name} = excluded.{name}" for name in names[1:])}
    WHERE (excluded._generation, excluded._offset) > (held._generation, held._offset)
    """  # noqa: S608 - every part is a constant of this module


_TABLES: Final = "".join(
    [
        *(_table_sql(kind) for kind in COLUMNS),
        "CREATE TABLE IF NOT EXISTS trace_meta (name text PRIMARY KEY, value text)",
    ]
)
_COPY: Final = f"COPY {_STAGE_NAME} FROM STDIN"
_COLUMN_PLACES: Final = {kind: [_PLACES[name] for name in _columns(kind)] for kind in COLUMNS}
_UPSERT: Final = {kind: _upsert_sql(kind) for kind in COLUMNS}
_IS_ANY: Final = " UNION ALL ".join(f"(SELECT 1 FROM stored_{kind} LIMIT 1)" for kind in COLUMNS)  # noqa: S608
_SET_META: Final = """
INSERT INTO trace_meta VALUES ('policy_digest', %s), ('schema_version', %s), ('made_as', %s)
ON CONFLICT (name) DO UPDATE SET value = excluded.value
"""


class PostgreSQLSink(ServerSink[Connection]):
    """Keep the newest version of every record in one schema, for any number of writers."""

    single_writer: ClassVar[bool] = False
    is_durable: ClassVar[bool] = True

    def __init__(self, location: str, policy_digest: str) -> None:
        super().__init__()
        self._place = place_of(location)
        self._policy_digest = policy_digest
        # Another schema of the same name and policy lacks what was written into the one that was opened.
        self._made_as: str | None = None

    def _connect(self) -> Connection:
        return connect(self._place)

    def _is_lost(self, connection: Connection) -> bool:
        return connection.broken or connection.closed

    def _told(self, work: Callable[[], _Result]) -> _Result:
        return told(self._place, work)

    # ------------------------------------------------------------------------------------------------------ opening

    def _open(self) -> bool:
        return self._connected(self._opened)

    def _opened(self, connection: Connection) -> bool:
        with transaction(connection, self._place):
            lock(connection, self._place.schema, shared=True)
            meta = read_meta(connection, self._place.schema)
            if self._is_up_to_date(meta):
                self._made_as = meta["made_as"]
                return _is_empty(connection)
        with transaction(connection, self._place):
            lock(connection, self._place.schema, shared=False)
            # Somebody else may have been here first.
            meta = read_meta(connection, self._place.schema)
            made_as = meta.get("made_as") or secrets.token_hex(8)
            if not self._is_up_to_date(meta):
                self._make(connection, made_as)
            is_empty = _is_empty(connection)
        self._made_as = made_as
        return is_empty

    def _is_up_to_date(self, meta: dict[str, str]) -> bool:
        """Check that what is there, if anything, is of our policy and no newer. Raises SinkRefused."""
        if not meta:
            return False
        if meta["policy_digest"] != self._policy_digest:
            raise SinkRefused(
                f"{self._place.name} was written under another policy (redaction, key, public_repos, price table, or "
                "another application): read everything again with `export resync`, or make a new export with another "
                "name and schema"
            )
        version = int(meta["schema_version"])
        if version > SCHEMA_VERSION:
            raise SinkRefused(f"{self._place.name} has schema version {version}, from a newer release than this one")
        return version == SCHEMA_VERSION

    def _make(self, connection: Connection, made_as: str) -> None:
        """Make the schema, or bring an older one up to date; new columns are filled from the records."""
        schema = self._place.schema
        if not has_schema(connection, schema):
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
        present = relations(connection, schema)
        known = {kind: _table_columns(connection, schema, kind) for kind in COLUMNS}
        connection.execute(_TABLES)
        for kind, names in known.items():
            added = [column.name for column in COLUMNS[kind] if column.name not in names]
            if added and f"stored_{kind}" in present:
                _fill(connection, kind, added)
        for kind in COLUMNS:
            # In the table's order, in which what was added is last, as it has to be in the view.
            names = _table_columns(connection, schema, kind)
            query = f"SELECT {', '.join(names[1:])} FROM stored_{kind} WHERE record IS NOT NULL"  # noqa: S608
            connection.execute(f"CREATE OR REPLACE VIEW trace_{kind} AS {query}")
        for name, query in view_queries(POSTGRESQL).items():
            connection.execute(f"CREATE OR REPLACE VIEW {name} AS {query}")
        connection.execute(_SET_META, [self._policy_digest, str(SCHEMA_VERSION), made_as])

    # ------------------------------------------------------------------------------------------------------ writing

    def _write(self, batch: Sequence[Upsert]) -> None:
        self._connected(lambda connection: self._apply(connection, batch))

    def _apply(self, connection: Connection, batch: Sequence[Upsert]) -> None:
        # Whoever waits for an answer also waits for this process's other threads, so there are few answers to wait for.
        with writing(connection, self._place, _STAGE) as meta:
            # Between two writes another schema may have been put in this one's place.
            if not self._is_up_to_date(meta) or meta["made_as"] != self._made_as:
                raise SinkRefused(f"{self._place.name} is gone: read everything into a new one with `export resync`")
            _copy(connection, _COPY, _rows(batch))
            kinds = {item.kind for item in batch}
            connection.execute("; ".join(_UPSERT[kind] for kind in COLUMNS if kind in kinds))


def _key(record_id: str) -> bytes:
    return hashlib.sha256(record_id.encode()).digest()


def _rows(batch: Iterable[Upsert]) -> Iterator[list[Any]]:
    for item in batch:
        kind, stored_id = item.kind, storable_text(item.id)
        row: list[Any] = [None] * (len(_STAGED) + 1)
        row[: len(_FIXED)] = [kind, _key(stored_id), stored_id, item.generation, item.offset]
        if item.record is not None and item.json is not None:
            row[_PLACES["record"]] = item.json.decode()
            values = row_values(kind, item.record)
            if kind == "cost":
                values += item.pricing or _NO_PRICING
            for place, value in zip(_COLUMN_PLACES[kind], values, strict=True):
                row[place] = value
        yield row


def _copy(connection: Connection, statement: str, rows: Iterable[list[Any]]) -> None:
    with connection.cursor() as cursor, cursor.copy(statement) as copy:
        for row in rows:
            copy.write_row(row)


def _is_empty(connection: Connection) -> bool:
    return connection.execute(_IS_ANY).fetchone() is None


def _table_columns(connection: Connection, schema: str, kind: str) -> list[str]:
    rows = connection.execute(
        "SELECT attname FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid "
        "JOIN pg_namespace ON pg_namespace.oid = relnamespace "
        "WHERE nspname = %s AND relname = %s AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
        [schema, f"stored_{kind}"],
    )
    return [str(name) for (name,) in rows]


def _fill(connection: Connection, kind: str, added: Sequence[str]) -> None:
    """Give columns that were added their values, from the records."""
    names = [column.name for column in COLUMNS[kind]]
    wanted = [names.index(name) for name in added]
    definitions = ", ".join(f"{name} {_columns(kind)[name]}" for name in added)
    connection.execute(f"CREATE TEMPORARY TABLE filled (_key bytea, {definitions}) ON COMMIT DROP")
    with connection.cursor(name="unfilled") as cursor:
        cursor.execute(f"SELECT _key, record FROM stored_{kind} WHERE record IS NOT NULL")  # noqa: S608
        while rows := cursor.fetchmany(_ROWS_PER_FETCH):
            read = [(key, row_values(kind, decode_json(record.encode()))) for key, record in rows]
            statement = f"COPY pg_temp.filled (_key, {', '.join(added)}) FROM STDIN"
            _copy(connection, statement, ([key, *(values[n] for n in wanted)] for key, values in read))
    values = ", ".join(f"{name} = filled.{name}" for name in added)
    connection.execute(
        f"UPDATE stored_{kind} AS held SET {values} FROM pg_temp.filled WHERE filled._key = held._key;"  # noqa: S608
        "DROP TABLE pg_temp.filled"
    )
