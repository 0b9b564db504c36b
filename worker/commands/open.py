"""`trace-projector open`: the page of a run in a browser."""

import http.client
import sys
import urllib.error
import urllib.request
import webbrowser
from http import HTTPStatus

import click

from worker.cli import EXIT_USAGE, CommandFailed, Invocation
from worker.settings import Settings

ANSWER_TIMEOUT_S = 20.0
_ALL_ADDRESSES = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  (what a worker listens on, told from where to ask)


@click.command(
    "open",
    epilog="""\b
Examples:
  trace-projector --config trace-projector.toml open
  trace-projector --config trace-projector.toml open run-7
  trace-projector --config trace-projector.toml open run-7 --print

Exit codes: 0 the page answers, 1 it does not, 2 the settings name no export to show.
""",
)
@click.argument("run_id", metavar="[RUN]", required=False)
@click.option("--print", "is_printed", is_flag=True, help="Print the address and open nothing, as off a terminal.")
@click.pass_obj
def open_command(invocation: Invocation, run_id: str | None, *, is_printed: bool) -> None:
    """Open the timeline of a run, or the list of runs, on the pages of a worker that runs with these settings."""
    settings = invocation.settings()
    if settings.web_export is None:
        raise CommandFailed("the settings name no export to show: web_export = NAME", EXIT_USAGE)
    address = page_address(settings, run_id)
    _check(settings, address)
    click.echo(address)
    if sys.stdout.isatty() and not is_printed:
        webbrowser.open(address)


def page_address(settings: Settings, run_id: str | None) -> str:
    """Give the address of a run's page, or of the list of runs."""
    from worker.web.render import run_url, runs_url  # noqa: PLC0415  (templates and all)

    host = _ALL_ADDRESSES.get(settings.web_host, settings.web_host)
    place = f"[{host}]" if ":" in host else host
    return f"http://{place}:{settings.web_port}{runs_url() if run_id is None else run_url(run_id)}"


def _check(settings: Settings, address: str) -> None:
    """Raise CommandFailed unless the page answers."""
    request = urllib.request.Request(address)  # noqa: S310  (http, as page_address makes it)
    if settings.web_token is not None:
        request.add_header("Authorization", f"Bearer {settings.web_token.get_secret_value()}")
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_TIMEOUT_S):  # noqa: S310  (the same)
            return
    except urllib.error.HTTPError as error:
        with error:
            raise CommandFailed(_answer_text(error.code)) from error
    except (OSError, http.client.HTTPException) as error:
        where = f"{settings.web_host}:{settings.web_port}"
        raise CommandFailed(f"no worker answers on {where}; start one with these settings") from error


def _answer_text(status: int) -> str:
    match status:
        case HTTPStatus.NOT_FOUND:
            return "no such run in the export that the pages show, or a worker that shows none"
        case HTTPStatus.UNAUTHORIZED:
            return "the worker wants another token than web_token of these settings"
        case HTTPStatus.SERVICE_UNAVAILABLE:
            return "the worker cannot read its sink now; try again in a moment"
    return f"the page answers with {status}"
