"""Where an export's rows are in ClickHouse: a table that no name of a reader's is tied to, and views that point to it.

A place is a view (``trace_records``, and ``trace_records.g2`` for what is filled beside it) whose comment says which
table it shows, under which policy that was written, and which release made it; every other view reads from
``trace_records``. To put another generation in place is to replace that one view, which ClickHouse does in one step:
a query has the old rows or the new ones, and only one that was just being planned and names two views can have
one of each. A writer names the table, so a late one writes into the generation it meant.

Rules for editing: a step that was interrupted is finished by doing it all once more; a table is dropped before the view
that points to it, so that nothing is left over that nobody knows of; nothing that is not ours is replaced or dropped.
"""

import json
import secrets
from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

from clickhouse_connect.driver.client import Client

from worker.sink import SinkBusy, SinkFailed, SinkRefused
from worker.stores.clickhouse_server import BUSY_DELAY_S, Server, connected, quoted, split_location, told
from worker.stores.columns import COLUMNS, PRICING_COLUMNS
from worker.stores.views import CLICKHOUSE, view_queries

_Result = TypeVar("_Result")

SCHEMA_VERSION: Final = 1
POINTER: Final = "trace_records"
REPLACED: Final = "replaced"
"""Word of what a switch has replaced and is about to drop."""

_MARK: Final = "trace-projector"
_VIEW_COMMENT: Final = f"{_MARK} views {SCHEMA_VERSION}"
_SQL_TYPES: Final = {
    "text": "Nullable(String)",
    "count": "Nullable(Int64)",
    "number": "Nullable(Float64)",
    "flag": "Nullable(Bool)",
    "time": "Nullable(DateTime64(6, 'UTC'))",
    # ClickHouse's JSON type keeps neither order nor spelling; its JSON functions read text.
    "json": "Nullable(String)",
}
FIXED: Final = {
    "kind": "LowCardinality(String)",
    "id": "String",
    "_generation": "UInt64",
    "_offset": "UInt64",
    "_is_deleted": "UInt8",
    "record": "String CODEC(ZSTD(1))",
}
"""Columns of every row; a deletion has an empty record."""


def kind_columns(kind: str) -> dict[str, str]:
    """Name and type of a kind's columns behind the fixed ones."""
    typed = {column.name: _SQL_TYPES[column.type] for column in COLUMNS[kind]}
    return typed | (dict.fromkeys(PRICING_COLUMNS, _SQL_TYPES["text"]) if kind == "cost" else {})


def _all_columns() -> dict[str, str]:
    """The columns of all kinds: of one table, so that a batch is one insert, which is taken whole or not at all."""
    columns: dict[str, str] = {}
    for kind in COLUMNS:
        for name, type_ in kind_columns(kind).items():
            assert columns.setdefault(name, type_) == type_, f"{name} has one type in all kinds"
    return columns


TYPED: Final = _all_columns()

# Keyed by kind and id alone and in one partition: versions of a record that fall in two partitions never meet. The
# version is 128 bits wide, generation before offset, so neither can ever run over. Rows of deletions stay, as guards:
# only a CLEANUP that somebody orders removes them. A retried insert is known by its token for as many inserts.
_TABLE: Final = """
CREATE TABLE {table} ({columns},
    _version UInt128 MATERIALIZED bitShiftLeft(toUInt128(_generation), 64) + toUInt128(_offset))
ENGINE = ReplacingMergeTree(_version, _is_deleted) ORDER BY (kind, id)
SETTINGS non_replicated_deduplication_window = 1000, fsync_after_insert = 1, fsync_part_directory = 1
"""


class Meta(NamedTuple):
    """What a place says of itself."""

    policy_digest: str
    schema_version: int
    table: str

    @property
    def comment(self) -> str:
        return json.dumps({_MARK: {"policy": self.policy_digest, "schema": self.schema_version, "table": self.table}})


class Place(NamedTuple):
    """A server and what in it an export writes; ``name`` may be logged."""

    server: Server
    word: str

    @property
    def pointer(self) -> str:
        return f"{POINTER}.{self.word}" if self.word else POINTER

    @property
    def name(self) -> str:
        return f"{self.pointer} of {self.server.name}"

    def at(self, name: str) -> str:
        """Quote the name of something in our database."""
        return quoted(self.server.database, name)

    def beside(self, word: str) -> "Place":
        return Place(self.server, f"{self.word}.{word}" if self.word else word)


