"""Waits for a future of asyncio until a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from sbusd.client.steps import Deadline


async def wait_for(future: asyncio.Future[None], deadline: Deadline) -> None:
    """Wait for *future*. Raises TimedOut; then *future* has no other outcome."""
    remaining = deadline.remaining()
    if remaining is None or future.done():
        await future
        return
    timer = future.get_loop().call_later(remaining, _expire, future, deadline)
    try:
        await future
    finally:
        timer.cancel()


def resolver(future: asyncio.Future[None]) -> Callable[[], None]:
    """Return a function that resolves *future*, unless that is cancelled or expired."""

    def resolve() -> None:
        if not future.done():
            future.set_result(None)

    return resolve


def _expire(future: asyncio.Future[None], deadline: Deadline) -> None:
    """End the wait for *future*."""
    if not future.done():
        future.set_exception(deadline.expired())
