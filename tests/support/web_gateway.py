"""The program sbus-web as a process, and browsers made of aiohttp."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import select
import subprocess
from collections.abc import AsyncIterator, Callable
from http.cookies import SimpleCookie
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from tests.support.forked_programs import start_program
from tools.stage import ROOT

SECONDS = 60.0

ENV = {"PATH": os.environ.get("PATH", os.defpath), "PYTHONPATH": str(ROOT), "LANG": "C.UTF-8"}


class Gateway:
    """sbus-web for the bus at *bus*, with more *options*; a context."""

    def __init__(self, folder: Path, bus: str, *options: str) -> None:
        self._log = folder / "sbus-web.log"
        self._arguments = ("--address", bus, *options)
        self._said = b""
        self.url = ""
        """Without a path."""

    def __enter__(self) -> Gateway:
        with self._log.open("ab") as log:
            self.process = start_program("sbus_services.web.main", *self._arguments, env=ENV, stdout=subprocess.PIPE, stderr=log.fileno())
        self._next_link = self.link()
        self.url = self._next_link.partition("/?")[0]
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        status = self.stop()
        if kind is None:
            assert status == 0, self.log
            assert "Traceback" not in self.log, self.log
            assert "internal error" not in self.log, self.log

    def stop(self) -> int:
        """End it by SIGTERM, and return its status; more than once is allowed."""
        self.process.terminate()
        try:
            return self.process.wait(SECONDS)
        finally:
            self.process.kill()
            self.process.wait()
            assert self.process.stdout is not None
            self.process.stdout.close()

    @property
    def log(self) -> str:
        """What it has written to standard error."""
        return self._log.read_text(errors="replace")

    @property
    def host(self) -> str:
        """The address and port."""
        return urlsplit(self.url).netloc

    def link(self) -> str:
        """Return the next link that it prints."""
        pipe = self.process.stdout
        assert pipe is not None
        while True:
            for line in self._said.splitlines(keepends=True):
                if line.strip().startswith(b"http://") and line.endswith(b"\n"):
                    self._said = self._said.partition(line)[2]
                    return line.strip().decode()
            ready, _, _ = select.select([pipe], [], [], SECONDS)
            assert ready, self.log
            part = os.read(pipe.fileno(), 65_536)
            assert part, self.log
            self._said += part

    def take_link(self) -> str:
        """Return the link that is valid now; the caller uses it."""
        return self._next_link

    def link_used(self) -> None:
        """Wait for the link after the one that was used."""
        self._next_link = self.link()

    async def login(self) -> Browser:
        """Use the link in a new browser."""
        async with aiohttp.ClientSession() as http, http.get(self.take_link(), allow_redirects=False) as answer:
            assert answer.status == 303, await answer.text()
            location, cookie = answer.headers["Location"], answer.headers["Set-Cookie"]
        self.link_used()
        assert location.startswith("/#key=")
        return Browser(self.url, cookie, location.removeprefix("/#key="))


class Browser:
    """The secrets of one browser."""

    def __init__(self, url: str, set_cookie: str, key: str) -> None:
        self.url = url
        self.set_cookie = set_cookie
        self.key = key
        ((self.cookie_name, morsel),) = SimpleCookie(set_cookie).items()
        self.cookie = f"{self.cookie_name}={morsel.value}"

    @property
    def headers(self) -> dict[str, str]:
        """The headers of a WebSocket."""
        return {"Cookie": self.cookie, "Origin": self.url, "Sec-WebSocket-Protocol": f"sbus-web, key.{self.key}"}

    async def get(self, path: str, **headers: str) -> tuple[int, str, Any]:
        """Return status, text and headers of a response."""
        async with (
            aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as http,
            http.get(self.url + path, headers={"Cookie": self.cookie, **headers}, allow_redirects=False) as answer,
        ):
            return answer.status, await answer.text(), answer.headers

    @contextlib.asynccontextmanager
    async def session(self) -> AsyncIterator[Page]:
        """Open a session."""
        async with (
            aiohttp.ClientSession() as http,
            http.ws_connect(f"{self.url}/session", headers=self.headers, max_msg_size=0) as socket,
        ):
            yield Page(socket)


class Page:
    """One session, as the page has it."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket
        self.frames: list[dict[str, Any]] = []
        """The frames that were received while others were waited for."""
        self._numbers = itertools.count(1)

    def pause(self) -> None:
        """Stop reading from the socket, as a browser that hangs does."""
        self._transport.pause_reading()

    def resume(self) -> None:
        """Read again."""
        self._transport.resume_reading()

    @property
    def _transport(self) -> asyncio.Transport:
        connection = self.socket._conn
        assert connection is not None
        assert connection.transport is not None
        return connection.transport

    async def receive(self) -> dict[str, Any]:
        """Return the next frame."""
        async with asyncio.timeout(SECONDS):
            message = await self.socket.receive()
        assert message.type == aiohttp.WSMsgType.TEXT, (message, self.socket.close_code)
        frame = json.loads(message.data)
        assert isinstance(frame, dict)
        return frame

    async def wait_for(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Return the first frame that is *wanted*, also of those that were received before."""
        for index, frame in enumerate(self.frames):
            if wanted(frame):
                return self.frames.pop(index)
        while True:
            frame = await self.receive()
            if wanted(frame):
                return frame
            self.frames.append(frame)

    async def next(self, kind: str) -> dict[str, Any]:
        """Return the next frame of a type."""
        return await self.wait_for(lambda frame: frame["type"] == kind)

    async def ask(self, kind: str, **members: object) -> dict[str, Any]:
        """Send a request, and return its response or error."""
        number = next(self._numbers)
        await self.socket.send_json({"type": kind, "id": number, **members})
        return await self.wait_for(lambda frame: frame.get("id") == number)
