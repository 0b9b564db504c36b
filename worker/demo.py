"""The demo: a broker on loopback, sample runs published to it, a worker projecting them, and the traces as they land.

Everything it makes lies in one directory, which it clears first and leaves behind for queries.
"""

import asyncio
import contextlib
import http.client
import os
import secrets
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import duckdb

from projections.records import RECORD_KINDS
from worker.embedded_broker import EmbeddedBroker, free_port
from worker.exports import ExportPolicy, make_upserts
from worker.file_mode import record_of
from worker.kafka import plain_producer
from worker.local_fold import Tally, fold_files
from worker.settings import Settings
from worker.settings_sections import ExportSettings, KafkaSettings
from worker.settings_text import describe_settings
from worker.source_files import SourceFile, find_source_files, read_messages
from worker.source_topics import create_source_topics
from worker.web.render import run_url

APP_ID: Final = "trace-demo"
EXPORT_NAME: Final = "demo"
PUBLIC_REPOSITORY: Final = "acme/docs"
BROKER_PORT: Final = 9092
SOURCE_PARTITIONS: Final = 4

_MARKER: Final = ".trace-projector-demo"
_STOP_TIMEOUT_S: Final = 15.0
_PAGE_TIMEOUT_S: Final = 30.0
_LOG_TAIL_BYTES: Final = 4_096
_CHECKOUT: Final = Path(__file__).resolve().parents[1]
RUNS_DIRECTORY: Final = _CHECKOUT / "fixtures" / "runs"


class DemoError(Exception):
    """The demo cannot start or its worker ended."""


class RunRow(NamedTuple):
    """One trace as the demo shows it: the first columns of the view `trace_runs`."""

    run_id: str
    workflow: str
    status: str
    attempts: int
    retries: int
    calls: int
    tool_errors: int
    open_gates: int
    tokens: int | None


RUNS_QUERY: Final = """\
SELECT run_id, workflow_name, status, attempts, retries, calls, tool_errors, open_gates, total_tokens
FROM trace_runs ORDER BY started_at, run_id"""

EXAMPLE_QUERY: Final = """\
SELECT step_id, iteration, attempt, outcome, calls, tool_errors, input_tokens, output_tokens
FROM trace_attempts WHERE execution_id IS NOT NULL ORDER BY input_tokens DESC NULLS LAST LIMIT 5"""

_RECORDS_QUERY: Final = " UNION ALL ".join(f"SELECT record FROM trace_{kind}" for kind in RECORD_KINDS)  # noqa: S608


