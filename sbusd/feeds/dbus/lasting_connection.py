"""A connection to the D-Bus bus that is made again when it is lost."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

from sbusd.feeds.bus_publisher import LogThrottle
from sbusd.feeds.dbus.connection import CallError, DBusConnection, DBusSignal, DBusUnavailableError

_RETRY_SECONDS = (0.1, 5.0)
"""Shortest and longest interval between two attempts to connect."""


async def stay_connected(
    address: str,
    on_signal: Callable[[DBusSignal], None],
    serve: Callable[[DBusConnection], Awaitable[None]],
    on_lost: Callable[[], None],
    log: Callable[[str], None],
) -> None:
    """Connect to the D-Bus bus at *address*, *serve* the connection until it ends, call *on_lost*, and begin again.

    Raises:
        SbusError: the first connection cannot be made.
    """
    delay = _RETRY_SECONDS[0]
    errors = LogThrottle()
    connection: DBusConnection | None = await DBusConnection.open(address, on_signal)
    while True:
        if connection is None:
            await asyncio.sleep(delay)
            delay = min(2 * delay, _RETRY_SECONDS[1])
            with contextlib.suppress(DBusUnavailableError):
                connection = await DBusConnection.open(address, on_signal)
            continue
        try:
            await serve(connection)
            delay = _RETRY_SECONDS[0]
        except (DBusUnavailableError, CallError) as error:
            count = errors.count()
            if count is not None:
                log(f"{error} ({count} so far)" if count > 1 else str(error))
        finally:
            await connection.close()
            on_lost()
        connection = None
        log("lost the connection to the D-Bus bus; connecting again")


@contextlib.asynccontextmanager
async def end_of(connection: DBusConnection) -> AsyncIterator[asyncio.Future[None]]:
    """Give a task that is done when *connection* ends."""
    closed = asyncio.ensure_future(connection.wait_closed())
    try:
        yield closed
    finally:
        await cancel(closed)


async def run_together(*coroutines: Coroutine[Any, Any, None]) -> None:
    """Run *coroutines* until one of them ends, and raise its exception; the others are cancelled."""
    tasks = [asyncio.ensure_future(each) for each in coroutines]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            await cancel(task)


async def cancel(task: asyncio.Future[Any]) -> None:
    """Cancel *task* and wait for its end; its result does not matter any more."""
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        task.exception()
