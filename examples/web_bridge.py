"""Messages as server-sent events for a browser: python3 examples/web_bridge.py [PORT]

It needs aiohttp: python3-aiohttp in Debian, or the extra "relay". Open http://127.0.0.1:8080/, or: curl -N http://127.0.0.1:8080/events
Every user of this machine can connect to the port, so the bridge only passes on messages under web/.
"""

import json
import sys

from aiohttp import web

from sbusd.client import AsyncBus

PAGE = "<pre id=log></pre><script>new EventSource('events').onmessage = e => { log.textContent += e.data + '\\n' }</script>"


async def page(_request: web.Request) -> web.Response:
    """Return a page that shows the events."""
    return web.Response(text=PAGE, content_type="text/html")


async def events(request: web.Request) -> web.StreamResponse:
    """Send messages to one browser, on a connection of its own, until it closes."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
    async with AsyncBus.connect() as bus, bus.subscribe("web/") as messages:
        await response.prepare(request)
        async for message in messages:
            data = json.dumps({"key": message.key.decode(), "payload": message.payload.decode(errors="replace")})
            await response.write(f"data: {data}\n\n".encode())
    return response


app = web.Application()
app.add_routes([web.get("/", page), web.get("/events", events)])
web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]) if len(sys.argv) > 1 else 8080)
