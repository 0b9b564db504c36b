"""The commands of the pages that need a broker, in the order in which they stand, as somebody types them who reads on.

Whoever comes to a page has done what the README says: there is a settings file, a key, and topics with runs in them.
On every page but the README itself a worker has read what is in them.
"""

import asyncio
import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer

from tests.brokers.broker import LOOPBACK, Broker, free_ports
from tests.docs.pages import PAGES, ROOT, Block, blocks, commands, named
from tests.integration.pipeline import PATIENCE_S, PROGRAM, STOP_S, eventually
from worker.cli import run
from worker.demo import publish
from worker.settings import ENV_PREFIX, load_settings
from worker.source_files import find_source_files

pytestmark = pytest.mark.integration

README = ROOT / "README.md"
CONFIG = "trace-projector.toml"


# What the pages' source topics begin with. Pages are read side by side on one broker, each with topics of its own.
SHOWN_PREFIX = "prod."

WORKER = f"trace-projector --config {CONFIG} worker"


def shown(page: Path) -> list[Block]:
    return [block for block in blocks(page) if block.info in {"sh kafka", "sh kafka worker"}]


class Reader:
    """Somebody at a shell who has followed the README."""

    def __init__(self, directory: Path, capfd: pytest.CaptureFixture[str], prefix: str) -> None:
        self._directory = directory
        self._capfd = capfd
        self._prefix = prefix

    def run(self, *arguments: str, exit_code: int = 0) -> str:
        """Run a command in this process and give what it printed."""
        self._capfd.readouterr()
        code = run(list(arguments))
        printed, complained = self._capfd.readouterr()
        assert code == exit_code, f"{shlex.join(arguments)}: {complained}{printed}"
        return printed

    def type(self, line: str) -> None:
        """Run a line of a page; a worker until it has read everything, then Ctrl-C."""
        program, *arguments = shlex.split(line.replace(SHOWN_PREFIX, self._prefix), comments=True)
        assert program == "trace-projector"
        if "worker" in arguments:
            with self.working(line):
                pass
        else:
            self.run(*arguments, exit_code=1 if "# exit code 1" in line else 0)

    def publish(self) -> None:
        """Fill the topics with the sample runs, behind one message that can never be projected."""
        settings = load_settings(Path(CONFIG))
        runs = [ROOT / "fixtures" / "runs" / name for name in ("demo", "example")]
        files, _passed_over = find_source_files(runs, settings, harness=None, namespace=None)

        async def send() -> None:
            producer = AIOKafkaProducer(bootstrap_servers=settings.bootstrap_servers, acks="all")
            await producer.start()
            try:
                await producer.send_and_wait(settings.topics.workflow_runs, b"{broken", partition=0)
            finally:
                await producer.stop()
            await publish(files, settings)

        asyncio.run(send())

    @contextlib.contextmanager
    def working(self, line: str) -> Iterator[None]:
        """Run a worker, from when it has read everything until Ctrl-C."""
        arguments = shlex.split(line, comments=True)[1:]
        log = self._directory / "worker.log"
        with log.open("ab") as output:
            worker = subprocess.Popen([*PROGRAM, *arguments], stdout=output, stderr=output, start_new_session=True)
        try:
            eventually(lambda: worker.poll() is not None or self._is_done(arguments), "the worker has read everything")
            assert worker.poll() is None, log.read_text()[-2_000:]
            yield
            assert worker.poll() is None, log.read_text()[-2_000:]
            worker.send_signal(signal.SIGINT)
            assert worker.wait(STOP_S) == 0
        finally:
            if worker.poll() is None:
                worker.kill()
                worker.wait(PATIENCE_S)

    def _is_done(self, arguments: list[str]) -> bool:
        """Whether the worker answers that it is ready, and its roles have nothing more to read."""
        # A broker may take a worker that has gone for a member a little longer.
        if not is_ready():
            return False
        status = json.loads(self.run("--config", CONFIG, "status", "--json"))
        roles = {role for option, role in pairwise(arguments) if option == "--role"}
        return not any(row["lag"] for row in status["partitions"] if not roles or row["role"] in roles)


def is_ready() -> bool:
    try:
        with urllib.request.urlopen(f"http://{LOOPBACK}:{load_settings(None).web_port}/readyz", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@pytest.fixture
def reader(
    kafka: Broker, fresh_app_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Reader:
    for name in list(os.environ):
        if name.upper().startswith(ENV_PREFIX):
            monkeypatch.delenv(name)
    # One broker in the stead of the page's two, which have three replicas; variables win over the file.
    for name, value in {
        "APP_ID": fresh_app_id,
        "BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
        "REPLICATION_FACTOR": "1",
        "PARTITIONS": "2",
        "WEB_PORT": str(free_ports(1)[0]),
        "KAFKA__SESSION_TIMEOUT_S": "6" if kafka.supports_transactions else "2",
        "KAFKA__HEARTBEAT_INTERVAL_S": "0.5",
    }.items():
        monkeypatch.setenv(f"{ENV_PREFIX}{name}", value)
    (block,) = blocks(README, "toml")
    prefix = f"{fresh_app_id}."
    (tmp_path / CONFIG).write_text(block.text.replace(SHOWN_PREFIX, prefix), encoding="utf-8")
    (tmp_path / "analytics.key").write_text("0123456789abcdef" * 4, encoding="utf-8")
    (tmp_path / "analytics.key").chmod(0o600)
    (tmp_path / "fixtures").symlink_to(ROOT / "fixtures")
    harn = tmp_path / "runs" / "sess-41" / "agent-llm"
    harn.mkdir(parents=True)
    shutil.copy(ROOT / "fixtures" / "transcripts" / "harn" / "native.jsonl", harn / "llm_transcript.jsonl")
    projects = tmp_path / "home" / ".claude" / "projects" / "a"
    projects.mkdir(parents=True)
    shutil.copy(ROOT / "fixtures" / "transcripts" / "claude-code" / "native.jsonl", projects / "x.jsonl")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(tmp_path)
    return Reader(tmp_path, capfd, prefix)


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if shown(page)], ids=named)
def test_the_commands_of_a_page_succeed_one_after_the_other(page: Path, reader: Reader) -> None:
    reader.run("--config", CONFIG, "topics", "create", "--sources")
    reader.publish()
    if page != README:
        reader.type(WORKER)
    for block in shown(page):
        with reader.working(WORKER) if block.info.endswith(" worker") else contextlib.nullcontext():
            for line in commands(block):
                reader.type(line)
