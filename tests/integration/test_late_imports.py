"""A long-lived client imports nothing after its first connection: its package may have been replaced by another version."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.daemons import Daemon

SYNC = """
import sys, threading
from sbus import Bus, SbusError
with Bus.connect(sys.argv[1], reconnect=True) as bus, Bus.connect(sys.argv[1], reconnect=True) as other:
    before = set(sys.modules)
    for use in (lambda: bus.store.put("a", "b"), lambda: bus.subscribe("a", last=True), lambda: list(bus.store.jobs("q"))):
        try:
            use()
        except SbusError:
            pass
    @bus.service("echo")
    def echo(request):
        raise RuntimeError
    ready = threading.Event()
    thread = threading.Thread(target=bus.serve, kwargs={"ready": ready.set})
    thread.start()
    ready.wait()
    try:
        other.call("echo")
    except SbusError:
        pass
    bus.stop_serving()
    thread.join()
print(*sorted(name for name in set(sys.modules) - before if name.startswith("sbus")))
"""

ASYNC = """
import asyncio, sys
from sbus import AsyncBus, SbusError
async def main():
    async with AsyncBus.connect(sys.argv[1]) as bus, AsyncBus.connect(sys.argv[1]) as other:
        before = set(sys.modules)
        async def subscribe():
            async with bus.subscribe("a", last=True):
                pass
        for use in (lambda: bus.store.put("a", "b"), subscribe):
            try:
                await use()
            except SbusError:
                pass
        @bus.service("echo")
        async def echo(request):
            raise RuntimeError
        ready = asyncio.Event()
        task = asyncio.create_task(bus.serve(ready=ready.set))
        await ready.wait()
        try:
            await other.call("echo")
        except SbusError:
            pass
        bus.stop_serving()
        await task
    print(*sorted(name for name in set(sys.modules) - before if name.startswith("sbus")))
asyncio.run(main())
"""


@pytest.mark.parametrize("program", [SYNC, ASYNC], ids=["Bus", "AsyncBus"])
def test_nothing_is_imported_late(bus: Daemon, program: str) -> None:
    done = subprocess.run([sys.executable, "-c", program, bus.path], capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout.split()) == (0, []), done.stderr
