"""How a ClickHouse server is reached, and what its errors mean.

Rules for editing: an error of the driver or the server repeats statements, values and addresses, so none leaves this
module or is anybody's context; the password is in a ``Server`` and in no text made from it.
"""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

import clickhouse_connect
import urllib3
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError, Error

from worker.sink import SinkBusy, SinkFailed, SinkRefused

_Result = TypeVar("_Result")

BUSY_DELAY_S: Final = 0.5
OVERLOAD_DELAY_S: Final = 5.0
PASSWORD_ENV: Final = "CLICKHOUSE_PASSWORD"  # noqa: S105 - a name
PASSWORD_FILE_ENV: Final = "CLICKHOUSE_PASSWORD_FILE"  # noqa: S105 - a name

_CONNECT_TIMEOUT_S: Final = 10
_ANSWER_TIMEOUT_S: Final = 120
_WORD: Final = re.compile(r"[A-Za-z0-9_.-]{1,100}")
_EXAMPLE: Final = "a ClickHouse sink is named like clickhouse://USER@HOST:8123/DATABASE"

# What passes when others have finished, or when merges have caught up.
_OVERLOADED: Final = {
    159: "TIMEOUT_EXCEEDED",
    202: "TOO_MANY_SIMULTANEOUS_QUERIES",
    241: "MEMORY_LIMIT_EXCEEDED",
    242: "TABLE_IS_READ_ONLY",
    252: "TOO_MANY_PARTS",
    285: "TOO_FEW_LIVE_REPLICAS",
    439: "CANNOT_SCHEDULE_TASK",
    473: "DEADLOCK_AVOIDED",
}
_GONE: Final = frozenset({60, 81, 218})  # UNKNOWN_TABLE, UNKNOWN_DATABASE, TABLE_IS_DROPPED
_FORBIDDEN: Final = frozenset({164, 497})  # READONLY, ACCESS_DENIED


class Server(NamedTuple):
    """Where a server is, as whom to use it, and which database; ``__repr__`` and ``name`` hold no password."""

    host: str
    port: int
    is_secure: bool
    user: str
    password: str
    database: str
    name: str

    def __repr__(self) -> str:
        return f"Server({self.name})"


def split_location(location: str) -> tuple[Server, str]:
    """Read what stands behind ``clickhouse:`` in a URL: the server, and the word of a place in the database.

    Raises SinkRefused, which repeats nothing of the URL.
    """
    try:
        parts = urlsplit(f"clickhouse:{location}")
        port = parts.port
        parameters = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
    except ValueError:
        raise SinkRefused(_EXAMPLE) from None
    database = unquote(parts.path.removeprefix("/"))
    word, secure = parameters.pop("place", ""), parameters.pop("secure", "false")
    if not parts.hostname or not database or parts.fragment or secure not in ("true", "false"):
        raise SinkRefused(_EXAMPLE)
    if parameters:
        raise SinkRefused(f"{_EXAMPLE}, with no parameter but secure=true")
    if word and not _WORD.fullmatch(word):
        raise SinkRefused("place= in a ClickHouse URL is a word of letters, digits, dots, dashes and underscores")
    is_secure = secure == "true"
    server = Server(
        host=parts.hostname,
        port=port or (8443 if is_secure else 8123),
        is_secure=is_secure,
        user=unquote(parts.username or "default"),
        password=unquote(parts.password or "") or _password_of_environment(),
        database=database,
        name=f"database {database} in ClickHouse at {parts.hostname}",
    )
    return server, word


def _password_of_environment() -> str:
    path = os.environ.get(PASSWORD_FILE_ENV)
    if not path:
        return os.environ.get(PASSWORD_ENV, "")
    try:
        return Path(path).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError):
        # A path may tell more about a machine than its owner wants in a log.
        raise SinkRefused(f"the file that {PASSWORD_FILE_ENV} names cannot be read") from None


def connect(server: Server) -> Client:
    """Open a client. Raises SinkFailed while the server cannot be reached or refuses the user, and SinkRefused."""
    try:
        # The database comes with every statement: a client cannot be opened in one that is not there.
        client: Client | None = clickhouse_connect.get_client(
            interface="https" if server.is_secure else "http",
            host=server.host,
            port=server.port,
            username=server.user,
            password=server.password,
            connect_timeout=_CONNECT_TIMEOUT_S,
            send_receive_timeout=_ANSWER_TIMEOUT_S,
            # One session is one statement at a time, and remembers what an interrupted one left.
            autogenerate_session_id=False,
            # Times come with their zone, whatever the server's is.
            tz_mode="aware",
            client_name="trace-projector",
        )
        reason = ""
    except (ClickHouseError, urllib3.exceptions.HTTPError, OSError) as error:
        client, reason = None, _code_text(error)
    if client is None:
        raise SinkFailed(f"{server.name} cannot be reached ({reason})")
    return client


@contextmanager
def connected(server: Server) -> Iterator[Client]:
    """A client for a few statements."""
    client = connect(server)
    try:
        yield client
    finally:
        client.close()


def told(server: Server, work: Callable[[], _Result]) -> _Result:
    """Do some work, and say what went wrong with it in words that may be logged.

    Raises SinkBusy, SinkRefused or SinkFailed.
    """
    try:
        return work()
    except (ClickHouseError, urllib3.exceptions.HTTPError, OSError) as error:
        failure = _failure(error, server)
    # Not inside of the handler, where the driver's error would be the context of ours.
    raise failure


def _failure(error: Exception, server: Server) -> Exception:
    code = error.code if isinstance(error, Error) else None
    if code in _OVERLOADED:
        return SinkBusy(f"{server.name} is overloaded ({_OVERLOADED[code]})", OVERLOAD_DELAY_S)
    if code in _GONE:
        return SinkRefused(f"what {server.name} held is gone: read everything into it anew with `export resync`")
    if code in _FORBIDDEN:
        return SinkRefused(f"{server.name}: this user must not make, read or write what belongs to it")
    return SinkFailed(f"{server.name} failed ({_code_text(error)})")


def _code_text(error: Exception) -> str:
    """Class and code of an error, and ClickHouse's own name of it, which is a constant of ClickHouse's."""
    if isinstance(error, Error) and error.code is not None:
        return f"{type(error).__name__} {error.code} {error.name or ''}".rstrip()
    return type(error).__name__


def quoted(*names: str) -> str:
    """Quote an identifier of one or more parts."""
    return ".".join("`" + name.replace("\\", "\\\\").replace("`", "\\`") + "`" for name in names)