class Demo:
    """One running demo; a context manager that stops worker and broker, in this order, however it ends."""

    def __init__(self, directory: Path, *, broker_port: int = BROKER_PORT, runs: Path = RUNS_DIRECTORY) -> None:
        # The worker runs in this directory, so its settings hold absolute paths.
        self.directory = directory.absolute()
        self.database = self.directory / "traces.duckdb"
        self.broker = EmbeddedBroker(broker_port)
        self._runs = runs
        self._worker: subprocess.Popen[bytes] | None = None
        self.settings = Settings()
        self.files: list[SourceFile] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self, say: Callable[[str], None]) -> None:
        """Start the broker, create the topics, publish the sample runs and start the worker; DemoError says why not."""
        self.files = self._find_files()
        _clear(self.directory)
        self.broker.start()
        if self.broker.port != self.broker.wanted_port:
            say(f"port {self.broker.wanted_port} is busy, so the broker took another")
        say(f"broker     {self.broker.bootstrap_servers} (embedded, in memory)")
        self.settings = self._write_settings()
        asyncio.run(create_source_topics(self.settings, SOURCE_PARTITIONS))
        count = asyncio.run(publish(self.files, self.settings))
        say(f"published  {count} messages to {', '.join(self.settings.source_topics.values())}")
        self._start_worker()
        say(f"worker     consumer groups {APP_ID}-*, health on http://127.0.0.1:{self.settings.web_port}/healthz")

    def _find_files(self) -> list[SourceFile]:
        directories = sorted(path for path in self._runs.glob("*") if path.is_dir())
        if not directories:
            raise DemoError(f"no sample runs in {self._runs}; run the demo from a source checkout, or say --runs DIR")
        return find_source_files(directories, Settings(), harness=None, namespace=None)[0]

    def expected(self) -> list[bytes]:
        """Give the records that the sample runs make, redacted as the worker's export does it, by file mode."""
        policy = ExportPolicy.from_settings(self.settings.exports[0], origin=APP_ID)
        tally = Tally()
        newest: dict[tuple[str, str], bytes | None] = {}
        for changes in fold_files(self.files, self.settings.limits, self.settings.unbound, tally):
            items = [record_of(change, 0) for change in changes]
            newest |= {upsert.key: upsert.json for upsert in make_upserts(policy, items)}
        return sorted(json for json in newest.values() if json is not None)

    def _write_settings(self) -> Settings:
        key_file = self.directory / "export.key"
        key_file.touch(mode=0o600)
        key_file.write_text(secrets.token_hex(32))
        export = ExportSettings(
            name=EXPORT_NAME,
            sink=f"duckdb:{self.database}",
            public_repos=frozenset({PUBLIC_REPOSITORY}),
            key_file=key_file,
        )
        settings = Settings(
            app_id=APP_ID,
            bootstrap_servers=self.broker.bootstrap_servers,
            partitions=SOURCE_PARTITIONS,
            state_dir=self.directory / "state",
            web_port=free_port(),
            web_export=EXPORT_NAME,
            log_format="console",
            # The embedded broker lets a new group wait for half of its members' session timeout.
            kafka=KafkaSettings(session_timeout_s=6.0, heartbeat_interval_s=1.0),
            exports=(export,),
        )
        # The printed form gives a key file by its name only; the worker is started in its directory.
        self.config.write_text(describe_settings(settings), encoding="utf-8")
        return settings

    @property
    def config(self) -> Path:
        """The settings file the worker runs with."""
        return self.directory / "trace-projector.toml"

    @property
    def log(self) -> Path:
        """Where the worker logs."""
        return self.directory / "worker.log"

    def _start_worker(self) -> None:
        environ = {name: value for name, value in os.environ.items() if not name.upper().startswith("TRACE_PROJECTOR_")}
        with self.log.open("wb") as log:
            self._worker = subprocess.Popen(  # noqa: S603  (this program, with the settings just written)
                [sys.executable, "-m", "worker", "--config", self.config.name, "worker"],
                cwd=self.directory,
                env=environ
                | {
                    "PYTHONPATH": os.pathsep.join(
                        filter(None, [str(RUNS_DIRECTORY.parents[1]), environ.get("PYTHONPATH")])
                    )
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Ctrl-C is for the demo, which then stops the worker before the broker.
                start_new_session=True,
            )

    def check(self) -> None:
        """Raise DemoError, with the end of the worker's log, when worker or broker ended by itself."""
        if self._worker is not None and self._worker.poll() is not None:
            tail = self.log.read_bytes()[-_LOG_TAIL_BYTES:].decode("utf-8", "replace")
            raise DemoError(f"the worker ended with code {self._worker.returncode}; the end of {self.log}:\n{tail}")
        if not self.broker.is_running:
            raise DemoError("the broker ended")

    def query(self, sql: str) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Give the columns and rows of a query; none while the database is not there or the worker is writing it."""
        if not self.database.exists():
            return [], []
        try:
            with contextlib.closing(duckdb.connect(str(self.database), read_only=True)) as connection:
                result = connection.execute(sql)
                return [column[0] for column in result.description], result.fetchall()
        except (duckdb.IOException, duckdb.CatalogException):
            return [], []

    def runs(self) -> list[RunRow]:
        """Give the traces that have landed."""
        return [RunRow(*row) for row in self.query(RUNS_QUERY)[1]]

    def records(self) -> list[bytes]:
        """Give the records that have landed."""
        return sorted(str(row[0]).encode() for row in self.query(_RECORDS_QUERY)[1])

    def timeline_address(self) -> str:
        """Give the address of the page of the run with the most calls. Raises DemoError when it does not answer."""
        run = max(self.runs(), key=lambda run: run.calls)
        address = f"http://{self.settings.web_host}:{self.settings.web_port}{run_url(run.run_id)}"
        try:
            with urllib.request.urlopen(address, timeout=_PAGE_TIMEOUT_S):
                return address
        except (OSError, http.client.HTTPException) as error:
            raise DemoError(f"the page {address} does not answer ({error}); see {self.log}") from error

    def stop(self) -> None:
        """Stop the worker, which finishes what it holds, then the broker."""
        worker, self._worker = self._worker, None
        if worker is not None and worker.poll() is None:
            worker.terminate()
            try:
                worker.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()
        self.broker.stop()


def _clear(directory: Path) -> None:
    """Make an empty directory of our own; one that somebody else filled is refused."""
    if directory.exists() and not (directory / _MARKER).exists() and any(directory.iterdir()):
        raise DemoError(f"{directory} holds files that no demo put there; choose another with --dir")
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    directory.chmod(0o700)
    (directory / _MARKER).touch()


async def publish(files: list[SourceFile], settings: Settings) -> int:
    """Send every message of topic files to its topic, spread over the partitions; gives how many there were.

    Messages need no key and no order, whatever the partition: what a trace is does not depend on either. (Only a
    tombstone would have to follow its row in the row's partition, and the sample runs hold none.)
    """
    producer: Any = plain_producer(settings)
    await producer.start()
    count = 0
    try:
        for file in files:
            topic = settings.source_topics[file.source]
            for message in read_messages(file, settings.limits):
                if message.skipped is None and message.refused is None:
                    await producer.send(
                        topic, value=message.value, key=message.key, partition=message.offset % SOURCE_PARTITIONS
                    )
                    count += 1
        await producer.flush()
    finally:
        await producer.stop()
    return count
