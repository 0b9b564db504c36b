"""Chromium without a window, driven over its DevTools protocol: what it shows, what it complains of, what keys do."""

import asyncio
import base64
import itertools
import json
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import aiohttp

PROGRAMS: Final = ("chromium", "chromium-browser", "google-chrome")
TIMEOUT_S: Final = 60.0
_ANSWER_BYTES_MAX: Final = 256 * 1024 * 1024

KEY_CODES: Final = {
    "ArrowLeft": 37,
    "ArrowUp": 38,
    "ArrowRight": 39,
    "ArrowDown": 40,
    "Enter": 13,
    "Escape": 27,
    "Tab": 9,
}


def find_chromium() -> str | None:
    """Give the path of a browser, if there is one."""
    return next((path for program in PROGRAMS if (path := shutil.which(program))), None)


class Page:
    """One tab."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._loaded = asyncio.Event()
        self.complaints: list[str] = []

    async def listen(self) -> None:
        """Take what the browser says until it says no more."""
        async for message in self._socket:
            said = json.loads(message.data)
            if "id" in said:
                waiting = self._waiting.pop(said["id"])
                if not waiting.done():
                    waiting.set_result(said)
            else:
                self._take(said["method"], said["params"])

    def _take(self, method: str, params: dict[str, Any]) -> None:
        if method == "Page.loadEventFired":
            self._loaded.set()
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(params["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.complaints.append(json.dumps(params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.complaints.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")

    async def call(self, method: str, **params: Any) -> Any:
        """Call the protocol."""
        number = next(self._ids)
        self._waiting[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": params})
        answer = await asyncio.wait_for(self._waiting[number], TIMEOUT_S)
        assert "error" not in answer, answer["error"]
        return answer["result"]

    async def open(self, address: str) -> None:
        """Go to an address and wait until it is loaded."""
        self._loaded.clear()
        await self.call("Page.navigate", url=address)
        await asyncio.wait_for(self._loaded.wait(), TIMEOUT_S)

    async def loaded(self) -> None:
        """Wait for the load that something just did has begun."""
        await asyncio.wait_for(self._loaded.wait(), TIMEOUT_S)

    async def leave_by(self, script: str) -> None:
        """Do something that leads to another page, and wait until that is loaded."""
        self._loaded.clear()
        await self.run(script)
        await self.loaded()

    async def run(self, script: str) -> Any:
        """Give what an expression comes to."""
        answer = await self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    async def press(self, key: str, *, shift: bool = False) -> None:
        """Press a key and let the page draw."""
        self._loaded.clear()
        code = KEY_CODES.get(key, ord(key[0].upper()))
        event: dict[str, Any] = {"key": key, "windowsVirtualKeyCode": code, "modifiers": 8 if shift else 0}
        text = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
        await self.call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", text=text, **event)
        await self.call("Input.dispatchKeyEvent", type="keyUp", **event)

    async def drawn(self) -> None:
        """Wait for two frames: what was asked for before is then on the screen."""
        await self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))")

    async def look(self, *, width: int = 1280, height: int = 900, dark: bool = False, ratio: float = 1) -> None:
        """Set the size of the window and the colours that are preferred."""
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=ratio, mobile=False
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])

    async def screenshot(self, *, whole: bool = True) -> bytes:
        """Give what is to be seen as a PNG file."""
        await self.drawn()
        shot = await self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        return base64.b64decode(shot["data"])


@asynccontextmanager
async def browser(program: str, profile: Path) -> AsyncIterator[Page]:
    """Start a browser with a profile of its own, and give its one tab."""
    process = subprocess.Popen(  # noqa: ASYNC220  (it is started once and not waited for)
        [
            program,
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--no-first-run",
            "--hide-scrollbars",
            "--remote-debugging-port=0",
            f"--user-data-dir={profile}",
            "about:blank",
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        async with aiohttp.ClientSession() as session:
            address = await _tab(session, profile / "DevToolsActivePort")
            async with session.ws_connect(address, max_msg_size=_ANSWER_BYTES_MAX) as socket:
                page = Page(socket)
                listening = asyncio.create_task(page.listen())
                for domain in ("Page", "Runtime", "Log"):
                    await page.call(f"{domain}.enable")
                yield page
                listening.cancel()
                with suppress(asyncio.CancelledError):
                    await listening
    finally:
        process.terminate()
        await asyncio.to_thread(process.wait, TIMEOUT_S)


async def _tab(session: aiohttp.ClientSession, port_file: Path) -> str:
    """Wait for the browser to say its port, and give the address of its tab."""
    async with asyncio.timeout(TIMEOUT_S):
        while not (port_file.exists() and port_file.read_text().count("\n")):  # noqa: ASYNC240
            await asyncio.sleep(0.05)
        port = port_file.read_text().splitlines()[0]  # noqa: ASYNC240
        while True:
            async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                tabs = [tab for tab in await answer.json() if tab["type"] == "page"]
            if tabs:
                found: str = tabs[0]["webSocketDebuggerUrl"]
                return found
            await asyncio.sleep(0.05)
