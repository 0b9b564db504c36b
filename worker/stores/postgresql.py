"""Where an export's rows are in PostgreSQL: a schema of their own, how it is reached, and how it is put in place.

A generation is filled in a schema beside its place (``traces.g2`` beside ``traces``), and two renamings in one
transaction put it there: a reader's statement has the old rows or the new ones, whole. Rules for editing: an error of
the driver repeats rows, so none leaves this module or is anybody's context; whoever writes holds the schema's lock
shared, whoever makes, migrates or moves it holds it alone; nothing that is not ours is dropped.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, LiteralString, NamedTuple, TypeVar

import psycopg
from psycopg import errors, sql
from psycopg.conninfo import conninfo_to_dict

from projections.records import RECORD_KINDS
from worker.sink import SinkBusy, SinkFailed, SinkRefused

Connection = psycopg.Connection[tuple[Any, ...]]
_Result = TypeVar("_Result")

DEFAULT_SCHEMA: Final = "traces"
BUSY_DELAY_S: Final = 0.5
TABLES: Final = (*(f"stored_{kind}" for kind in RECORD_KINDS), "trace_meta")
VIEWS: Final = (*(f"trace_{kind}" for kind in RECORD_KINDS), "trace_spend", "trace_attempts", "trace_runs")

# PostgreSQL cuts a longer name off, and what stands beside a schema has a longer one.
_SCHEMA_BYTES_MAX: Final = 40
_LOCK_TIMEOUT: Final = "10s"
# A server or network that went away without a word is noticed within a minute or two.
_CONNECTION: Final[dict[str, Any]] = {
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
    "fallback_application_name": "trace-projector",
}
_BUSY: Final = (errors.LockNotAvailable, errors.DeadlockDetected, errors.SerializationFailure)
_GONE: Final = (errors.UndefinedTable, errors.InvalidSchemaName)
# What was written must be durable when the write returns, whatever the server's default is.
_SETTINGS: Final = sql.SQL("""
SELECT set_config('search_path', {}, true), set_config('lock_timeout', {}, true),
    set_config('client_min_messages', 'warning', true), set_config('timezone', 'UTC', true),
    set_config('synchronous_commit', CASE WHEN current_setting('synchronous_commit') IN ('off', 'local') THEN 'on'
        ELSE current_setting('synchronous_commit') END, true)
""")


_META: Final = sql.SQL("SELECT name, value FROM {}.trace_meta")


class Place(NamedTuple):
    """How to reach a database, and the schema in it; ``__repr__`` and ``name`` hold no password."""

    parameters: dict[str, Any]
    schema: str
    name: str

    def __repr__(self) -> str:
        return f"Place({self.name})"


def place_of(location: str) -> Place:
    """Read what stands behind ``postgresql:`` in a URL. Raises SinkRefused, which repeats nothing of it."""
    url, schema = _split_schema(location)
    if not url.startswith("//"):
        raise SinkRefused("a PostgreSQL sink is named like postgresql://USER@HOST:5432/DATABASE?schema=traces")
    try:
        parameters = conninfo_to_dict(f"postgresql:{url}")
    except psycopg.Error:
        parameters = None
    if parameters is None:
        raise SinkRefused("this is no PostgreSQL URL: one of its parts or parameters is unknown to libpq")
    if schema == "public" or schema.startswith("pg_") or schema == "information_schema":
        raise SinkRefused(f"schema {schema} is not only ours: name one that is, as in ?schema={DEFAULT_SCHEMA}")
    if not schema or not schema.isascii() or not schema.isprintable() or len(schema) > _SCHEMA_BYTES_MAX:
        raise SinkRefused(f"the schema's name must be of 1 to {_SCHEMA_BYTES_MAX} printable ASCII characters")
    host = parameters.get("host") or parameters.get("hostaddr") or "the default host"
    return Place({**_CONNECTION, **parameters}, schema, f"schema {schema} in PostgreSQL at {host}")


def beside(location: str, word: str) -> str:
    """Give the location of what is filled beside a schema under a word."""
    url, schema = _split_schema(location)
    return f"{url}{'&' if '?' in url else '?'}schema={schema}.{word}"


def _split_schema(location: str) -> tuple[str, str]:
    """Take our own parameter out of a URL; all others are libpq's."""
    url, _, query = location.partition("?")
    parameters = [part for part in query.split("&") if part]
    ours = [part.partition("=")[2] for part in parameters if part.startswith("schema=")]
    others = [part for part in parameters if not part.startswith("schema=")]
    return "?".join([url, *(["&".join(others)] if others else [])]), ours[-1] if ours else DEFAULT_SCHEMA


# ------------------------------------------------------------------------------------------------------- connections


