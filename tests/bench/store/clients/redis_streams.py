"""Streams and consumer groups of Redis, by redis-py with hiredis. Last values are streams of one entry."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import Any

import redis.asyncio

from tests.bench.store.clients.contract import JOBS, LOG, STATE, TIMER_SECONDS

GROUP = "workers"

POLL_SECONDS = 0.05
"""Interval of XAUTOCLAIM, which does not wait for a job whose worker has become silent."""

PAGE = 1_000


class RedisStreams:
    """See ``contract.Client``."""

    async def connect(self, address: str) -> None:
        """Connect."""
        self._name = f"{os.getpid()}"
        self._server: Any = redis.asyncio.Redis(unix_socket_path=address, protocol=2)
        await self._server.ping()

    async def prepare(self) -> None:
        """Create the group, and with it the stream of jobs."""
        await self._server.xgroup_create(JOBS, GROUP, id="0", mkstream=True)

    async def close(self) -> None:
        """Close the connection."""
        await self._server.aclose()

    async def put(self, payload: bytes) -> None:
        """Add one."""
        await self._server.xadd(LOG, {"d": payload})

    async def put_many(self, payloads: Sequence[bytes], stream: str) -> None:
        """Add many with one pipeline."""
        pipeline = self._server.pipeline(transaction=False)
        for payload in payloads:
            pipeline.xadd(stream, {"d": payload})
        await pipeline.execute()

    async def set_value(self, payload: bytes) -> None:
        """Keep one entry, and publish it."""
        pipeline = self._server.pipeline(transaction=False)
        pipeline.xadd(STATE, {"d": payload}, maxlen=1, approximate=False)
        pipeline.publish(STATE, payload)
        await pipeline.execute()

    async def late_value(self) -> bytes:
        """Subscribe, and then read the entry: in the other order a message between both is lost."""
        self._values = self._server.pubsub()
        await self._values.subscribe(STATE)
        await self._values.get_message(timeout=None)
        ((_, fields),) = await self._server.xrevrange(STATE, count=1)
        payload: bytes = fields[b"d"]
        return payload

    async def finish_jobs(self, count: int) -> int:
        """Read as a consumer; acknowledge and delete, as a work queue does."""
        found = await self._server.xreadgroup(GROUP, self._name, {JOBS: ">"}, count=count)
        if not found:
            return 0
        numbers = [number for number, _ in found[0][1]]
        pipeline = self._server.pipeline(transaction=False)
        pipeline.xack(JOBS, GROUP, *numbers)
        pipeline.xdel(JOBS, *numbers)
        await pipeline.execute()
        return len(numbers)

    async def take_job(self) -> bytes:
        """Take a new job, or claim one whose worker has been silent for TIMER_SECONDS."""
        while True:
            found = await self._server.xreadgroup(GROUP, self._name, {JOBS: ">"}, count=1)
            if found:
                entries = found[0][1]
            else:
                entries = (await self._server.xautoclaim(JOBS, GROUP, self._name, int(TIMER_SECONDS * 1_000), count=1))[1]
            if entries:
                payload: bytes = entries[0][1][b"d"]
                return payload
            await asyncio.sleep(POLL_SECONDS)

    async def stored(self) -> list[bytes]:
        """Read the stream in pages."""
        payloads: list[bytes] = []
        begin = "-"
        while entries := await self._server.xrange(LOG, min=begin, count=PAGE):
            payloads += [fields[b"d"] for _, fields in entries]
            begin = "(" + entries[-1][0].decode()
        return payloads
