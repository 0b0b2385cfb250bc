"""The work that each server does, by its own client; all times in seconds."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.bench.programs import BenchError
from tests.bench.store.clients.contract import JOBS, LOG, Client
from tests.bench.store.servers import Server
from tests.bench.store.turns import CountingProxy

PAYLOAD_BYTES = 64
WAIT_SECONDS = 120.0

MakeClient = Callable[[], Client]


def payload_of(number: int) -> bytes:
    """Return a payload of 64 bytes that begins with *number*."""
    return (b"%d " % number).ljust(PAYLOAD_BYTES, b".")


async def connected(make: MakeClient, server: Server, count: int) -> list[Client]:
    """Return *count* clients."""
    clients = [make() for _ in range(count)]
    for each in clients:
        await each.connect(server.address)
    return clients


async def close_all(clients: Sequence[Client]) -> None:
    """Close *clients*."""
    for each in clients:
        await each.close()


async def puts_per_second(make: MakeClient, server: Server, publishers: int, group: int, seconds: float) -> float:
    """Return the rate of *publishers*, each on its own connection: each puts *group* messages, waits until they are on disk, and so on."""
    clients = await connected(make, server, publishers)
    end = time.perf_counter() + seconds
    counts = [0] * publishers

    async def publish(place: int) -> None:
        payloads = [payload_of(place)] * group
        while time.perf_counter() < end:
            if group == 1:
                await clients[place].put(payloads[0])
            else:
                await clients[place].put_many(payloads, LOG)
            counts[place] += group

    begin = time.perf_counter()
    await asyncio.gather(*map(publish, range(publishers)))
    taken = time.perf_counter() - begin
    await close_all(clients)
    return sum(counts) / taken


async def jobs_per_second(make: MakeClient, server: Server, count: int) -> float:
    """Return the rate at which one worker takes and acknowledges *count* jobs, up to 64 at a time."""
    (client,) = await connected(make, server, 1)
    for start in range(0, count, 500):
        await client.put_many([payload_of(start)] * min(500, count - start), JOBS)
    begin = time.perf_counter()
    done = 0
    while done < count:
        found = await client.finish_jobs(64)
        if not found:
            raise BenchError(f"{count - done} of {count} jobs are missing")
        done += found
    taken = time.perf_counter() - begin
    await close_all([client])
    return count / taken


async def late_value_seconds(make: MakeClient, server: Server, trips: int) -> float:
    """Return the median time in which a new subscriber with a connection has the last value."""
    (publisher,) = await connected(make, server, 1)
    await publisher.set_value(payload_of(7))
    times = []
    for _ in range(trips):
        (client,) = await connected(make, server, 1)
        begin = time.perf_counter()
        value = await client.late_value()
        times.append(time.perf_counter() - begin)
        _check_value(value)
        await close_all([client])
    await close_all([publisher])
    return sorted(times)[len(times) // 2]


async def late_value_turns(make: MakeClient, server: Server, folder: Path, *, is_packets: bool) -> int:
    """Return the number of round trips that a new subscriber with a connection needs for the last value."""
    (publisher,) = await connected(make, server, 1)
    await publisher.set_value(payload_of(7))
    with CountingProxy(folder, server.address, is_packets=is_packets) as proxy:
        client = make()
        await client.connect(proxy.address)
        await asyncio.sleep(0.2)  # what connecting sends has been passed on then
        before = proxy.turns
        _check_value(await client.late_value())
        turns = proxy.turns - before
        await close_all([client, publisher])
    return turns


def _check_value(value: bytes) -> None:
    """Fail if *value* is not the last one."""
    if value != payload_of(7):
        raise BenchError(f"the last value is {value!r}")


async def redelivery_seconds(make: MakeClient, server: Server, name: str) -> float:
    """Return the time from the SIGKILL of a worker that has a job until another worker that waits has it."""
    (client,) = await connected(make, server, 1)
    await client.put_many([payload_of(1)], JOBS)
    command = [sys.executable, "-m", "tests.bench.store.worker", name, server.address]
    worker = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert worker.stdout is not None
    try:
        first = await asyncio.wait_for(asyncio.to_thread(worker.stdout.readline), WAIT_SECONDS)
        if first.strip() != b"holds":
            raise BenchError(f"{name}: the worker got no job")
        waiting = asyncio.ensure_future(client.take_job())
        await asyncio.sleep(0.2)  # the other worker is waiting then
        if waiting.done():
            raise BenchError(f"{name}: two workers have one job")
        begin = time.perf_counter()
        os.kill(worker.pid, signal.SIGKILL)
        await asyncio.wait_for(waiting, WAIT_SECONDS)
        return time.perf_counter() - begin
    finally:
        worker.kill()
        worker.wait()
        worker.stdout.close()
        await client.close()


async def lost_after_kill(make: MakeClient, server: Server, publishers: int, seconds: float) -> tuple[int, int]:
    """Kill the server while *publishers* put; start it again. Return the number of acknowledged messages, and how many of them are lost."""
    clients = await connected(make, server, publishers)
    acknowledged: list[bytes] = []

    async def publish(place: int) -> None:
        number = place
        with contextlib.suppress(Exception):  # the clients raise errors of their own when the server has ended
            while True:
                await clients[place].put(payload := b"kill " + payload_of(number))
                acknowledged.append(payload)
                number += publishers

    tasks = [asyncio.ensure_future(publish(place)) for place in range(publishers)]
    await asyncio.sleep(seconds)
    await asyncio.to_thread(server.kill)
    known = len(acknowledged)
    for each in tasks:
        each.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for client in clients:
        with contextlib.suppress(Exception):
            await asyncio.wait_for(client.close(), 5)
    await asyncio.to_thread(server.start)
    if not known:
        raise BenchError("nothing was acknowledged before the server was killed")
    (reader,) = await connected(make, server, 1)
    stored = set(await reader.stored())
    await close_all([reader])
    return len(acknowledged), sum(payload not in stored for payload in acknowledged)
