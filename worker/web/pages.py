"""The pages that show records (runs, one run's timeline, one record, spend), dead letters, and the worker's own.

What they show of records is what the sink of the export ``web_export`` holds, so it is redacted as that export is.
Addresses carry ids as parameters: a run's id may hold any character.
"""

import urllib.parse
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any, Final, NamedTuple, Protocol

import faust
import structlog
from pydantic import SecretStr

from projections.records import RECORD_KINDS
from projections.reports.timeline import timeline
from worker.logs import error_fields
from worker.record_reader import READERS, Record, RecordsUnreadable, open_reader
from worker.settings import Settings
from worker.settings_sections import SettingsError
from worker.topic_scan import BrokerFailed
from worker.web.access import CHALLENGE, is_allowed, is_this_machine
from worker.web.health import Watched
from worker.web.letters import LetterQuery, Letters, view_letters
from worker.web.readings import PagesBusy, Readings
from worker.web.record_view import view_record
from worker.web.render import ASSETS, HEADERS, View, asset, render, render_run, runs_url, templates
from worker.web.run_list import Query, Runs, TooManyRecords
from worker.web.worker_view import Rates, view_worker

PARAMETER_CHARACTERS_MAX: Final = 4_096
_PAGE_DIGITS_MAX: Final = 6
NO_BROKER: Final = (
    "Dead letters are kept in a topic of Kafka, and these pages were opened without one, over a sink alone. A worker "
    "with web_export shows them, and so does `trace-projector dead-letters list` with its settings."
)

Parameters = dict[str, str]

_log = structlog.get_logger(__name__)


class Working(Watched, Protocol):
    """What the page of the worker shows of it."""

    rates: Rates


class Answer(NamedTuple):
    """What a page answers with."""

    html: str
    status: HTTPStatus = HTTPStatus.OK


class NotFound(Exception):  # noqa: N818  (a state of the records, not a fault of the program)
    """What an address names is not there; the text says what, and repeats nothing of the address."""


def open_pages(settings: Settings) -> "RecordPages | None":
    """Make the pages of the export that the settings name; None if they name none.

    Raises SettingsError when its sink cannot be read back.
    """
    if settings.web_export is None:
        return None
    export = settings.export_named(settings.web_export)
    try:
        reader = open_reader(export.sink)
    except RecordsUnreadable as error:
        known = ", ".join(sorted(READERS))
        problem = f"web_export names {export.name}, whose sink no page can read ({error}); readable are {known}"
        raise SettingsError([problem]) from error
    return RecordPages(Readings(reader), View(export.name, export.redact), settings.web_token)


