"""Waiting for the local bus is counted, and says that the network is not read."""

from __future__ import annotations

import asyncio

from sbusd.link.network.counters import NetworkCounters
from sbusd.link.network.stall import Stall


def test_a_wait_is_counted() -> None:
    async def run() -> tuple[NetworkCounters, bool]:
        gate, counters = asyncio.Event(), NetworkCounters()

        async def writable() -> None:
            await gate.wait()

        stall = Stall(writable, counters)
        waiting = [asyncio.create_task(stall.end()) for _ in range(2)]
        await asyncio.sleep(0)  # both have begun
        await asyncio.sleep(0.02)
        assert stall.is_active
        waiting[0].cancel()
        await asyncio.wait([waiting[0]])
        assert stall.is_active  # another connection still waits
        gate.set()
        await waiting[1]
        return counters, stall.is_active

    counters, is_active = asyncio.run(run())
    assert not is_active
    assert counters.stalls >= 2
    assert counters.stalled_seconds >= 0.02
