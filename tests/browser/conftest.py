"""A browser for every test; where there is none the tests are skipped, unless a build has to have it."""

import asyncio
import os
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.browser.chromium import Page, browser, find_chromium

Scene = Callable[[Page], Awaitable[None]]
Browse = Callable[[Scene], None]


@pytest.fixture
def browse(tmp_path: Path) -> Browse:
    """Give a function that plays a scene in a browser of its own, and fails if the browser complained of anything."""
    program = find_chromium()
    if program is None and not os.environ.get("CI"):
        pytest.skip("there is no chromium")
    assert program is not None, "a build has to have chromium"

    async def play(scene: Scene) -> None:
        # A profile that was used still says at which port its browser was.
        profile = Path(tempfile.mkdtemp(dir=tmp_path))
        async with browser(program, profile) as page:
            await page.look()
            await scene(page)
            assert page.complaints == []

    return lambda scene: asyncio.run(play(scene))
