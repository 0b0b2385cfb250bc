"""Use the link of sbus-web in the file $1: subscribe, publish, and print the user, the message and its sender."""

from __future__ import annotations

import asyncio
import http.cookies
import json
import sys
from pathlib import Path

import aiohttp


async def main(link: str) -> None:
    """Run one session."""
    url = link.partition("/?")[0]
    async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as http_client:
        async with http_client.get(link, allow_redirects=False) as answer:
            key = answer.headers["Location"].partition("=")[2]
            ((name, morsel),) = http.cookies.SimpleCookie(answer.headers["Set-Cookie"]).items()
        headers = {"Cookie": f"{name}={morsel.value}", "Origin": url, "Sec-WebSocket-Protocol": f"sbus-web, key.{key}"}
        async with http_client.ws_connect(f"{url}/session", headers=headers) as socket:
            await socket.send_json({"type": "subscribe", "id": 1, "pattern": "web/"})
            await socket.send_json({"type": "publish", "id": 2, "key": "web/x", "payload": "hello"})
            await socket.send_json({"type": "connections", "id": 3})
            async for message in socket:
                frame = json.loads(message.data)
                if frame["type"] == "hello":
                    print(frame["user"])
                elif frame["type"] == "message":
                    print(frame["payload"], frame["sender"]["uid"])
                elif frame.get("id") == 3:
                    print(*sorted(frame["users"].values()), flush=True)
                    return
                elif frame["type"] == "error":
                    print(frame["error"], flush=True)
                    return


asyncio.run(main(Path(sys.argv[1]).read_text().strip()))