class RecordPages:
    """The pages of one export."""

    def __init__(self, readings: Readings, view: View, token: SecretStr | None) -> None:
        self._readings = readings
        self._view = view
        self._token = token
        self._watched: Working | None = None
        self._letters: Letters | None = None
        # Now, so that the first page finds them loaded.
        templates()

    def add_to(self, app: faust.App, watched: Working | None = None, letters: Letters | None = None) -> None:
        """Put the pages on an app that has not started yet.

        With a page of the worker, if there is one to watch, and with dead letters, if there is a broker to be asked.
        """
        self._letters = letters
        pages: dict[str, Callable[[Parameters], Awaitable[Answer]]] = {
            "/runs": self.runs,
            "/run": self.run,
            "/record": self.record,
            "/spend": self.spend,
            "/dead-letters": self.letters,
        }
        if watched is not None:
            self._watched = watched
            self._view = self._view._replace(has_worker=True)
            pages["/worker"] = self.worker
        for path, page in pages.items():
            app.page(path, name=path)(self._guarded(page))
        app.page("/", name="/")(_to_runs)
        server: Any = app.web
        server.web_app.on_shutdown.append(self._close)
        for name, content_type in ASSETS.items():
            app.page(f"/assets/{name}", name=f"/assets/{name}")(self._asset(name, content_type))

    async def _close(self, _server: Any) -> None:
        self._readings.close()
        if self._letters is not None:
            self._letters.close()

    def _guarded(self, page: Callable[[Parameters], Awaitable[Answer]]) -> Any:
        async def answer(web: Any, request: Any) -> Any:
            refused = self._refused(request)
            html, status = refused or await self._answer(page, parameters_of(request.rel_url.raw_query_string))
            headers = HEADERS | ({"WWW-Authenticate": CHALLENGE} if status == HTTPStatus.UNAUTHORIZED else {})
            return web.html(html, status=status, headers=headers)

        return answer

    def _asset(self, name: str, content_type: str) -> Any:
        async def answer(web: Any, _request: Any) -> Any:
            return web.text(asset(name), content_type=content_type, headers=HEADERS)

        return answer

    def _refused(self, request: Any) -> Answer | None:
        if not is_allowed(request.headers.get("Authorization", ""), self._token):
            text = "This page wants the token of the worker: as the password, under any user name."
            return self._message("Not signed in", text, HTTPStatus.UNAUTHORIZED)
        if self._token is None and not is_this_machine(request.headers.get("Host", "")):
            text = "Without web_token the pages answer to this machine's own names only."
            return self._message("Not here", text, HTTPStatus.MISDIRECTED_REQUEST)
        return None

    async def _answer(self, page: Callable[[Parameters], Awaitable[Answer]], parameters: Parameters) -> Answer:
        try:
            return await page(parameters)
        except NotFound as missing:
            return self._message("Not found", str(missing), HTTPStatus.NOT_FOUND)
        except RecordsUnreadable as error:
            return self._message("Nothing to read now", f"{error}.", HTTPStatus.SERVICE_UNAVAILABLE)
        except PagesBusy as error:
            return self._message("Busy", str(error), HTTPStatus.SERVICE_UNAVAILABLE)
        except TooManyRecords:
            text = "There are more records than a page reads. Query the sink itself, or use the command line's reports."
            return self._message("Too much to show", text, HTTPStatus.INSUFFICIENT_STORAGE)
        except Exception as error:  # noqa: BLE001  (the server would log its text, which may hold anything)
            _log.error("page_failed", **error_fields(error))
            text = "This page cannot be made; the log of the worker says where it failed."
            return self._message("Something is wrong here", text, HTTPStatus.INTERNAL_SERVER_ERROR)

    def _message(self, title: str, text: str, status: HTTPStatus) -> Answer:
        return Answer(render("message.html", self._view, title=title, text=text), status)

    # --------------------------------------------------------------------------------------------------------- pages

    async def runs(self, parameters: Parameters) -> Answer:
        """List runs, the newest first: those of a status, of a workflow, with a text in a name; page by page."""
        status, workflow, text = (parameters.get(name, "") for name in ("status", "workflow", "text"))
        query = Query(status, workflow, text, _page(parameters))

        def make(runs: Runs) -> str:
            return render("runs.html", self._view, runs=runs.listed(query), query=query)

        return Answer(await self._readings.listing(query, make))

    async def run(self, parameters: Parameters) -> Answer:
        """Show one run against time."""
        run_id = _required(parameters, "id")

        def make(records: list[Record]) -> str | None:
            laid_out = timeline(records, run_id)
            return None if laid_out is None else render_run(self._view, laid_out)

        html = await self._readings.run("run", run_id, make)
        if html is None:
            raise NotFound("There is no such run in this export.")
        return Answer(html)

    async def record(self, parameters: Parameters) -> Answer:
        """Show one record, its place in the transcript, and what belongs to it."""
        run_id, kind, record_id = (_required(parameters, name) for name in ("run", "kind", "id"))
        if kind not in RECORD_KINDS:
            raise NotFound("There is no such kind of record.")

        def make(records: list[Record]) -> str | None:
            # Costs of other runs come along, and are none of this run's records.
            mine = [record for record in records if record["runId"] == run_id]
            view = view_record(mine, kind, record_id)
            return None if view is None else render("record.html", self._view, record=view, run_id=run_id)

        html = await self._readings.run(f"record {kind} {record_id}", run_id, make)
        if html is None:
            raise NotFound("There is no such record in this run.")
        return Answer(html)

    async def spend(self, _parameters: Parameters) -> Answer:
        """Sum up tokens and money by day and by model."""

        def make(runs: Runs) -> str:
            return render("spend.html", self._view, reports=runs.spending())

        return Answer(await self._readings.listing("spend", make))

    async def letters(self, parameters: Parameters) -> Answer:
        """List the newest dead letters, counted by reason and by topic, and say how to project them again."""
        query = LetterQuery(parameters.get("reason", ""), parameters.get("topic", ""), _page(parameters))
        if self._letters is None:
            return Answer(render("letters.html", self._view, problem=NO_BROKER))
        try:
            tail = await self._letters.tail()
        except BrokerFailed as error:
            html = render("letters.html", self._view, problem=f"{error}.")
            return Answer(html, HTTPStatus.SERVICE_UNAVAILABLE)
        page = view_letters(tail, query)
        return Answer(render("letters.html", self._view, problem=None, letters=page, query=query))

    async def worker(self, _parameters: Parameters) -> Answer:
        """Show the roles of this worker, what became of the messages it read, and dead letters by reason."""
        watched = self._watched
        assert watched is not None, "this page is there only with a worker to watch"
        view = view_worker(watched.readiness(), watched.metrics.families(), watched.rates)
        return Answer(render("worker.html", self._view, worker=view))


async def _to_runs(web: Any, _request: Any) -> Any:
    return web.text("", status=HTTPStatus.FOUND, headers=HEADERS | {"Location": runs_url()})


def parameters_of(query: str) -> Parameters:
    """Read the parameters of an address; of one name the last counts, and what is too long counts as not given."""
    try:
        pairs = urllib.parse.parse_qsl(query, encoding="utf-8", errors="surrogatepass", max_num_fields=16)
    except ValueError:
        return {}
    return {name: value for name, value in pairs if len(value) <= PARAMETER_CHARACTERS_MAX}


def _page(parameters: Parameters) -> int:
    page = parameters.get("page", "")
    return int(page) if page.isascii() and page.isdigit() and len(page) <= _PAGE_DIGITS_MAX else 1


def _required(parameters: Parameters, name: str) -> str:
    value = parameters.get(name)
    if not value:
        raise NotFound(f"The address lacks the parameter {name}.")
    return value
