"""nats-py."""

from __future__ import annotations

import asyncio
from typing import Any

import nats

from tests.bench.peers.clients.run import END, END_SECONDS, Supply, Tally, Trips

SUBJECT = "bench.load"


async def _connect(address: str) -> Any:
    """Connect."""
    return await nats.connect(f"nats://127.0.0.1:{address}")


async def publish(address: str, supply: Supply) -> None:
    """Publish each message by itself; the library gathers what it writes."""
    server = await _connect(address)
    for payload in supply:
        await server.publish(SUBJECT, payload)
    await server.flush()
    supply.finish()
    while True:
        await server.publish(SUBJECT, END)
        await asyncio.sleep(END_SECONDS)


async def receive(address: str, tally: Tally) -> None:
    """Receive messages in a callback, the faster of the library's two ways, with an unbounded queue."""
    server = await _connect(address)

    async def take(message: Any) -> None:
        tally.take(message.data)

    await server.subscribe(SUBJECT, cb=take, pending_msgs_limit=-1, pending_bytes_limit=-1)
    await server.flush()
    tally.ready()
    await asyncio.Event().wait()


async def trip(address: str, trips: Trips) -> None:
    """From one connection to another; what is published is written at once."""
    source, drain = await _connect(address), await _connect(address)
    subscription = await drain.subscribe(SUBJECT)
    await drain.flush()
    for payload in trips:
        await source.publish(SUBJECT, payload)
        await subscription.next_msg(timeout=30)