def place_of(location: str) -> Place:
    """Read what stands behind ``clickhouse:`` in a URL. Raises SinkRefused, which repeats nothing of it."""
    return Place(*split_location(location))


# ------------------------------------------------------------------------------------------------------ what is there


def _comments(client: Client, place: Place) -> dict[str, tuple[str, str]]:
    """Engine and comment of all that is in our database, by name."""
    rows = client.query(
        "SELECT name, engine, comment FROM system.tables WHERE database = %(database)s",
        parameters={"database": place.server.database},
    ).result_rows
    return {str(name): (str(engine), str(comment)) for name, engine, comment in rows}


def read_meta(client: Client, place: Place) -> Meta | None:
    """Give what a place says of itself, None where there is none. Raises SinkRefused for what is not ours."""
    rows = client.query(
        "SELECT engine, comment FROM system.tables WHERE database = %(database)s AND name = %(name)s",
        parameters={"database": place.server.database, "name": place.pointer},
    ).result_rows
    return _meta(place, *map(str, rows[0])) if rows else None


def _meta(place: Place, engine: str, comment: str) -> Meta:
    try:
        said = json.loads(comment)[_MARK]
        meta = Meta(str(said["policy"]), int(said["schema"]), str(said["table"]))
    except (ValueError, KeyError, TypeError):
        raise SinkRefused(f"{place.name} is not of an export; give the export another database") from None
    if engine != "View":
        raise SinkRefused(f"{place.name} is not of an export; give the export another database")
    return meta


def make_place(client: Client, place: Place, policy_digest: str) -> Meta:
    """Make a table and let the place point to it, unless somebody else did meanwhile."""
    client.command(f"CREATE DATABASE IF NOT EXISTS {quoted(place.server.database)}", use_database=False)
    table = f"trace_stored_{secrets.token_hex(8)}"
    columns = ", ".join(f"{name} {type_}" for name, type_ in (FIXED | TYPED).items())
    client.command(_TABLE.format(table=place.at(table), columns=columns))
    _point(client, place, Meta(policy_digest, SCHEMA_VERSION, table), verb="CREATE VIEW IF NOT EXISTS")
    meta = read_meta(client, place)
    assert meta is not None, "it was made, or was there"
    if meta.table != table:
        _drop_table(client, place, table)
    return meta


def _point(client: Client, place: Place, meta: Meta, *, verb: str = "CREATE OR REPLACE VIEW") -> None:
    """Let a place show a table, as of now and for whoever reads from it, in one step."""
    names = ", ".join([*FIXED, *TYPED])
    client.command(
        f"{verb} {place.at(place.pointer)} AS SELECT {names} FROM {place.at(meta.table)} FINAL "  # noqa: S608
        f"COMMENT {_text(meta.comment)}"
    )


def point_anew(client: Client, place: Place, meta: Meta) -> Meta:
    """Say that a place's table has the columns of this release now."""
    newer = meta._replace(schema_version=SCHEMA_VERSION)
    _point(client, place, newer)
    return newer


def ensure_views(client: Client, place: Place) -> None:
    """Make the views that people read, if they are missing or of an older release. Raises SinkRefused for others'."""
    assert not place.word, "what stands beside has no views of its own"
    found = _comments(client, place)
    queries = {f"trace_{kind}": _kind_query(place, kind) for kind in COLUMNS} | view_queries(CLICKHOUSE)
    for name in queries:
        engine, comment = found.get(name, ("View", _MARK))
        if engine != "View" or not comment.startswith(_MARK):
            raise SinkRefused(f"{name} in {place.server.name} is not of an export; give the export another database")
    if all(found.get(name, ("", ""))[1] == _VIEW_COMMENT for name in queries):
        return
    # What views name without a database is in the one that is current when they are made. At other times none is: to
    # look into a database that is not there is no error then.
    client.database = place.server.database
    try:
        for name, query in queries.items():
            # Of two that make a view at the same time, one would not find what it is about to replace.
            verb = "CREATE OR REPLACE VIEW" if name in found else "CREATE VIEW IF NOT EXISTS"
            client.command(f"{verb} {place.at(name)} AS {query} COMMENT {_text(_VIEW_COMMENT)}")
    finally:
        client.database = None


