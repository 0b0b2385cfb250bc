"""Runs a service in an event loop, which a signal cannot leave half made."""

from __future__ import annotations

import asyncio
import select
import signal
import socket
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any

from sbusd.systemd.signals import ENDING, WatchedSignals, ignore_ending_signals


def run_service(service: Coroutine[Any, Any, None]) -> None:
    """Run *service* as :func:`asyncio.run` does. A signal that arrives while the loop is made is handled when *service* begins.

    Once *service* has ended, further :data:`ENDING` signals have no effect: the program is about to end by itself.
    Raises OSError if no descriptors are left for the loop.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)

    async def begin() -> None:
        loop = asyncio.get_running_loop()
        with WatchedSignals({}) as arrivals:
            loop.add_reader(arrivals, arrivals.drain)  # a signal interrupts no wait of the loop if another thread gets it
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            try:
                await service
            finally:
                ignore_ending_signals()
                loop.remove_reader(arrivals)

    beginning = begin()
    try:
        _check_descriptors()
        asyncio.run(beginning)
    finally:
        beginning.close()
        service.close()  # a signal may end the program before it begins
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def on_ending_signal(stop: Callable[[], object]) -> None:
    """Call *stop* in the running loop at the first of the :data:`ENDING` signals. Further ones have no effect: nothing interrupts the end.

    Only for :func:`run_service`. A handler of the loop itself would be replaced by the default effect when the loop is closed.
    """
    loop = asyncio.get_running_loop()
    is_stopping = False

    def end() -> None:
        nonlocal is_stopping
        if not is_stopping:  # else a signal interrupted the handler of another one
            is_stopping = True
            stop()

    def handle(_number: int, _frame: FrameType | None) -> None:
        signal.set_wakeup_fd(-1)  # many further signals would fill its buffer, and the interpreter would report each
        ignore_ending_signals()
        loop.call_soon_threadsafe(end)

    for number in ENDING:
        signal.signal(number, handle)


def first_defect() -> asyncio.Future[None]:
    """Return what fails with the first error that the running loop cannot raise elsewhere: a service that waits for it ends, and starts
    again, instead of going on with a defect."""
    loop = asyncio.get_running_loop()
    failed: asyncio.Future[None] = loop.create_future()

    def fail(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not failed.done():
            failed.set_exception(error if isinstance(error, Exception) else RuntimeError(str(context.get("message"))))

    loop.set_exception_handler(fail)
    return failed


def _check_descriptors() -> None:
    """Raise OSError if the descriptors of an event loop are not left. A loop that is half made prints a traceback when it is removed."""
    with select.epoll():
        for end in socket.socketpair():  # while the epoll is open
            end.close()
