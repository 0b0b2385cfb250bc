"""A headless Chromium, controlled by the DevTools protocol: the content, the errors and the network requests of a page."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import os
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Literal

import aiohttp

_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--remote-debugging-port=0",
)
_SECONDS = 120.0
"""For any one thing: a second on a machine of its own, more on a busy one."""


class Page:
    """One page; ``complaints`` has the errors of its console and scripts, ``requests`` its network requests."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, context: str = "") -> None:
        self.context = context
        """The browser context of the page, for commands about the whole browser."""
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self._socket = socket
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._reader = asyncio.create_task(self._read())

    async def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Return the answer to one command of the protocol."""
        number = next(self._numbers)
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        async with asyncio.timeout(_SECONDS):
            return await answer

    async def evaluate(self, expression: str) -> Any:
        """Return the value of an expression in the page."""
        answer = await self.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    async def wait_for(self, expression: str) -> None:
        """Wait until an expression in the page is true."""
        deadline = time.monotonic() + _SECONDS
        while not await self.evaluate(f"!!({expression})"):
            assert time.monotonic() < deadline, (expression, self.complaints, await self.evaluate("document.body.innerText.slice(0, 1000)"))
            await asyncio.sleep(0.05)

    async def open(
        self, file: Path, *, width: int = 1280, height: int = 900, is_dark: bool = False, mark: Literal["drawn", "settled"] = "settled"
    ) -> None:
        """Open a file at a size, and wait until what is in sight is drawn, or by ``settled`` all charts."""
        await self.resize(width, height, is_dark=is_dark)
        await self.ask("Page.navigate", url=file.resolve().as_uri())
        await self.wait_for(f"location.href === {file.resolve().as_uri()!r} && document.documentElement?.dataset.{mark}")

    async def resize(self, width: int = 1280, height: int = 900, *, is_dark: bool = False, media: str = "") -> None:
        """Set the size of the window, the colours that the user prefers, and the medium, such as ``print``."""
        await self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        await self.ask("Emulation.setEmulatedMedia", media=media, features=[scheme])

    async def press(self, key: str, code: int) -> None:
        """Press and release a key on the keyboard, with its name and its Windows key code."""
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            await self.ask(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **(text if kind == "keyDown" else {})
            )

    async def type(self, text: str) -> None:
        """Insert text where the focus is."""
        await self.ask("Input.insertText", text=text)

    async def screenshot(self, file: Path) -> None:
        """Write what the whole page looks like to a PNG file."""
        size = (await self.ask("Page.getLayoutMetrics"))["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        shot = await self.ask("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        file.write_bytes(base64.b64decode(shot["data"]))

    async def end(self) -> None:
        """Stop listening."""
        self._reader.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._reader

    async def _read(self) -> None:
        """Sort what the browser says."""
        async for message in self._socket:
            said = message.json()
            if (waiting := self._answers.pop(said.get("id", 0), None)) is not None:
                waiting.set_result(said.get("result", said))
            match said.get("method"):
                case "Runtime.exceptionThrown":
                    self.complaints.append(str(said["params"]["exceptionDetails"]))
                case "Runtime.consoleAPICalled" if said["params"]["type"] in {"error", "warning", "assert"}:
                    self.complaints.append(str(said["params"]["args"]))
                case "Log.entryAdded" if said["params"]["entry"]["level"] in {"error", "warning"}:
                    self.complaints.append(said["params"]["entry"]["text"])
                case "Network.requestWillBeSent":
                    self.requests.append(said["params"]["request"]["url"])


class Chromium:
    """A running *program*, a Chromium, with a profile of its own in *folder*; a context."""

    def __init__(self, program: str, folder: Path) -> None:
        profile = folder / "profile"
        with (folder / "chromium.log").open("wb") as log:
            command = [program, *_FLAGS, f"--user-data-dir={profile}", "about:blank"]
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, "HOME": str(folder)}
            )
        self._port_file = profile / "DevToolsActivePort"

    def __enter__(self) -> Chromium:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.terminate()
        self._process.wait(60)

    @contextlib.asynccontextmanager
    async def page(self) -> AsyncIterator[Page]:
        """Open a page that shares neither cookies nor storage with the others; it is closed with the context."""
        url = await self._url()
        async with aiohttp.ClientSession() as session, session.ws_connect(url, max_msg_size=0) as control_socket:
            control = Page(control_socket)
            store = await control.ask("Target.createBrowserContext")
            target = await control.ask("Target.createTarget", url="about:blank", **store)
            address = f"{url.partition('/devtools/')[0]}/devtools/page/{target['targetId']}"
            async with session.ws_connect(address, max_msg_size=0) as socket:
                page = Page(socket, store["browserContextId"])
                for domain in ("Runtime", "Log", "Network", "Page"):
                    await page.ask(f"{domain}.enable")
                yield page
                await page.end()
            await control.ask("Target.disposeBrowserContext", **store)
            await control.end()

    async def _url(self) -> str:
        """Return the address of the browser itself, which it writes down when it is ready."""
        deadline = time.monotonic() + _SECONDS
        while True:
            lines = self._port_file.read_text().splitlines() if self._port_file.exists() else []
            if len(lines) >= 2:
                return f"ws://127.0.0.1:{lines[0]}{lines[1]}"
            assert self._process.poll() is None
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)


class OpenPage:
    """A page of a file that several tests look at, each of which leaves it as it was; a context. To draw it takes seconds."""

    def __init__(self, chromium: Chromium, file: Path, **options: Any) -> None:
        """*options* are those of :meth:`Page.open`."""
        self._chromium = chromium
        self._file = file
        self._options = options
        self._runner = asyncio.Runner()
        self._stack = contextlib.AsyncExitStack()

    def __enter__(self) -> OpenPage:
        self._page = self._runner.run(self._open())
        return self

    def __exit__(self, *error: object) -> None:
        self._runner.run(self._stack.aclose())
        self._runner.close()

    def visit(self, look: Callable[[Page], Awaitable[None]]) -> None:
        """*look* at the page, which has complained of nothing and asked for nothing but itself."""

        async def run() -> None:
            await look(self._page)

        self._runner.run(run())
        assert self._page.complaints == []
        assert set(self._page.requests) == {self._file.as_uri()}

    async def _open(self) -> Page:
        page = await self._stack.enter_async_context(self._chromium.page())
        await page.open(self._file, **self._options)
        return page