def told(place: Place, work: Callable[[], _Result]) -> _Result:
    """Do some work, and say what went wrong with it in words that may be logged.

    Raises SinkBusy, SinkRefused or SinkFailed.
    """
    try:
        return work()
    except psycopg.Error as error:
        failure = _failure(error, place)
    # Not inside of the handler, where the driver's error would be the context of ours.
    raise failure


def _failure(error: psycopg.Error, place: Place) -> Exception:
    if isinstance(error, _BUSY):
        return SinkBusy(f"{place.name} is held by another writer or reader", BUSY_DELAY_S)
    if isinstance(error, _GONE):
        return SinkRefused(f"{place.name} is gone: read everything into a new one with `export resync`")
    if isinstance(error, errors.InsufficientPrivilege):
        return SinkRefused(f"{place.name}: this user must not make, read or write what belongs to it")
    if isinstance(error, errors.DependentObjectsStillExist):
        return SinkRefused(f"{place.name}: something that is not ours depends on what is to be removed")
    code = f" {error.sqlstate}" if error.sqlstate else ""
    return SinkFailed(f"{place.name} failed ({type(error).__name__}{code})")


def connect(place: Place) -> Connection:
    """Open a connection. Raises SinkFailed while the server cannot be reached, and SinkRefused for a wrong encoding."""
    try:
        # Statements are not prepared, so that a pooler between us and the server may pool transactions.
        connection: Connection | None = psycopg.connect(**place.parameters, autocommit=True, prepare_threshold=None)
    except psycopg.Error as error:
        connection, reason = None, _connect_reason(error, place)
    else:
        reason = ""
    if connection is None:
        raise SinkFailed(f"{place.name} cannot be reached: {reason}")
    encoding = connection.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        connection.close()
        raise SinkRefused(f"{place.name}: the database has the encoding {encoding}, and records need UTF8")
    return connection


def _connect_reason(error: psycopg.Error, place: Place) -> str:
    # libpq tells host, user and database, and no row is under way yet.
    lines = str(error).strip().splitlines()
    reason = lines[-1].strip() if lines else type(error).__name__
    password = str(place.parameters.get("password") or "")
    return reason.replace(password, "********") if password else reason


@contextmanager
def transaction(connection: Connection, place: Place) -> Iterator[None]:
    """One transaction in the place's schema, under settings that end with it."""
    with connection.transaction():
        connection.execute(_settings(connection, place.schema))
        yield


@contextmanager
def writing(connection: Connection, place: Place, then: LiteralString) -> Iterator[dict[str, str]]:
    """The same, with the schema held together with others who write; gives what the schema says of itself.

    A statement of the caller's goes with all of that, so that there is one answer to wait for. Raises psycopg's error
    where the schema is gone or not ours.
    """
    schema = place.schema
    with connection.transaction():
        meta = _META.format(sql.Identifier(schema))
        statements = [_settings(connection, schema), _lock_statement(schema, shared=True), meta, sql.SQL(then)]
        answers = connection.execute(sql.SQL("; ").join(statements))
        answers.nextset()
        answers.nextset()
        yield _as_meta(answers)


def _settings(connection: Connection, schema: str) -> sql.Composed:
    # The last place is for temporary tables, which otherwise came first.
    path = sql.Composed([sql.Identifier(schema), sql.SQL(", pg_temp")]).as_string(connection)
    return _SETTINGS.format(sql.Literal(path), sql.Literal(_LOCK_TIMEOUT))


def lock(connection: Connection, *schemas: str, shared: bool) -> None:
    """Hold schemas until the transaction ends, in one order for everybody."""
    for schema in sorted(schemas):
        connection.execute(_lock_statement(schema, shared=shared))


def _lock_statement(schema: str, *, shared: bool) -> sql.Composed:
    statement = sql.SQL("SELECT pg_advisory_xact_lock{}(hashtextextended('trace-projector ' || {}, 0))")
    return statement.format(sql.SQL("_shared" if shared else ""), sql.Literal(schema))


def _as_meta(rows: Iterable[tuple[Any, ...]]) -> dict[str, str]:
    return {str(name): str(value) for name, value in rows}


def has_schema(connection: Connection, schema: str) -> bool:
    """Whether there is a schema of that name, ours or not."""
    return connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", [schema]).fetchone() is not None


def relations(connection: Connection, schema: str) -> dict[str, str]:
    """Give the tables (``r``), views (``v``) and so on of a schema by name."""
    rows = connection.execute(
        "SELECT relname, relkind::text FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace "
        "WHERE nspname = %s AND relkind IN ('r', 'v', 'm', 'p', 'f', 'S')",
        [schema],
    )
    return {str(name): str(kind) for name, kind in rows}


def read_meta(connection: Connection, schema: str) -> dict[str, str]:
    """Give what a schema of ours says of itself; nothing for one that is empty or not there.

    Raises SinkRefused for a schema that holds something else.
    """
    found = relations(connection, schema)
    if "trace_meta" in found:
        return _as_meta(connection.execute(_META.format(sql.Identifier(schema))))
    if found:
        raise SinkRefused(f"schema {schema} holds something that is not of an export; give the export another one")
    return {}


