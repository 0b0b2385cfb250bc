"""sbus's ``AsyncBus``; a message at a time, and together: coalesced, and taken in lists."""

from __future__ import annotations

import asyncio

from sbus import AsyncBus, Message
from tests.bench.peers.clients.run import END, END_SECONDS, Supply, Tally, Trips

KEY = b"bench/load"


async def publish(address: str, supply: Supply) -> None:
    """Publish each message by itself."""
    async with await AsyncBus.connect(address) as bus:
        for payload in supply:
            await bus.publish(KEY, payload)
        await _end(bus, supply)


async def publish_together(address: str, supply: Supply) -> None:
    """Publish within ``coalesce``."""
    async with await AsyncBus.connect(address) as bus:
        async with bus.coalesce():
            for payload in supply:
                await bus.publish(KEY, payload)
        await _end(bus, supply)


async def _end(bus: AsyncBus, supply: Supply) -> None:
    """Say that this was all."""
    supply.finish()
    while True:
        await bus.publish(KEY, END)
        await asyncio.sleep(END_SECONDS)


async def receive(address: str, tally: Tally) -> None:
    """Iterate; a gap is not a message, so its messages count as missing."""
    async with await AsyncBus.connect(address) as bus, await bus.subscribe(KEY) as subscription:
        tally.ready()
        async for message in subscription:
            tally.take(message.payload)


async def receive_together(address: str, tally: Tally) -> None:
    """Iterate over lists of what is there."""
    async with await AsyncBus.connect(address) as bus, await bus.subscribe(KEY) as subscription:
        tally.ready()
        async for items in subscription.batches():
            for item in items:
                if isinstance(item, Message):
                    tally.take(item.payload)


async def trip(address: str, trips: Trips) -> None:
    """From one connection to another."""
    async with await AsyncBus.connect(address) as source, await AsyncBus.connect(address) as drain:
        subscription = await drain.subscribe(KEY)
        for payload in trips:
            await source.publish(KEY, payload)
            await subscription.receive()
