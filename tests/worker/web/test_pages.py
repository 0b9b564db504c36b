"""The pages as a browser gets them: what they show, to whom, with which headers, and what they say when they cannot."""

import html.parser
import json
import re
import threading
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

from tests.worker.web.serving import (
    DOC_CHANGE,
    HOSTILE_RUN,
    RUNS,
    basic,
    database_of,
    file_of,
    get,
    hostile_records,
    serving,
    settings_of,
)
from worker.cli import run
from worker.readers import duckdb_file
from worker.record_reader import open_reader
from worker.settings import Settings, load_settings
from worker.settings_sections import ExportSettings, SettingsError
from worker.web import pages, readings
from worker.web.pages import open_pages, parameters_of
from worker.web.render import HEADERS, record_url, run_url

TOKEN = "a-token-that-nobody-guesses"
PAGES = ("/runs", "/spend", f"/run?id={DOC_CHANGE}")


class Elements(html.parser.HTMLParser):
    """The elements of a page, and the text in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words += data

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.found if name == tag]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    url = database_of(tmp_path_factory.mktemp("pages"), "demo", "example")
    with serving(settings_of(url)) as address:
        yield address


def test_the_list_of_runs_says_of_each_what_it_came_to(demo: str) -> None:
    got = get(f"{demo}/runs")
    assert got.status == 200
    row = next(row for row in re.findall(r"<tr>.*?</tr>", got.text, re.DOTALL) if f">{DOC_CHANGE}<" in row)
    words = Elements(row).words.split()
    assert words[:2] == ["doc-change", DOC_CHANGE]
    assert words[2:] == ["completed", "2026-11-03", "09:00:00", "41m", "00s", "8", "1", "–", "84,602", "?"]
    assert "1 open" in got.text


def test_the_bare_address_leads_to_the_list(demo: str) -> None:
    assert "<h1>Runs</h1>" in get(f"{demo}/").text


def test_a_run_of_which_nothing_else_is_known_has_a_page_without_a_chart(tmp_path: Path) -> None:
    with serving(settings_of(file_of(tmp_path, hostile_records()[:1]))) as address:
        got = get(address + run_url(HOSTILE_RUN))
        assert (got.status, "<canvas" in got.text, "<script" in got.text) == (200, False, False)
        assert "Nothing is known of this run yet" in got.text


def test_the_list_is_filtered_by_what_the_address_says(demo: str) -> None:
    got = get(f"{demo}/runs?status=failed&workflow=bug-fix&text=0AC9")
    assert re.search(r"1 of \d+ runs", got.text)
    assert "0ac95d7c-0625-595e-9516-d3c2526a026c" in got.text
    assert DOC_CHANGE not in got.text
    assert '<option value="failed" selected>' in got.text
    assert "No run matches" in get(f"{demo}/runs?text=none-such").text


def test_pages_of_runs_lead_to_each_other_and_keep_the_filter(tmp_path: Path) -> None:
    at = "2026-11-03T10:00:{:02d}Z"
    record = {"schema": "titan.trace/v1", "kind": "run", "workflowName": "w & w", "status": "failed"}
    many = [record | {"id": f"r{number}", "runId": f"r{number}", "at": at.format(number % 60)} for number in range(120)]
    with serving(settings_of(file_of(tmp_path, many))) as address:
        path, seen = "/runs?status=failed&workflow=w+%26+w", set()
        while path:
            elements = Elements(get(address + path).text)
            seen |= {link["href"] for link in elements.named("a") if str(link["href"]).startswith("/run?")}
            path = next((str(link["href"]) for link in elements.named("a") if link.get("rel") == "next"), "")
            assert not path or "w+%26+w" in path
    assert len(seen) == 120


def test_a_run_is_shown_by_a_chart_and_by_tables_that_say_the_same(demo: str) -> None:
    got = get(f"{demo}/run?id={DOC_CHANGE}")
    elements = Elements(got.text)
    chart = next(attributes for attributes in elements.named("div") if attributes.get("id") == "chart")
    assert (chart["tabindex"], chart["role"], bool(chart["aria-label"])) == ("0", "application", True)
    data = json.loads(re.findall(r'id="timeline-data">(.*?)</script>', got.text, re.DOTALL)[0])
    assert [lane["name"] for lane in data["lanes"]] == [
        "load-task",
        "draft",
        "owner-review",
        "open-pr",
        "merge-authorize",
    ]
    for words in ("draft · attempt 1", "harness exited before a result", "21m 18s", "human:owner", "1 retry"):
        assert words in elements.words


def test_every_link_of_a_run_and_of_its_records_leads_to_a_page(demo: str) -> None:
    todo, seen = [f"/run?id={DOC_CHANGE}"], set()
    while todo:
        path = todo.pop()
        if path in seen:
            continue
        seen.add(path)
        got = get(demo + path)
        assert got.status == 200, path
        links = [str(link["href"]) for link in Elements(got.text).named("a")]
        todo += [link for link in links if link.startswith("/record?")]
    kinds = {urllib.parse.parse_qs(path.partition("?")[2]).get("kind", [""])[0] for path in seen}
    assert {"attempt", "call", "gate", "cost", "artifact"} <= kinds


def test_the_page_of_a_call_shows_its_span(demo: str) -> None:
    call = next(
        record
        for line in (RUNS / "demo" / "trace.jsonl").read_text().splitlines()
        if (record := json.loads(line))["kind"] == "call" and record["runId"] == DOC_CHANGE
    )
    words = Elements(get(demo + record_url(DOC_CHANGE, "call", call["id"])).text).words
    for value in (call["id"], call["span"]["sourceId"], str(call["span"]["byteOffset"]), call["span"]["contentHash"]):
        assert value in words


def test_spend_is_summed_up_by_day_and_by_model(demo: str) -> None:
    words = Elements(get(f"{demo}/spend").text).words
    for text in ("By day", "2026-11-03", "By model", "claude-sonnet-4-5-20250929", "total"):
        assert text in words


# -------------------------------------------------------------------------------------------------------------- safety


@pytest.mark.parametrize("path", [*PAGES, "/assets/timeline.js", "/run?id=none", "/record"])
def test_every_answer_says_what_a_browser_must_not_do_with_it(demo: str, path: str) -> None:
    headers = get(demo + path).headers
    assert HEADERS.items() <= headers.items()
    policy = headers["Content-Security-Policy"]
    assert "unsafe" not in policy
    assert "default-src 'none'; script-src 'self'" in policy


@pytest.mark.parametrize("path", PAGES)
def test_no_page_needs_anything_but_this_server_and_none_has_script_or_style_in_it(demo: str, path: str) -> None:
    elements = Elements(get(demo + path).text)
    scripts = [script for script in elements.named("script") if script.get("type") != "application/json"]
    assert [script.get("src") for script in scripts] in ([], ["/assets/timeline.js"])
    assert elements.named("style") == []
    for tag, attributes in elements.found:
        assert not {name for name in attributes if name.startswith("on") or name == "style"}, tag
        for name in ("src", "href", "action"):
            assert str(attributes.get(name, "/")).startswith(("/", "#"))
    for name in ("icon.svg", "pages.css", "timeline.js"):
        text = get(f"{demo}/assets/{name}").text
        assert "//" not in re.sub(r"http://www\.w3\.org/2000/svg|^\s*//.*$", "", text, flags=re.MULTILINE)
        assert "innerHTML" not in text


def test_whatever_a_record_says_is_text(tmp_path: Path) -> None:
    records = hostile_records()
    with serving(settings_of(file_of(tmp_path, records))) as address:
        paths = ["/runs", "/spend", run_url(HOSTILE_RUN)]
        paths += [record_url(HOSTILE_RUN, record["kind"], record["id"]) for record in records]
        paths += [f"/runs?text={urllib.parse.quote(str(records[0]['workflowName']))}"]
        for path in paths:
            got = get(address + path)
            assert got.status == 200, path
            elements = Elements(got.text)
            assert elements.named("img") == []
            assert len(elements.named("script")) <= 2
            assert all(not name.startswith("on") for _, attributes in elements.found for name in attributes)
            assert "\u202e" not in got.text, "nothing turns the direction of text around"
        assert "<script>window.hacked=1</script>" in Elements(get(f"{address}/runs").text).words


def test_what_the_address_says_is_text_too_and_is_not_repeated_in_errors(demo: str) -> None:
    mark = urllib.parse.quote('"><img src=x onerror=alert(1)>')
    for path in (f"/runs?text={mark}&status={mark}", f"/run?id={mark}", f"/record?run={mark}&kind={mark}&id={mark}"):
        assert Elements(get(demo + path).text).named("img") == []


def test_a_worker_with_a_token_shows_its_pages_to_those_who_name_it(tmp_path: Path) -> None:
    with serving(settings_of(file_of(tmp_path, hostile_records()), web_token=TOKEN)) as address:
        for path in ("/runs", "/spend", run_url(HOSTILE_RUN)):
            refused = get(address + path)
            assert (refused.status, refused.headers["WWW-Authenticate"].partition(" ")[0]) == (401, "Basic")
            assert "hacked" not in refused.text
            assert get(address + path, Authorization=basic("wrong")).status == 401
            assert get(address + path, Authorization=basic(TOKEN)).status == 200
            assert get(address + path, Authorization=f"Bearer {TOKEN}").status == 200
            assert get(address + path, Authorization=basic(TOKEN), Host="traces.example").status == 200


def test_a_name_that_some_other_site_lets_resolve_to_this_machine_gets_nothing(demo: str) -> None:
    for path in PAGES:
        got = get(demo + path, Host="evil.example")
        assert got.status == 421
        assert DOC_CHANGE not in got.text


def test_pages_show_what_the_export_lets_out_and_nothing_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("K", "k" * 64)
    config = tmp_path / "c.toml"
    sink = f"duckdb:{tmp_path / 't.duckdb'}"
    config.write_text(f'web_export = "out"\n[[exports]]\nname = "out"\nsink = "{sink}"\nkey_env = "K"\n')
    assert run(["--config", str(config), "project", str(RUNS / "demo"), "--export", "out", "--to", sink]) == 0
    with serving(load_settings(config)) as address:
        page = get(f"{address}/run?id={DOC_CHANGE}").text
        assert "harness exited before a result" not in page, "an error stays where it was made"
        assert 'badge good">redacted' in page
        for path in {link["href"] for link in Elements(page).named("a") if str(link["href"]).startswith("/record?")}:
            assert "harness exited before" not in get(f"{address}{path}").text


# --------------------------------------------------------------------------------------------------- when it cannot be


def test_what_is_not_there_is_said_and_not_repeated(demo: str) -> None:
    for path in (
        "/run?id=none",
        "/run",
        "/record",
        f"/record?run={DOC_CHANGE}&kind=call&id=none",
        "/record?run=a&kind=b&id=c",
    ):
        got = get(demo + path)
        assert got.status == 404, path
        assert "none" not in Elements(got.text).words


def test_a_sink_that_is_not_there_yet_is_said(tmp_path: Path) -> None:
    with serving(settings_of(f"duckdb:{tmp_path / 'none.duckdb'}")) as address:
        got = get(f"{address}/runs")
        assert got.status == 503
        assert "there is no file" in got.text


def test_a_sink_held_by_its_writer_is_waited_for_and_then_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duckdb_file, "BUSY_TIMEOUT_S", 0.3)
    url = database_of(tmp_path, "example")
    with serving(settings_of(url)) as address:
        with duckdb.connect(url.removeprefix("duckdb:")) as writer:
            writer.execute("SELECT 1")
            held = get(f"{address}/runs")
        assert (held.status, "held by a writer" in held.text) == (503, True)
        assert get(f"{address}/runs").status == 200, "once it is let go the same address answers"


def test_a_reading_that_takes_too_long_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readings, "WAIT_S", 0.2)
    go_on = threading.Event()
    settings = settings_of(file_of(tmp_path, hostile_records()))

    class Slow:
        def read(self, *arguments: Any) -> Any:
            go_on.wait(30)
            return open_reader(settings.exports[0].sink).read(*arguments)

    monkeypatch.setattr("worker.web.pages.open_reader", lambda _url: Slow())
    with serving(settings) as address:
        got = get(f"{address}/runs")
        assert (got.status, "still being read" in got.text) == (503, True)
        assert get(f"{address}/assets/pages.css").status == 200, "the event loop is free meanwhile"
        go_on.set()
        monkeypatch.setattr(readings, "WAIT_S", 30)
        assert get(f"{address}/runs").status == 200


def test_more_than_a_page_reads_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readings, "RUN_RECORDS_MAX", 3)
    with serving(settings_of(file_of(tmp_path, hostile_records()))) as address:
        got = get(address + run_url(HOSTILE_RUN))
        assert (got.status, "more records than a page reads" in got.text) == (507, True)


def test_a_failure_of_our_own_says_nothing_of_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    def fail(*_: object) -> None:
        raise KeyError(HOSTILE_RUN)

    monkeypatch.setattr(pages, "timeline", fail)
    with serving(settings_of(file_of(tmp_path, hostile_records()))) as address:
        got = get(address + run_url(HOSTILE_RUN))
    assert (got.status, "cannot be made" in got.text) == (500, True)
    said = capsys.readouterr()
    assert "onerror" not in got.text + said.out + said.err
    assert "KeyError" in said.out + said.err


# ------------------------------------------------------------------------------------------------------------ settings


def test_without_web_export_there_are_no_pages() -> None:
    assert open_pages(Settings()) is None


def test_an_export_that_cannot_be_read_back_has_no_pages() -> None:
    export = ExportSettings(name="out", sink="otlp:http://127.0.0.1:4318", redact=False)
    with pytest.raises(
        SettingsError, match=r"web_export names out, whose sink no page can read .*readable are .*duckdb"
    ):
        open_pages(Settings(web_export="out", web_unredacted=True, exports=(export,)))


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"web_export": "none"}, "exports has no such name"),
        ({"web_export": "open"}, "does not redact"),
        ({"web_unredacted": True, "web_host": "0.0.0.0"}, "for this machine alone"),  # noqa: S104
        (
            {"web_export": "open", "web_unredacted": True, "web_host": "10.0.0.1", "web_token": "t"},
            "for this machine alone",
        ),
        ({"web_export": "safe", "web_host": "10.0.0.1"}, "give web_token"),
    ],
)
def test_settings_that_would_show_records_to_strangers_are_refused(values: dict[str, Any], problem: str) -> None:
    exports = (
        ExportSettings(name="open", sink="duckdb:a", redact=False),
        ExportSettings(name="safe", sink="duckdb:b", key_env="K"),
    )
    with pytest.raises(ValueError, match=problem):
        Settings(exports=exports, **values)


def test_a_redacted_export_may_be_shown_anywhere_to_those_with_the_token() -> None:
    export = ExportSettings(name="safe", sink="duckdb:b", key_env="K")
    assert Settings(exports=(export,), web_export="safe", web_host="10.0.0.1", web_token="t").web_export == "safe"  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("query", "parameters"),
    [
        ("id=a&id=b", {"id": "b"}),
        ("id=%22%3E%E2%80%AE", {"id": '">\u202e'}),
        ("id=%ED%A0%80", {"id": "\ud800"}),
        ("id=%FF", {}),
        (f"id={'x' * 5_000}&page=2", {"page": "2"}),
        ("&".join(f"p{number}=1" for number in range(99)), {}),
    ],
)
def test_the_parameters_of_an_address_are_read_with_limits(query: str, parameters: dict[str, str]) -> None:
    assert parameters_of(query) == parameters
