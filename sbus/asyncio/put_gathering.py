"""Gathers what the tasks of an ``AsyncBus`` put at the same time into calls of ``store/put``, in the order in which the tasks began."""

from __future__ import annotations

import asyncio
from asyncio import sleep as pause_for
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from sbus.protocol.framed_data import MAX_FRAMES
from sbus.store.errors import StoreError
from sbus.store.items import Put
from sbus.store.requests import NewMessage, PutRequest, put_requests

__all__ = ["AsyncPutGathering", "pause_for"]

Waiting = tuple[NewMessage, asyncio.Future[Put | StoreError]]


class AsyncPutGathering:
    """Puts messages; *send* performs a call. One call is under way at a time, so messages keep their order."""

    def __init__(self, send: Callable[[PutRequest], Awaitable[Sequence[Put | StoreError]]]) -> None:
        self._send = send
        self._waiting: deque[Waiting] = deque()
        self._task: asyncio.Task[None] | None = None

    async def put(self, message: NewMessage) -> Put | StoreError:
        """Put *message*, and return its outcome."""
        for _ in put_requests([message]):  # raises the error of this message here, and not that of all
            pass
        future: asyncio.Future[Put | StoreError] = asyncio.get_running_loop().create_future()
        self._waiting.append((message, future))
        if self._task is None:
            task = asyncio.create_task(self._send_all())
            if not task.done():  # an eager task may have ended already
                self._task = task
        return await future

    async def _send_all(self) -> None:
        """Send the waiting messages. The task began after all tasks that were ready had put their messages."""
        try:
            while self._waiting:
                gathered = [self._waiting.popleft() for _ in range(min(MAX_FRAMES, len(self._waiting)))]
                gathered = [each for each in gathered if not each[1].cancelled()]
                await self._send_some(gathered)
        finally:
            self._task = None
            for _, future in self._waiting:
                future.cancel()
            self._waiting.clear()

    async def _send_some(self, gathered: Sequence[Waiting]) -> None:
        """Send *gathered* in as many calls as necessary, and give each task its outcome."""
        place = 0
        for request in put_requests([message for message, _ in gathered]):
            futures = [future for _, future in gathered[place : place + request.count]]
            place += request.count
            try:
                outcomes: Sequence[Put | StoreError | Exception] = await self._send(request)
            except Exception as error:  # each task that waits gets it
                outcomes = [error] * len(futures)
            except BaseException:
                for _, future in gathered:
                    future.cancel()
                raise
            for future, outcome in zip(futures, outcomes, strict=True):
                if future.done():
                    continue
                if isinstance(outcome, (Put, StoreError)):
                    future.set_result(outcome)
                else:
                    future.set_exception(outcome)
