"""A worker that takes a job, writes ``holds``, and keeps it until it is killed: ``python -m tests.bench.store.worker NAME ADDRESS``."""

from __future__ import annotations

import asyncio
import sys

from tests.bench.store.contenders import client_of


async def hold(name: str, address: str) -> None:
    """Take one job, and keep it."""
    client = client_of(name)
    await client.connect(address)
    await client.take_job()
    print("holds", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(hold(*sys.argv[1:]))