def _kind_query(place: Place, kind: str) -> str:
    names = ", ".join(["id", "_generation", "_offset", "record", *kind_columns(kind)])
    return f"SELECT {names} FROM {place.at(POINTER)} WHERE kind = '{kind}'"  # noqa: S608 - our own names


def _text(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


# ----------------------------------------------------------------------------------------------------- put into place


def beside(location: str, word: str) -> str:
    """Give the location of what is filled beside a place under a word."""
    place = place_of(location).beside(word)
    url, _, query = location.partition("?")
    others = [part for part in query.split("&") if part and not part.startswith("place=")]
    return f"{url}?{'&'.join([*others, f'place={place.word}'])}"


def policy_of(location: str) -> str | None:
    """Tell under which policy a place was written, None where there is none.

    Raises SinkRefused for what is not ours, and SinkBusy while the server cannot be reached.
    """
    place = place_of(location)

    def look(client: Client) -> str | None:
        meta = read_meta(client, place)
        return None if meta is None else meta.policy_digest

    return _patiently(place, look)


def switch(location: str, word: str, policy_digest: str, keep: str | None) -> None:
    """Put what was filled beside a place in it; what it replaces stands beside it as ``keep``, or is gone.

    Does nothing when it was done. Raises SinkBusy while the server cannot be reached or is overloaded, and SinkRefused
    when nothing of this policy is there to be put in place.
    """
    final = place_of(location)
    staged, kept = final.beside(word), final.beside(REPLACED if keep is None else keep)

    def work(client: Client) -> None:
        there, coming = read_meta(client, final), read_meta(client, staged)
        is_done = there is not None and there.policy_digest == policy_digest
        if not is_done or (coming is not None and there is not None and coming.table != there.table):
            if coming is None or coming.policy_digest != policy_digest:
                raise SinkRefused(f"{staged.name} is not what is to be put in place of {POINTER}; fill it first")
            # A view cannot be made of a table that somebody dropped, and of that nothing is left to be kept.
            if there is not None and there.table in _comments(client, final):
                _retire(client, kept, there, spared={coming.table})
            _point(client, final, coming)
        if not final.word:
            ensure_views(client, final)
        client.command(f"DROP VIEW IF EXISTS {staged.at(staged.pointer)} SYNC")
        if keep is None:
            _remove(client, kept)

    _patiently(final, work)


def _retire(client: Client, kept: Place, there: Meta, spared: set[str]) -> None:
    """Let the place of what was replaced point to it; what that pointed to before is gone."""
    before = read_meta(client, kept)
    if before is not None and before.table not in {there.table, *spared}:
        _drop_table(client, kept, before.table)
    _point(client, kept, there)


def discard(location: str, word: str) -> bool:
    """Remove what stands beside a place under a word; whether anything was there. Raises SinkBusy or SinkRefused."""
    place = place_of(location).beside(word)
    return _patiently(place, lambda client: _remove(client, place))


def _remove(client: Client, place: Place) -> bool:
    meta = read_meta(client, place)
    if meta is None:
        return False
    others = [
        _meta(place, engine, comment)
        for name, (engine, comment) in _comments(client, place).items()
        if (name == POINTER or name.startswith(f"{POINTER}.")) and name != place.pointer
    ]
    # A switch that was interrupted leaves two views of one table.
    if meta.table not in {other.table for other in others}:
        _drop_table(client, place, meta.table)
    client.command(f"DROP VIEW IF EXISTS {place.at(place.pointer)} SYNC")
    return True


def _drop_table(client: Client, place: Place, table: str) -> None:
    client.command(f"DROP TABLE IF EXISTS {place.at(table)} SYNC SETTINGS max_table_size_to_drop = 0")


def _patiently(place: Place, work: Callable[[Client], _Result]) -> _Result:
    def attempt() -> _Result:
        with connected(place.server) as client:
            return work(client)

    try:
        return told(place.server, attempt)
    except SinkFailed as error:
        # A person or a worker that waits for its turn also waits for a server that is away.
        raise SinkBusy(str(error), BUSY_DELAY_S) from None
