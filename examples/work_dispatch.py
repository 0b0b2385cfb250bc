"""Gives each job to one worker: python3 examples/work_dispatch.py JOB... (start work_service.py first, more than once)

The bus has no queue groups: every subscriber receives each message. So a dispatcher gives each worker one job at a time, by a call to
that worker alone. A worker that disconnects may have done its job; this program reports such jobs instead of running them twice.
"""

import asyncio
import sys

from sbusd.client import AsyncBus, Peer, SbusError


async def feed(bus: AsyncBus, worker: Peer, jobs: asyncio.Queue[str]) -> None:
    """Give jobs to one worker until none is left, or the worker fails."""
    while not jobs.empty():
        job = jobs.get_nowait()
        try:
            answer = await bus.call("jobs/sha256", job, member=worker)
            print(f"{job}\t{answer.decode()}\tworker {worker.pid}", flush=True)
        except SbusError as error:
            print(f"work_dispatch: {job}: {error}", file=sys.stderr)
            return


async def main() -> None:
    """Run all jobs."""
    jobs: asyncio.Queue[str] = asyncio.Queue()
    for job in sys.argv[1:]:
        jobs.put_nowait(job)
    async with AsyncBus.connect() as bus:
        await asyncio.gather(*(feed(bus, worker, jobs) for worker in await bus.members("rpc/jobs/sha256")))
    if not jobs.empty():
        sys.exit(f"work_dispatch: {jobs.qsize()} jobs are left: no worker serves them")


asyncio.run(main())
