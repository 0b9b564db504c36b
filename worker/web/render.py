"""Pages as HTML: templates that escape whatever a record says, and the headers that keep a page from doing more.

Rules for editing: no markup is put together here or anywhere but in the templates, which escape by themselves; the one
thing that is marked as safe are our own script and style. There is no script in a page but the file ``timeline.js``.
"""

import base64
import functools
import hashlib
import importlib.resources
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlencode

from markupsafe import Markup

from projections.reports.spend import Usage
from projections.reports.timeline_model import Timeline
from worker.views.text import duration_text, shown
from worker.web.chart import (
    bar_title,
    bar_took,
    chart_data,
    gate_word,
    tokens_text,
    tone,
    usd_text,
)

if TYPE_CHECKING:
    from jinja2 import Environment

TABLE_ROWS_MAX: Final = 500
"""So many attempts and gates are in the table of a run; the chart has them all."""

HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}

ASSETS: Final = {
    "pages.css": "text/css",
    "timeline.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}


class View(NamedTuple):
    """Whose records a page shows: the export's name, and whether they are redacted; None where nobody can tell.

    ``has_worker`` says whether there is a page of the worker to lead to.
    """

    export: str
    is_redacted: bool | None
    has_worker: bool = False


@functools.cache
def asset(name: str) -> str:
    """Give one of the files that pages load."""
    return (importlib.resources.files("worker.web") / "assets" / name).read_text(encoding="utf-8")


def run_url(run_id: str) -> str:
    """Give the path of a run's page."""
    return "/run?" + urlencode({"id": run_id}, errors="surrogatepass")


def record_url(run_id: str, kind: str, record_id: str) -> str:
    """Give the path of a record's page."""
    return "/record?" + urlencode({"run": run_id, "kind": kind, "id": record_id}, errors="surrogatepass")


def runs_url(**query: str | int) -> str:
    """Give the path of a list of runs."""
    return _list_url("/runs", query)


def letters_url(**query: str | int) -> str:
    """Give the path of a list of dead letters."""
    return _list_url("/dead-letters", query)


def _list_url(path: str, query: Mapping[str, str | int]) -> str:
    wanted = {name: value for name, value in query.items() if value}
    return path + (f"?{urlencode(wanted, errors='surrogatepass')}" if wanted else "")


def _when(at: str) -> str:
    """Write a time for people, to the second; its digits stay those of the record."""
    return f"{at[:10]} {at[11:19]}"


def _moment(timestamp_ms: int) -> str:
    """Write the time of a message, which may have none, to the second in UTC."""
    if timestamp_ms < 0:
        return "–"  # noqa: RUF001  (a dash to be shown)
    return f"{datetime.fromtimestamp(timestamp_ms // 1_000, UTC):%Y-%m-%d %H:%M:%S}"


def _usd(usage: Usage | None) -> str:
    return "–" if usage is None else usd_text(usage)  # noqa: RUF001  (a dash to be shown)


def _tokens(usage: Usage | None, *fields: str) -> str:
    return "–" if usage is None else tokens_text(usage, *fields)  # noqa: RUF001


@functools.cache
def templates() -> "Environment":
    """Give the templates; the first call loads what they are written in, which a worker without pages never needs."""
    from jinja2 import Environment, PackageLoader, StrictUndefined  # noqa: PLC0415

    environment = Environment(
        loader=PackageLoader("worker.web", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "shown": shown,
        "duration": duration_text,
        "when": _when,
        "moment": _moment,
        "tone": tone,
        "usd": _usd,
        "tokens": _tokens,
    }
    environment.globals |= {
        "run_url": run_url,
        "record_url": record_url,
        "runs_url": runs_url,
        "letters_url": letters_url,
        "bar_title": bar_title,
        "bar_took": bar_took,
        "gate_word": gate_word,
    }
    return environment


def render(template: str, view: View, **values: Any) -> str:
    """Make a page of the worker."""
    return templates().get_template(template).render(view=view, inlined=None, **values)


def render_run(view: View, timeline: Timeline) -> str:
    """Make the page of a run."""
    return render("run.html", view, **_run_values(timeline, has_links=True))


def render_report(view: View, timeline: Timeline) -> str:
    """Make one file that shows a run by itself, wherever it is opened; its script and style are named by digest."""
    style, script = asset("pages.css"), asset("timeline.js")
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    # Our own files, so nothing in them is escaped; what is escaped would be no script any more.
    inlined = {"style": Markup(style), "script": Markup(script), "policy": policy}  # noqa: S704
    values = _run_values(timeline, has_links=False)
    return templates().get_template("run.html").render(view=view, inlined=inlined, **values)


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _run_values(timeline: Timeline, *, has_links: bool) -> dict[str, Any]:
    bars = [bar for lane in timeline.lanes for bar in lane.bars]
    gates = [(lane, gate) for lane in timeline.lanes for gate in lane.gates]
    calls = sum(len(lane.ticks) + sum(len(bar.ticks) for bar in lane.bars) for lane in timeline.lanes)
    return {
        "timeline": timeline,
        "bars": bars[:TABLE_ROWS_MAX],
        "gates": gates[:TABLE_ROWS_MAX],
        "left_out": max(0, len(bars) - TABLE_ROWS_MAX) + max(0, len(gates) - TABLE_ROWS_MAX),
        "attempts": len(bars),
        "retries": sum(bar.attempt > 0 for bar in bars),
        "open_gates": sum(gate.is_open for _, gate in gates),
        "calls": calls,
        "data": chart_data(timeline, has_links=has_links),
        "has_links": has_links,
    }
