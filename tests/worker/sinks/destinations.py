"""Every destination as the contract test sees it: a URL to open, and what it holds when everything is closed."""

import asyncio
import atexit
import functools
import hashlib
import json
import resource
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import duckdb
from deltalake import DeltaTable

from projections.decode import decode_json
from tests.stores import clickhouse, postgresql
from worker.embedded_broker import EmbeddedBroker
from worker.kafka import Message
from worker.settings import Settings
from worker.sink import RecordKey, Sink, Upsert, open_sink
from worker.sinks.memory import StdoutSink, memory_store
from worker.stores.columns import COLUMNS
from worker.stores.views import DUCKDB, view_queries
from worker.topic_scan import open_scan

POLICY = "policy-a"
REPOSITORY = Path(__file__).resolve().parents[3]
DOC_RUN: list[dict[str, Any]] = [
    json.loads(line)["record"]
    for line in (REPOSITORY / "fixtures/conformance/titan/doc_run.jsonl").read_text(encoding="utf-8").splitlines()
]


class Destination:
    """One destination, in a directory of its own."""

    is_kept_between_opens: ClassVar[bool] = True
    """Whether a second sink with the same URL finds what the first one wrote."""
    is_file: ClassVar[bool] = False

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @classmethod
    def is_here(cls) -> bool:
        """Whether this machine has what it needs; where it has not, making one skips the test."""
        return True

    @property
    def url(self) -> str:
        raise NotImplementedError

    def records(self) -> dict[RecordKey, bytes]:
        """Bytes of the living records after the sink was closed."""
        raise NotImplementedError

    def run(self, work: Callable[[Sink], Any]) -> dict[RecordKey, bytes]:
        """Open a sink, let a coroutine function use it, close it, and give what the destination then holds."""

        async def use() -> None:
            sink = open_sink(self.url, POLICY)
            await sink.open()
            try:
                await work(sink)
            finally:
                await sink.close()

        asyncio.run(use())
        return self.records()

    def write(self, *batches: Sequence[Upsert]) -> dict[RecordKey, bytes]:
        """Write batches through one sink."""

        async def write_all(sink: Sink) -> None:
            for batch in batches:
                await sink.write(batch)

        return self.run(write_all)


class SqlDestination(Destination):
    """A destination with the tables and views that docs/querying.md asks its questions of."""

    says: ClassVar[dict[str, str]] = {}
    """What this destination writes in the stead of what the page says, as the page tells it."""

    def query(self, sql: str, time_zone: str = "UTC") -> list[tuple[Any, ...]]:
        """Rows as somebody sees them who is in a time zone; JSON as Python values."""
        return [tuple(row.values()) for row in self.rows(sql, time_zone)]

    def row(self, sql: str) -> dict[str, Any]:
        (row,) = self.rows(sql)
        return row

    def said(self, question: str) -> str:
        """A question of the page's in this destination's words."""
        for theirs, ours in self.says.items():
            question = question.replace(theirs, ours)
        return question

    def rows(self, sql: str, time_zone: str = "UTC") -> list[dict[str, Any]]:
        raise NotImplementedError

    def records(self) -> dict[RecordKey, bytes]:
        # One question: some destinations are opened for each.
        of_kinds = (f"SELECT '{kind}' AS kind, id, record FROM trace_{kind}" for kind in COLUMNS)  # noqa: S608
        return {
            (kind, record_id): record.encode() for kind, record_id, record in self.query(" UNION ALL ".join(of_kinds))
        }


class DuckDBDestination(SqlDestination):
    is_file = True

    @property
    def path(self) -> Path:
        return self.directory / "traces.duckdb"

    @property
    def url(self) -> str:
        return f"duckdb:{self.path}"

    def rows(self, sql: str, time_zone: str = "UTC") -> list[dict[str, Any]]:
        with duckdb.connect(str(self.path), read_only=True) as connection:
            connection.execute(f"SET TimeZone = '{time_zone}'")
            return duckdb_rows(connection.execute(sql))


