"""The pages in a browser: no complaint, all in reach of keys, every text a text, ten thousand calls as light as ten."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.chromium import Page
from tests.browser.conftest import Browse
from tests.projections.reports.cost_records import call, cost, delta
from tests.worker.web.serving import (
    DOC_CHANGE,
    HOSTILE_RUN,
    ROOT,
    database_of,
    file_of,
    hostile_records,
    serving,
    settings_of,
)
from tests.worker.web.test_letters import Broker, letter
from worker.cli import run
from worker.dead_letters.tail import LetterTail
from worker.web.letters import Letters
from worker.web.render import letters_url, record_url, run_url

TABS_MAX = 60
CALLS = 10_000
RUN_PAGE = run_url(DOC_CHANGE)
LETTERS_PAGE = letters_url(reason="invalid_json", page=2)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    settings = settings_of(database_of(tmp_path_factory.mktemp("browser"), "demo", "example"))
    letters = tuple(letter(number, ("runs", "gates")[number % 2]) for number in range(120))
    broker = Broker(LetterTail(letters, 10_000, 1_000_000))
    with serving(settings, letters=Letters(settings, broker.read)) as address:
        yield address


async def chart(page: Page, name: str) -> str:
    """Give what the chart says of itself."""
    await page.drawn()
    return str(await page.run(f"document.getElementById('chart').dataset.{name}"))


# Of a copy, because a canvas that is read back is drawn in another way from then on.
PIXELS = """(() => { const drawn = document.getElementById('chart-canvas'), copy = document.createElement('canvas');
    copy.width = drawn.width; copy.height = drawn.height;
    const pen = copy.getContext('2d', { willReadFrequently: true });
    pen.drawImage(drawn, 0, 0);
    return pen.getImageData(0, 0, copy.width, copy.height).data; })()"""


async def colours_drawn(page: Page) -> int:
    """Count the colours on the canvas, which a blank one has one of."""
    await page.drawn()
    count: int = await page.run(f"new Set(new Uint32Array({PIXELS}.buffer)).size")
    return count


async def tab_to(page: Page, element_id: str) -> None:
    """Press Tab until an element has the focus."""
    for _ in range(TABS_MAX):
        await page.press("Tab")
        if await page.run("document.activeElement.id") == element_id:
            return
    pytest.fail(f"no way to {element_id} by Tab")


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (390, False)], ids=["wide", "dark", "narrow"])
def test_every_page_fits_and_the_browser_complains_of_none(browse: Browse, demo: str, width: int, dark: bool) -> None:
    async def scene(page: Page) -> None:
        await page.look(width=width, dark=dark)
        for path in ("/runs", "/runs?status=failed", RUN_PAGE, "/spend", LETTERS_PAGE, run_url("run-7")):
            await page.open(demo + path)
            assert await page.run("document.documentElement.scrollWidth <= window.innerWidth"), path
            background = await page.run("getComputedStyle(document.body).backgroundColor")
            assert (background == "rgb(17, 21, 28)") is dark
        await page.open(demo + RUN_PAGE)
        assert await colours_drawn(page) > 10
        assert len(await page.screenshot()) > 20_000

    browse(scene)


def test_the_chart_is_drawn_in_the_colours_that_are_preferred_now(browse: Browse, demo: str) -> None:
    async def scene(page: Page) -> None:
        corner = f"[...{PIXELS}.slice(0, 3)]"
        await page.open(demo + RUN_PAGE)
        await page.drawn()
        light = await page.run(corner)
        await page.look(dark=True)
        await page.drawn()
        assert (light, await page.run(corner)) == ([255, 255, 255], [24, 29, 39])

    browse(scene)


def test_a_run_is_walked_through_by_keys_down_to_a_record_and_back(browse: Browse, demo: str) -> None:
    async def scene(page: Page) -> None:
        await page.open(demo + RUN_PAGE)
        await tab_to(page, "chart")
        await page.press("ArrowRight")
        assert await chart(page, "selected") == "load-task: succeeded"
        await page.press("ArrowDown")
        assert await chart(page, "selected") == "draft: failed"
        assert "harness exited before a result" in await page.run("document.getElementById('chart-detail').textContent")
        await page.press(".")
        assert await chart(page, "selected") not in ("draft: failed", "")
        await page.press("ArrowUp")
        assert await chart(page, "selected") == "load-task: succeeded"
        await page.press("End")
        assert "gate: allow" in await chart(page, "selected")
        await page.press("Enter")
        await page.loaded()
        assert "kind=gate" in await page.run("location.search")
        assert "F5" in await page.run("document.body.textContent")

    browse(scene)


def test_keys_zoom_move_and_let_go(browse: Browse, demo: str) -> None:
    async def scene(page: Page) -> None:
        await page.open(demo + RUN_PAGE)
        await tab_to(page, "chart")
        whole = float(await chart(page, "to"))
        await page.press("+")
        start, end = float(await chart(page, "from")), float(await chart(page, "to"))
        assert end - start == pytest.approx(0.6 * whole)
        await page.press("ArrowRight", shift=True)
        assert float(await chart(page, "from")) > start
        await page.press("0")
        assert (float(await chart(page, "from")), float(await chart(page, "to"))) == (0, whole)
        await page.press("-")
        assert float(await chart(page, "to")) == whole, "there is nothing beyond the run"
        await page.press("ArrowRight")
        await page.press("Escape")
        assert await chart(page, "selected") == ""
        assert await page.run("document.getElementById('chart-detail').childElementCount") == 0

    browse(scene)


def test_the_pointer_shows_what_it_is_on_and_a_click_keeps_it(browse: Browse, demo: str) -> None:
    async def scene(page: Page) -> None:
        await page.open(demo + RUN_PAGE)
        await page.drawn()
        await page.run("document.getElementById('chart').scrollIntoView()")
        edge = await page.run(
            "(edge => [edge.left, edge.top, edge.width])"
            "(document.getElementById('chart-canvas').getBoundingClientRect())"
        )
        # Half-way of 41 minutes the owner's review waits, in the third lane (one row, two rows, then it).
        place = {"x": edge[0] + edge[2] / 2, "y": edge[1] + 28 + 40 + 66 + 20}
        await page.call("Input.dispatchMouseEvent", type="mouseMoved", **place)
        await page.drawn()
        tip = await page.run("document.getElementById('chart-tip').textContent")
        assert "human gate: revise" in tip
        assert "Waited: 21m 18s" in tip
        for kind in ("mousePressed", "mouseReleased"):
            await page.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **place)
        assert await chart(page, "selected") == "human gate: revise"
        await page.call("Input.dispatchMouseEvent", type="mouseWheel", deltaX=0, deltaY=-200, modifiers=2, **place)
        assert float(await chart(page, "from")) > 0, "Ctrl and the wheel zoom"

    browse(scene)


def test_runs_are_filtered_by_typing(browse: Browse, demo: str) -> None:
    async def scene(page: Page) -> None:
        await page.open(f"{demo}/runs")
        await page.run("document.querySelector('input[name=text]').focus()")
        await page.call("Input.insertText", text="release")
        await page.press("Enter")
        await page.loaded()
        assert await page.run("document.querySelectorAll('tbody tr').length") == 1

    browse(scene)


def test_whatever_can_be_used_has_a_name(browse: Browse, demo: str) -> None:
    async def scene(page: Page) -> None:
        await page.call("Accessibility.enable")
        for path in ("/runs", RUN_PAGE, "/spend", LETTERS_PAGE):
            await page.open(demo + path)
            nodes = (await page.call("Accessibility.getFullAXTree"))["nodes"]
            usable = [
                node for node in nodes if _role(node) in ("button", "link", "combobox", "searchbox", "application")
            ]
            assert usable
            assert [node for node in usable if not node.get("name", {}).get("value")] == [], path

    browse(scene)


def _role(node: dict[str, Any]) -> str:
    role: str = node.get("role", {}).get("value", "")
    return role


def test_nothing_moves_for_those_who_want_less_motion(browse: Browse, demo: str) -> None:
    async def scene(page: Page) -> None:
        await page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-reduced-motion", "value": "reduce"}])
        await page.open(demo + RUN_PAGE)
        moving = (
            "[...document.querySelectorAll('*')].filter(e => getComputedStyle(e).transitionDuration !== '0s').length"
        )
        assert await page.run(moving) == 0

    browse(scene)


def test_hostile_text_is_shown_and_never_run(browse: Browse, tmp_path: Path) -> None:
    records = hostile_records()

    async def scene(page: Page) -> None:
        paths = ["/runs", "/spend", *(record_url(HOSTILE_RUN, record["kind"], record["id"]) for record in records)]
        for path in [*paths, run_url(HOSTILE_RUN)]:
            await page.open(address + path)
            assert await page.run("typeof window.hacked") == "undefined", path
            assert await page.run("document.images.length") == 0, path
        assert "<script>window.hacked=1</script>" in await page.run("document.querySelector('h1').textContent")
        await tab_to(page, "chart")
        for key in ("ArrowRight", ".", "ArrowRight"):
            await page.press(key)
            assert "window.hacked" in await page.run("document.getElementById('chart-detail').textContent")
        assert await page.run("typeof window.hacked") == "undefined"
        assert await page.run("document.images.length") == 0

    with serving(settings_of(file_of(tmp_path, records))) as address:
        browse(scene)


def many_calls(count: int) -> list[dict[str, Any]]:
    """Give a run with one attempt, and so many calls and costs in it."""
    at = "2026-11-03T{:02d}:{:02d}:{:02d}Z"
    times = [at.format(9 + second // 3600, second // 60 % 60, second % 60) for second in range(count)]
    envelope = {"schema": "titan.trace/v1", "runId": "r", "at": times[0]}
    attempt = {"stepId": "draft", "iteration": 0, "attempt": 0, "stepKind": "dispatch", "outcome": "succeeded"}
    return [
        {**envelope, "kind": "run", "id": "r", "workflowName": "long", "status": "completed", "completedAt": times[-1]},
        {**envelope, "kind": "attempt", "id": "workflow:r:draft:0:0", **attempt, "completedAt": times[-1]},
        *(call(f"c{n}", at=time, step="draft", is_error=n % 997 == 0) for n, time in enumerate(times)),
        *(cost(delta(f"x{n}", 0.01, input=10, output=1), at=time, step="draft") for n, time in enumerate(times)),
    ]


def test_ten_thousand_calls_are_drawn_without_an_element_of_their_own(browse: Browse, tmp_path: Path) -> None:
    seen: dict[int, int] = {}

    async def scene(page: Page) -> None:
        await page.open(address + run_url("r"))
        assert int(await chart(page, "calls")) == count
        await tab_to(page, "chart")
        for key in ("ArrowRight", "+", "+", "+", ".", ".", "Escape", "0"):
            await page.press(key)
        await page.drawn()
        assert await colours_drawn(page) > 10
        seen[count] = await page.run("document.querySelectorAll('*').length")

    for count in (10, CALLS):
        directory = tmp_path / str(count)
        directory.mkdir()
        with serving(settings_of(file_of(directory, many_calls(count)))) as address:
            browse(scene)
    assert seen[10] == seen[CALLS] < 250


def test_a_report_works_as_a_file_by_itself(browse: Browse, tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    assert run(["report", "run-7", "--html", str(target), "--from", str(ROOT / "fixtures" / "runs" / "example")]) == 0

    async def scene(page: Page) -> None:
        await page.open(target.as_uri())
        assert await colours_drawn(page) > 10
        await tab_to(page, "chart")
        await page.press("ArrowRight")
        assert await chart(page, "selected") == "load: succeeded"
        assert await page.run("document.querySelectorAll('a[href]:not([href^=\"#\"])').length") == 0

    browse(scene)
