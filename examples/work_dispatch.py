"""Runs each line of standard input on a worker that is free: ls | python3 examples/work_dispatch.py (start work_service.py first)."""

import asyncio
import sys

from sbus import AsyncBus, NoRecipient, Peer, PeerDisconnected


async def feed(bus: AsyncBus, worker: Peer, jobs: list[str], gone: set[Peer]) -> None:
    """Give one worker a job at a time, until none is left. If the worker ends, another one runs its job again."""
    while jobs and worker not in gone:
        job = jobs.pop(0)
        try:
            print(job, (await bus.call("task/sha256", job, timeout=None, member=worker)).decode(), worker.pid, sep="\t", flush=True)
        except (NoRecipient, PeerDisconnected):
            jobs.append(job)
            gone.add(worker)


async def main() -> None:
    """Run all jobs, on the workers that are there now and on those that come later."""
    jobs, gone = sys.stdin.read().splitlines(), set[Peer]()
    async with AsyncBus.connect() as bus:
        while jobs and (workers := set(await bus.members("rpc/task/sha256")) - gone):
            await asyncio.gather(*(feed(bus, worker, jobs, gone) for worker in workers))
    if jobs:
        sys.exit(f"work_dispatch: {len(jobs)} jobs are left: no worker is running")


asyncio.run(main())