def duckdb_rows(cursor: duckdb.DuckDBPyConnection) -> list[dict[str, Any]]:
    """Rows of a query by the names of their columns; JSON as Python values."""
    assert cursor.description is not None
    columns = [(name, str(type_)) for name, type_, *_ in cursor.description]
    return [
        {
            name: json.loads(value) if type_ == "JSON" and value else value
            for (name, type_), value in zip(columns, row, strict=True)
        }
        for row in cursor.fetchall()
    ]


class JsonlDestination(Destination):
    is_file = True

    @property
    def path(self) -> Path:
        return self.directory / "traces.jsonl"

    @property
    def state_path(self) -> Path:
        return self.directory / "traces.jsonl.state"

    @property
    def url(self) -> str:
        return f"jsonl:{self.path}"

    def records(self) -> dict[RecordKey, bytes]:
        return by_key(self.path.read_bytes())


class PostgreSQLDestination(SqlDestination):
    says: ClassVar[dict[str, str]] = {"record->>'$.measurement.source'": "record::json->'measurement'->>'source'"}

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.server = postgresql.server()
        self.schema = f"t_{hashlib.sha256(str(directory).encode()).hexdigest()[:16]}"

    @classmethod
    def is_here(cls) -> bool:
        return postgresql.is_here()

    @property
    def url(self) -> str:
        return self.server.url(self.schema)

    def rows(self, sql: str, time_zone: str = "UTC") -> list[dict[str, Any]]:
        with self.server.connect(self.schema) as connection:
            connection.execute(f"SET TimeZone = '{time_zone}'")
            cursor = connection.execute(sql)
            names = [column.name for column in cursor.description or ()]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()] if names else []


class ClickHouseDestination(SqlDestination):
    says: ClassVar[dict[str, str]] = {
        "extract(epoch FROM resolved_at - opened_at)": "toFloat64(resolved_at - opened_at)",
        "record->>'$.measurement.source'": "JSONExtractString(record, 'measurement', 'source')",
    }

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.server = clickhouse.server()
        self.database = f"t_{hashlib.sha256(str(directory).encode()).hexdigest()[:16]}"

    @property
    def url(self) -> str:
        return self.server.url(self.database)

    def rows(self, sql: str, time_zone: str = "UTC") -> list[dict[str, Any]]:
        with self.server.connect(self.database) as client:
            result = client.query(f"{sql} SETTINGS session_timezone = '{time_zone}'")
            return [
                {name: json.loads(value) if name in JSON_COLUMNS and value else value for name, value in row.items()}
                for row in result.named_results()
            ]


JSON_COLUMNS = {column.name for columns in COLUMNS.values() for column in columns if column.type == "json"}


class DeltaDestination(SqlDestination):
    """Delta tables in a directory, which DuckDB sees through the tables of Arrow."""

    is_file = True

    @property
    def path(self) -> Path:
        return self.directory / "traces.delta"

    @property
    def url(self) -> str:
        return f"delta:{self.path}"

    def rows(self, sql: str, time_zone: str = "UTC") -> list[dict[str, Any]]:
        with duckdb.connect() as connection:
            connection.execute(f"SET TimeZone = '{time_zone}'")
            for kind, columns in COLUMNS.items():
                connection.register(f"delta_{kind}", DeltaTable(self.path / f"trace_{kind}").to_pyarrow_table())
                as_json = [
                    f"CAST({column.name} AS JSON) AS {column.name}" for column in columns if column.type == "json"
                ]
                replaced = f"REPLACE ({', '.join(as_json)})" if as_json else ""
                connection.execute(f"CREATE VIEW trace_{kind} AS SELECT * {replaced} FROM delta_{kind}")  # noqa: S608
            for name, query in view_queries(DUCKDB).items():
                connection.execute(f"CREATE VIEW {name} AS {query}")
            return duckdb_rows(connection.execute(sql))


class ParquetDestination(SqlDestination):
    """A directory of files, as DuckDB shows them through the views that are written beside them."""

    is_file = True

    @property
    def path(self) -> Path:
        return self.directory / "traces.parquet"

    @property
    def url(self) -> str:
        return f"parquet:{self.path}"

    def rows(self, sql: str, time_zone: str = "UTC") -> list[dict[str, Any]]:
        with duckdb.connect() as connection:
            connection.execute(f"SET TimeZone = '{time_zone}'")
            connection.execute(f"SET file_search_path = '{self.path}'")
            connection.execute((self.path / "views.sql").read_text(encoding="utf-8"))
            return duckdb_rows(connection.execute(sql))


