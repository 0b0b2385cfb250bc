"""Calls between two hosts, compared with their floors: the same through plain Redis lists, and through plain HTTP without a backend.

    python -m tests.bench.hosts [SECONDS]

A round trip is one request after another. The rate is with 32 under way. Every Redis writes to the disk before it answers.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import redis.asyncio
from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.support.relays import Host, answer_to, pair, request

UNDER_WAY = 32

Call = Callable[[int], Awaitable[None]]


async def measure(call: Call, seconds: float) -> tuple[float, float]:
    """Return the median round trip in seconds, and calls per second with many under way."""
    trips = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        began = time.perf_counter()
        await call(0)
        trips.append(time.perf_counter() - began)
    done = 0
    began = time.perf_counter()

    async def repeat(lane: int) -> None:
        nonlocal done
        while time.perf_counter() < began + seconds:
            await call(lane)
            done += 1

    await asyncio.gather(*(repeat(lane) for lane in range(UNDER_WAY)))
    return statistics.median(trips), done / (time.perf_counter() - began)


class Responder(threading.Thread):
    """Responds to the requests in a list of a host's Redis until it is stopped."""

    def __init__(self, host: Host, queue: str) -> None:
        super().__init__(daemon=True)
        self._client = host.server.client()
        self._queue = queue
        self.ended = threading.Event()

    def run(self) -> None:
        """Answer."""
        while not self.ended.is_set():
            found = self._client.blpop([self._queue], 1)
            if found is not None:
                asked = json.loads(found[1])
                self._client.rpush(asked["ret"], json.dumps(answer_to(asked, b"")))


async def through_lists(host: Host, queue: str, twin: int, seconds: float) -> tuple[float, float]:
    """Measure calls that are pushed into *queue* of *host*; the answers come in lists of its own."""
    pool = redis.asyncio.ConnectionPool.from_url(f"unix://{host.server.path}")
    client: Any = redis.asyncio.Redis(connection_pool=pool)

    async def call(lane: int) -> None:
        ret = f"lane-{lane}"
        await client.rpush(queue, json.dumps(request("bench", twin, ret=ret, src=twin)))
        found = await client.blpop([ret], 30)
        if found is None or json.loads(found[1])["err"]:
            raise RuntimeError(f"no answer: {found}")

    try:
        return await measure(call, seconds)
    finally:
        await client.aclose()
        await pool.disconnect()


async def through_http(seconds: float) -> tuple[float, float]:
    """Measure two posts of HTTP, which is what a call needs between hosts."""

    async def taken(message: web.Request) -> web.Response:
        await message.read()
        return web.json_response({"status": "accepted"})

    application = web.Application()
    application.router.add_post("/", taken)
    body = json.dumps(request("bench", 1002)).encode()
    async with TestServer(application) as server, aiohttp.ClientSession() as session:

        async def call(_lane: int) -> None:
            for _ in range(2):
                async with session.post(server.make_url("/"), data=body) as response:
                    response.raise_for_status()
                    await response.read()

        return await measure(call, seconds)


def run(seconds: float) -> None:
    """Measure all, and print it."""
    folder = Path(tempfile.mkdtemp(prefix="sbus-bench-"))
    hosts = pair(folder, 1001, 1002, settings="queue_messages = 100000\npeer_memory = 10000000\n")
    answerers = [Responder(hosts[1], "msgbus.bench"), Responder(hosts[0], "plain")]
    try:
        for answerer in answerers:
            answerer.start()
        lists = asyncio.run(through_lists(hosts[0], "plain", 1001, seconds))
        http = asyncio.run(through_http(seconds))
        relayed = asyncio.run(through_lists(hosts[0], "msgbus.system.local", 1002, seconds))
    finally:
        for answerer in answerers:
            answerer.ended.set()
            answerer.join(5)
        for host in hosts:
            host.close()
        shutil.rmtree(folder)
    for name, (trip, rate) in {"plain Redis lists": lists, "plain HTTP, twice": http, "between two hosts": relayed}.items():
        print(f"{name:20}  round trip {trip * 1e3:7.2f} ms   {rate:8.0f} calls/s")
    for name, floor in (("plain Redis lists", lists), ("plain HTTP, twice", http)):
        print(f"compared with {name}: round trip x {relayed[0] / floor[0]:.1f}, rate x {relayed[1] / floor[1]:.3f}")


if __name__ == "__main__":
    run(float(sys.argv[1]) if len(sys.argv) > 1 else 5.0)
