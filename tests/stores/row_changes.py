"""Row changes out of PostgreSQL's log, told as Debezium tells them: by the plugin that it uses, in the shape it gives.

The shape is Debezium's documented one, and recorded messages of a real connector hold this module to it. Only the
types that the example's tables have are known here.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import psycopg
from psycopg import sql

Json = dict[str, Any]
Connection = psycopg.Connection[tuple[Any, ...]]

UNAVAILABLE: Final = "__debezium_unavailable_value"
# What a column that may not be null is filled with where the log has no value for it.
_NOTHING: Final[Mapping[str, Any]] = {"bigint": 0, "timestamp with time zone": "1970-01-01T00:00:00Z"}

_TABLES: Final = """
    SELECT c.table_name, c.column_name, c.data_type, c.is_nullable = 'YES', k.column_name IS NOT NULL
    FROM information_schema.columns AS c
    LEFT JOIN information_schema.key_column_usage AS k USING (table_schema, table_name, column_name)
    WHERE c.table_schema = 'public' ORDER BY c.table_name, c.ordinal_position
"""


class Column(NamedTuple):
    """What is known of a column beside its values."""

    name: str
    type: str
    is_nullable: bool
    is_key: bool


class RowChange(NamedTuple):
    """A message of change capture: its table, its key, and the envelope; none for a tombstone."""

    table: str
    key: Json
    envelope: Json | None


Tuple = list[str | None]
_MISSING: Final = "\x00missing"


def open_slot(connection: Connection, slot: str) -> None:
    """Let the log be kept from here on, until the slot is dropped."""
    connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))


def drop_slot(connection: Connection, slot: str) -> None:
    connection.execute("SELECT pg_drop_replication_slot(%s)", (slot,))


def read_changes(connection: Connection, slot: str, publication: str) -> list[RowChange]:
    """Take from a slot what a publication has published since."""
    # Values are text as a session would print them.
    connection.execute("SET TimeZone = 'UTC'; SET DateStyle = 'ISO'")
    columns: dict[str, list[Column]] = {}
    for table, *rest in connection.execute(sql.SQL(_TABLES)):
        columns.setdefault(table, []).append(Column(*rest))
    rows = connection.execute(
        "SELECT data FROM pg_logical_slot_get_binary_changes(%s, NULL, NULL, 'proto_version', '1',"
        " 'publication_names', %s)",
        (slot, publication),
    ).fetchall()
    tables: dict[int, str] = {}
    changes: list[RowChange] = []
    for (data,) in rows:
        reader = _Reader(data)
        kind = reader.byte()
        if kind == "R":
            number = reader.number(4)
            reader.text()
            tables[number] = reader.text()
        elif kind in "IUD":
            table = tables[reader.number(4)]
            changes += _row_change(kind, table, columns[table], reader)
    return changes


def topic_lines(changes: list[RowChange]) -> dict[str, bytes]:
    """Give the messages of each table as the lines of a topic file."""
    lines: dict[str, bytes] = {}
    for change in changes:
        line = {"key": change.key, "value": None} if change.envelope is None else change.envelope
        lines[change.table] = lines.get(change.table, b"") + json.dumps(line).encode() + b"\n"
    return lines


def _row_change(kind: str, table: str, columns: list[Column], reader: "_Reader") -> Iterator[RowChange]:
    tuples = {}
    while reader.is_left:
        which = reader.byte()
        tuples[which] = reader.row()
    old, new, key = tuples.get("O"), tuples.get("N"), tuples.get("K")
    before = None if kind == "I" or (old is None and key is None) else _image(columns, old or key or [], None)
    after = None if new is None else _image(columns, new, old)
    named = after or before
    assert named is not None
    message_key = {column.name: named[column.name] for column in columns if column.is_key}
    operation = {"I": "c", "U": "u", "D": "d"}[kind]
    yield RowChange(table, message_key, {"before": before, "after": after, "op": operation})
    if kind == "D":
        yield RowChange(table, message_key, None)


def _image(columns: list[Column], row: Tuple, old: Tuple | None) -> Json:
    image = {}
    for index, column in enumerate(columns):
        text = row[index]
        if text == _MISSING:
            text = UNAVAILABLE if old is None else old[index]
        image[column.name] = _value(column, text)
    return image


def _value(column: Column, text: str | None) -> Any:
    if text is None:
        return None if column.is_nullable else _NOTHING.get(column.type, "")
    if column.type == "bigint":
        return int(text)
    if column.type == "timestamp with time zone":
        moment, _dot, fraction = text.removesuffix("+00").replace(" ", "T").partition(".")
        return f"{moment}.{fraction:0<6}Z"
    return text


class _Reader:
    """Reads a message of the plugin from its beginning."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def is_left(self) -> bool:
        return self._at < len(self._data)

    def bytes(self, count: int) -> bytes:
        self._at += count
        return self._data[self._at - count : self._at]

    def byte(self) -> str:
        return self.bytes(1).decode()

    def number(self, size: int) -> int:
        return int.from_bytes(self.bytes(size), signed=True)

    def text(self) -> str:
        end = self._data.index(b"\x00", self._at)
        return self.bytes(end - self._at + 1)[:-1].decode()

    def row(self) -> Tuple:
        return [self._column() for _ in range(self.number(2))]

    def _column(self) -> str | None:
        kind = self.byte()
        if kind == "n":
            return None
        return _MISSING if kind == "u" else self.bytes(self.number(4)).decode()