class MemoryDestination(Destination):
    @property
    def url(self) -> str:
        return f"memory:{self.directory}"

    def records(self) -> dict[RecordKey, bytes]:
        return by_key(b"".join(line + b"\n" for line in memory_store(str(self.directory)).records()))


class StdoutDestination(Destination):
    is_kept_between_opens = False

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._printed = b""

    @property
    def url(self) -> str:
        return "stdout:"

    def records(self) -> dict[RecordKey, bytes]:
        return by_key(self._printed)

    def run(self, work: Callable[[Sink], Any]) -> dict[RecordKey, bytes]:
        async def use() -> None:
            sink = open_sink(self.url, POLICY)
            assert isinstance(sink, StdoutSink)
            await sink.open()
            await work(sink)
            # What `close` prints; that it prints it is a test of its own.
            self._printed = b"".join(line + b"\n" for line in sink.store.records())

        asyncio.run(use())
        return self.records()


class KafkaDestination(Destination):
    """A topic on the embedded broker, which knows no transactions; the integration tests have a real one."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.bootstrap_servers = embedded_broker().bootstrap_servers
        self.topic = f"traces-{hashlib.sha256(str(directory).encode()).hexdigest()[:32]}"

    @property
    def url(self) -> str:
        return f"kafka:{self.topic}?bootstrap_servers={self.bootstrap_servers}&partitions=3&transactions=off"

    def records(self) -> dict[RecordKey, bytes]:
        newest = {message.key: message for message in asyncio.run(topic_messages(self.bootstrap_servers, self.topic))}
        return {
            (dict(message.headers)["kind"].decode(), key.partition(b":")[2].decode()): message.value
            for key, message in newest.items()
            if key is not None and message.value is not None
        }


@functools.cache
def embedded_broker() -> EmbeddedBroker:
    """One broker for all tests of a process."""
    broker = EmbeddedBroker()
    broker.start()
    atexit.register(broker.stop)
    return broker


async def topic_messages(bootstrap_servers: str, topic: str) -> list[Message]:
    """All committed messages of a topic, each partition in its order."""
    settings = Settings(bootstrap_servers=bootstrap_servers)
    async with open_scan(settings) as scan:
        spans = await scan.spans(await scan.partitions([topic]))
        return [message async for _, messages in scan.read(spans) for message in messages]


DESTINATIONS: dict[str, type[Destination]] = {
    "clickhouse": ClickHouseDestination,
    "delta": DeltaDestination,
    "duckdb": DuckDBDestination,
    "jsonl": JsonlDestination,
    "kafka": KafkaDestination,
    "memory": MemoryDestination,
    "parquet": ParquetDestination,
    "postgresql": PostgreSQLDestination,
    "stdout": StdoutDestination,
}


def by_key(lines: bytes) -> dict[RecordKey, bytes]:
    """Records by kind and id; an id that stands twice is a failure."""
    records = {}
    for line in lines.split(b"\n")[:-1]:
        record = decode_json(line)
        key = record["kind"], record["id"]
        assert key not in records, "one line per record"
        records[key] = line
    return records


def upsert(record: dict[str, Any], offset: int, *, generation: int = 1, json_bytes: bytes | None = None) -> Upsert:
    data = json.dumps(record, separators=(",", ":"), ensure_ascii=False).encode() if json_bytes is None else json_bytes
    return Upsert(record["kind"], record["id"], generation, offset, record, data)


def deletion(record: dict[str, Any], offset: int, *, generation: int = 1) -> Upsert:
    return Upsert(record["kind"], record["id"], generation, offset, None, None)


def run_record(name: str, **fields: Any) -> dict[str, Any]:
    return {
        "schema": "titan.trace/v1",
        "kind": "run",
        "id": name,
        "runId": name,
        "at": "2026-09-28T10:00:00.000Z",
        "workflowName": "doc-change",
        "status": "running",
        **fields,
    }


@contextmanager
def full_disk(bytes_max: int) -> Iterator[None]:
    """No file of this process grows beyond so many bytes: writing further fails as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_max, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
