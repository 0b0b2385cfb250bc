"""Look-ups that take as long as a directory service does, in threads: a user whose look-ups take long delays no other user, and a program
that ends does not wait for them, as it would for the threads of ``asyncio.to_thread``."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

LOOK_UP_SECONDS = 10.0
"""Time limit for a look-up, with the wait for earlier ones of the same user. Its thread cannot be ended: it continues."""

MAX_THREADS = 64
"""Look-ups at the same time, also those whose callers have given up. Only as many users together can delay others."""

UNANSWERED = (TimeoutError, RuntimeError, MemoryError)
"""What is raised if there is no result in time, or no thread."""

P = ParamSpec("P")
T = TypeVar("T")


class LookUps:
    """Runs look-ups for users: one at a time for each user, and at most *max_threads* in all."""

    def __init__(self, seconds: float = LOOK_UP_SECONDS, max_threads: int = MAX_THREADS) -> None:
        """*seconds* is the time limit for each."""
        self._seconds = seconds
        self._max_threads = max_threads
        self._running: dict[int, asyncio.Future[Any]] = {}
        """The look-ups whose threads have not ended, by user."""

    async def run(self, user: int, look_up: Callable[[], T]) -> T:
        """Return what *look_up* returns, which a thread calls for *user*.

        Raises:
            TimeoutError: the time limit is over.
            RuntimeError, MemoryError: no thread is left.
            Exception: what *look_up* raises.
        """
        async with asyncio.timeout(self._seconds):
            while (own := self._running.get(user)) is not None or len(self._running) >= self._max_threads:
                await asyncio.wait(self._running.values() if own is None else [own], return_when=asyncio.FIRST_COMPLETED)
            found = in_thread(look_up)
            self._running[user] = found
            found.add_done_callback(lambda _found: self._running.pop(user))
            return await asyncio.shield(found)


def in_thread(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
    """Return what *call* returns or raises, later. A program that ends does not wait for the thread.

    Raises:
        RuntimeError, MemoryError: no thread is left.
    """
    loop = asyncio.get_running_loop()
    result: asyncio.Future[T] = loop.create_future()

    def report(done: concurrent.futures.Future[T]) -> None:
        if result.cancelled():
            return
        if (error := done.exception()) is None:
            result.set_result(done.result())
        else:
            result.set_exception(error)

    def run() -> None:
        done = concurrent.futures.Future[T]()
        try:
            done.set_result(call(*args, **kwargs))
        except BaseException as error:  # the caller gets it
            done.set_exception(error)
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(report, done)

    threading.Thread(target=run, name="look-up", daemon=True).start()
    return result
