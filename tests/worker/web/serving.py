"""A worker's pages on a port of this machine, without the worker: Faust's web server over a sink made for a test."""

import asyncio
import base64
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import faust
from aiohttp.web import AppRunner, TCPSite

from worker.cli import run
from worker.settings import Settings
from worker.settings_sections import ExportSettings
from worker.web.health import Readiness, Watched, add_pages
from worker.web.letters import Letters
from worker.web.pages import Working, open_pages

ROOT = Path(__file__).resolve().parents[3]
RUNS = ROOT / "fixtures" / "runs"
DOC_CHANGE = "9bf80943-7e19-5851-ab8a-c8e4e2b0f3eb"
START_TIMEOUT_S = 30
# Of a topic on which nothing happens: everything is assigned and restored, and there is nothing to read.
READY = Readiness(
    is_ready=True,
    assigned_partitions=4,
    ready_partitions=4,
    paused_partitions=0,
    stopped_partitions=0,
    standing_partitions=0,
)


def database_of(directory: Path, *names: str) -> str:
    """Project sample runs into a DuckDB file, and give its URL."""
    url = f"duckdb:{directory / 'traces.duckdb'}"
    assert run(["project", *(str(RUNS / name) for name in names), "--to", url, "--no-redact", "--estimate-costs"]) == 0
    return url


def file_of(directory: Path, records: Iterable[dict[str, Any]]) -> str:
    """Write records into a JSONL file, and give its URL."""
    path = directory / "t.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return f"jsonl:{path}"


def settings_of(url: str, **values: Any) -> Settings:
    """Give settings of a worker whose pages show what a sink holds, unredacted."""
    export = ExportSettings(name="shown", sink=url, redact=False)
    return Settings(**{"web_export": "shown", "web_unredacted": True, "exports": (export,), **values})


def app_of(settings: Settings, watched: Working | None = None, letters: Letters | None = None) -> Any:
    """Make a Faust app that serves the pages and does nothing else; gives its web application."""
    app = faust.App("pages", broker="kafka://127.0.0.1:1", autodiscover=False, web_in_thread=False)
    pages = open_pages(settings)
    assert pages is not None
    pages.add_to(app, watched, letters)
    web: Any = app.web
    web.init_server()
    return web.web_app


def serving(
    settings: Settings, watched: Working | None = None, letters: Letters | None = None
) -> AbstractContextManager[str]:
    """Serve the pages from a thread, and give the address of the server."""
    return served(lambda: app_of(settings, watched, letters))


def probed(watched: Watched) -> AbstractContextManager[str]:
    """Serve what probes and Prometheus ask for, and give the address of the server."""

    def make() -> Any:
        app = faust.App("probes", broker="kafka://127.0.0.1:1", autodiscover=False, web_in_thread=False)
        add_pages(app, watched)
        web: Any = app.web
        web.init_server()
        return web.web_app

    return served(make)


@contextmanager
def served(make: Callable[[], Any]) -> Iterator[str]:
    """Serve a web application from a thread, in which it is made."""
    started: list[tuple[int, asyncio.AbstractEventLoop, asyncio.Event]] = []
    is_up = threading.Event()

    async def serve() -> None:
        runner = AppRunner(make())
        await runner.setup()
        await TCPSite(runner, "127.0.0.1", 0).start()
        stop = asyncio.Event()
        started.append((runner.addresses[0][1], asyncio.get_running_loop(), stop))
        is_up.set()
        await stop.wait()
        await runner.cleanup()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert is_up.wait(START_TIMEOUT_S)
    port, loop, stop = started[0]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(START_TIMEOUT_S)


class Got(NamedTuple):
    """What an address answered."""

    status: int
    headers: dict[str, str]
    text: str


def get(address: str, **headers: str) -> Got:
    """Ask for a page; header names have underscores here."""
    request = urllib.request.Request(  # noqa: S310
        address, headers={name.replace("_", "-"): value for name, value in headers.items()}
    )
    try:
        with urllib.request.urlopen(request, timeout=START_TIMEOUT_S) as answer:  # noqa: S310
            return Got(answer.status, dict(answer.headers), answer.read().decode())
    except urllib.error.HTTPError as error:
        with error:
            return Got(error.code, dict(error.headers), error.read().decode())


def basic(password: str) -> str:
    """Give the Authorization header of a browser."""
    return f"Basic {base64.b64encode(f'anyone:{password}'.encode()).decode()}"


# --------------------------------------------------------------------------------------------------------- hostile text

MARKUP = "<script>window.hacked=1</script>"
BREAKOUT = '"><img src=x onerror="window.hacked=1">'
CLOSING = "</script><script>window.hacked=1</script><!--"
HOSTILE_RUN = "run-\"'><img/src=x/onerror=window.hacked=1>&\u202e"
_AT = "2026-11-03T10:00:{:02d}Z"


def hostile_records() -> list[dict[str, Any]]:
    """Give a run in which every text is markup."""
    envelope = {"schema": "titan.trace/v1", "runId": HOSTILE_RUN}
    # The grammar of this id, which is checked, allows no white space.
    attempt_id = f"workflow:{HOSTILE_RUN}:{BREAKOUT.replace(chr(32), chr(47))}:0:1"
    span = {"sourceId": MARKUP, "byteOffset": 3, "byteLength": 9, "contentHash": "0" * 64}
    measured = {"kind": "delta", "responseId": BREAKOUT, "model": MARKUP, "tokens": {"input": 5, "output": 2}}
    measured |= {"cost": {"usd": 0.25, "kind": "reported"}, "source": CLOSING}
    return [
        {
            **envelope,
            "kind": "run",
            "id": HOSTILE_RUN,
            "at": _AT.format(0),
            "workflowName": MARKUP,
            "status": BREAKOUT,
            "completedAt": _AT.format(50),
            "error": CLOSING,
        },
        {
            **envelope,
            "kind": "attempt",
            "id": attempt_id,
            "at": _AT.format(1),
            "stepId": BREAKOUT,
            "iteration": 0,
            "attempt": 1,
            "stepKind": "dispatch",
            "outcome": MARKUP,
            "model": CLOSING,
            "error": MARKUP,
            "completedAt": _AT.format(40),
        },
        {
            **envelope,
            "kind": "call",
            "id": BREAKOUT,
            "attemptId": attempt_id,
            "at": _AT.format(20),
            "callKind": "tool",
            "name": CLOSING,
            "conversation": MARKUP,
            "isError": True,
            "span": span,
        },
        {
            **envelope,
            "kind": "gate",
            "id": CLOSING,
            "attemptId": attempt_id,
            "at": _AT.format(30),
            "gateKind": "human",
            "status": "resolved",
            "verdict": BREAKOUT,
            "decidedBy": MARKUP,
            "resolvedAt": _AT.format(39),
        },
        {
            **envelope,
            "kind": "cost",
            "id": MARKUP,
            "attemptId": attempt_id,
            "at": _AT.format(20),
            "conversation": MARKUP,
            "measurement": measured,
            "span": span,
        },
    ]