# --------------------------------------------------------------------------------------------------- put into place


def policy_of(location: str) -> str | None:
    """Tell under which policy a schema was written, None where there is none.

    Raises SinkRefused for a schema that is not ours, and SinkBusy while the server cannot be reached.
    """
    place = place_of(location)

    def look(connection: Connection) -> str | None:
        return read_meta(connection, place.schema).get("policy_digest")

    return _in_transaction(place, look)


def switch(location: str, word: str, policy_digest: str, keep: str | None) -> None:
    """Put what was filled beside a schema in its place; what it replaces stands beside it as ``keep``, or is gone.

    Privileges that were granted on the old one hold on the new one. Does nothing when it was done. Raises SinkBusy
    while somebody holds either, and SinkRefused when nothing of this policy is there to be put in place.
    """
    place = place_of(location)
    final, staged = place.schema, f"{place.schema}.{word}"
    kept = None if keep is None else f"{place.schema}.{keep}"

    def work(connection: Connection) -> None:
        lock(connection, *{final, staged, *([] if kept is None else [kept])}, shared=False)
        if not has_schema(connection, staged) and read_meta(connection, final).get("policy_digest") == policy_digest:
            return
        if read_meta(connection, staged).get("policy_digest") != policy_digest:
            raise SinkRefused(f"schema {staged} is not what is to be put in place of {final}; fill it first")
        if has_schema(connection, final):
            read_meta(connection, final)
            _copy_grants(connection, final, staged)
            if kept is None:
                _drop(connection, final)
            else:
                _drop(connection, kept)
                _rename(connection, final, kept)
        _rename(connection, staged, final)

    _in_transaction(place, work)


def discard(location: str, word: str) -> bool:
    """Remove what stands beside a schema under a word; whether anything was there. Raises SinkBusy or SinkRefused."""
    place = place_of(location)
    schema = f"{place.schema}.{word}"

    def work(connection: Connection) -> bool:
        lock(connection, schema, shared=False)
        return _drop(connection, schema)

    return _in_transaction(place, work)


def _in_transaction(place: Place, work: Callable[[Connection], _Result]) -> _Result:
    def connected() -> _Result:
        with connect(place) as connection, transaction(connection, place):
            return work(connection)

    try:
        return told(place, connected)
    except SinkFailed as error:
        # A person or a worker that waits for its turn also waits for a server that is away.
        raise SinkBusy(str(error), BUSY_DELAY_S) from None


def _rename(connection: Connection, old: str, new: str) -> None:
    statement = sql.SQL("ALTER SCHEMA {} RENAME TO {}")
    connection.execute(statement.format(sql.Identifier(old), sql.Identifier(new)))


def _drop(connection: Connection, schema: str) -> bool:
    """Remove what is ours of a schema, and the schema, which fails if anything else is in it or depends on it."""
    if not has_schema(connection, schema):
        return False
    found = relations(connection, schema)
    for kind, names in (("VIEW", VIEWS), ("TABLE", TABLES)):
        ours = [sql.Identifier(schema, name) for name in names if name in found]
        if ours:
            connection.execute(sql.SQL("DROP {} {}").format(sql.SQL(kind), sql.SQL(", ").join(ours)))
    connection.execute(sql.SQL("DROP SCHEMA {}").format(sql.Identifier(schema)))
    return True


_GRANTS: Final = """
SELECT NULL, CASE grantee WHEN 0 THEN NULL ELSE pg_get_userbyid(grantee) END, privilege_type, is_grantable
FROM pg_namespace, aclexplode(nspacl) WHERE nspname = %(old)s AND grantee <> nspowner
UNION ALL
SELECT relname, CASE grantee WHEN 0 THEN NULL ELSE pg_get_userbyid(grantee) END, privilege_type, is_grantable
FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace, aclexplode(relacl)
WHERE nspname = %(old)s AND grantee <> relowner
"""


def _copy_grants(connection: Connection, old: str, new: str) -> None:
    """Let whoever may read the old schema read the new one."""
    present = relations(connection, new)
    for name, grantee, privilege, is_grantable in connection.execute(_GRANTS, {"old": old}).fetchall():
        if name is not None and name not in present:
            continue
        what = sql.SQL("SCHEMA {}").format(sql.Identifier(new)) if name is None else sql.Identifier(new, name)
        statement = sql.SQL("GRANT {} ON {} TO {}{}").format(
            sql.SQL(privilege),
            what,
            sql.SQL("PUBLIC") if grantee is None else sql.Identifier(grantee),
            sql.SQL(" WITH GRANT OPTION" if is_grantable else ""),
        )
        connection.execute(statement)
