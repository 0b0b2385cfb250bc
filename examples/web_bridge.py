"""Messages under web/ for web pages, with aiohttp: python3 examples/web_bridge.py PORT ORIGIN. ORIGIN is the site of the pages."""

import asyncio
import sys

from aiohttp import web

from sbus import AsyncBus


def check_origin(request: web.Request) -> None:
    """Refuse a request that a page of another site makes. All programs of this machine can connect to the port."""
    if request.headers.get("Origin", sys.argv[2]) != sys.argv[2]:
        raise web.HTTPForbidden


async def events(request: web.Request) -> web.WebSocketResponse:
    """Send messages on the WebSocket /events, until the browser closes it or sends something."""

    async def forward() -> None:
        async for message in messages:
            await socket.send_json({"key": message.key, "payload": message.payload.decode(errors="replace")})

    check_origin(request)
    async with AsyncBus.connect() as bus, bus.subscribe("web/") as messages:
        await (socket := web.WebSocketResponse()).prepare(request)
        task = asyncio.create_task(forward())
        await socket.receive()
        task.cancel()
    return socket


async def publish(request: web.Request) -> web.Response:
    """Publish the body of POST /web/KEY, and return the number of recipients."""
    check_origin(request)
    async with AsyncBus.connect() as bus:
        return web.json_response({"recipients": await bus.publish(request.path[1:], await request.read(), receipt=True)})


app = web.Application()
app.add_routes([web.get("/events", events), web.post("/web/{key:.*}", publish)])
web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]))
