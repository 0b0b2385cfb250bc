"""The bus in a browser: a session of sbus-web, as its page has it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
from collections.abc import AsyncIterator, Callable
from http.cookies import SimpleCookie
from typing import Any

import aiohttp

from tools.demo.activation import ActivatedBus
from tools.demo.narrator import DemoError, Narrator
from tools.demo.programs import TIMEOUT_SECONDS, Programs
from tools.demo.users import DemoUser


class WebPageDemo:
    """Shows sbus-web, which *programs* run as root."""

    def __init__(self, bus: ActivatedBus, programs: Programs, narrator: Narrator) -> None:
        self._bus = bus
        self._programs = programs
        self._narrator = narrator

    def show(self, user: DemoUser) -> None:
        """Log in, receive a message of *user* in a session, and see the connections."""
        self._narrator.step("The bus in a browser: a page on a loopback address, for the user who has started it")
        with self._programs.running(None, "sbus-web", "--read-only", "--allow", "weather/") as gateway:
            link = _read_link(gateway)
            self._narrator.answer(f"{link}\n")
            asyncio.run(self._use_link(link, user))

    async def _use_link(self, link: str, user: DemoUser) -> None:
        """Do what a browser with the page does."""
        url = link.partition("/?")[0]
        async with _session(url, link) as page:
            await page.result("subscribe", pattern="weather/")
            rejected = await page.result("subscribe", pattern="journal/")
            _check(rejected["type"] == "error", f"the pattern is not in --allow: {rejected}")
            await asyncio.to_thread(self._programs.run, user, "sbusctl", "pub", "weather/oslo/snow", "20 cm")
            message = await page.next(lambda frame: frame["type"] == "message")
            _check(message["key"] == "weather/oslo/snow", f"unexpected message: {message}")
            _check(message["payload"] == "20 cm", f"unexpected message: {message}")
            _check(message["sender"]["uid"] == user.uid, f"the message is from user {user.uid}: {message}")
            self._narrator.remark(
                f"the page receives {message['key']} {message['payload']!r} from user {user.uid}, as the bus has verified"
            )
            listing = await page.result("connections")
            _check(any(each.get("name") == "sbus-web" for each in listing["connections"]), f"the session should be listed: {listing}")
            self._narrator.remark(f"the page lists {len(listing['connections'])} connections; the link works once")
        async with aiohttp.ClientSession() as http, http.get(link, allow_redirects=False) as answer:
            _check(answer.status == 403, f"the used link should be rejected, but has the status {answer.status}")


class _Page:
    """A session: requests with their responses, and what arrives in between."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._frames: list[dict[str, Any]] = []
        self._number = 0

    async def result(self, kind: str, **members: object) -> dict[str, Any]:
        """Send a request, and return its response."""
        self._number += 1
        number = self._number
        await self._socket.send_json({"type": kind, "id": number, **members})
        return await self.next(lambda frame: frame.get("id") == number)

    async def next(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Return the first frame that is *wanted*, and keep the others."""
        while not (found := [frame for frame in self._frames if wanted(frame)]):
            async with asyncio.timeout(TIMEOUT_SECONDS):
                message = await self._socket.receive()
            if message.type is not aiohttp.WSMsgType.TEXT:
                raise DemoError(f"the session ended with the code {self._socket.close_code}")
            self._frames.append(json.loads(message.data))
        self._frames.remove(found[0])
        return found[0]


@contextlib.asynccontextmanager
async def _session(url: str, link: str) -> AsyncIterator[_Page]:
    """Use *link*, and open a session."""
    async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as http:
        async with http.get(link, allow_redirects=False) as answer:
            _check(answer.status == 303, f"the link has the status {answer.status}")
            key = answer.headers["Location"].partition("#key=")[2]
            ((name, morsel),) = SimpleCookie(answer.headers["Set-Cookie"]).items()
        headers = {"Cookie": f"{name}={morsel.value}", "Origin": url, "Sec-WebSocket-Protocol": f"sbus-web, key.{key}"}
        async with http.ws_connect(f"{url}/session", headers=headers) as socket:
            yield _Page(socket)


def _read_link(gateway: subprocess.Popen[str]) -> str:
    """Return the link that the program prints. Raises DemoError if it ends before."""
    for line in gateway.stdout or ():
        if line.strip().startswith("http://"):
            return line.strip()
    raise DemoError(f"sbus-web ended: {gateway.stderr.read() if gateway.stderr else ''}")


def _check(happened: bool, reason: str) -> None:
    """Fail the demonstration with *reason* unless the announced result *happened*."""
    if not happened:
        raise DemoError(reason)
