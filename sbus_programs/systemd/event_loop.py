"""Runs a service in an event loop, which a signal cannot leave half made."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import select
import signal
import socket
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any

from sbus_programs.exhaustion import exhausted
from sbus_programs.systemd.signals import ENDING, WatchedSignals, ignore_ending_signals

_EXHAUSTING = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""After these errors of accept(2) the loop pauses the listening socket for a second."""


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


def run_until_signal(work: Coroutine[Any, Any, None], stopping: Callable[[], object] = bool) -> None:
    """Run *work* as :func:`run_service` does. The first of the :data:`ENDING` signals calls *stopping*, and cancels *work*."""

    async def run() -> None:
        task = asyncio.ensure_future(work)

        def stop() -> None:
            stopping()
            task.cancel()

        on_ending_signal(stop)
        with contextlib.suppress(asyncio.CancelledError):
            await task

    try:
        run_service(run())
    finally:
        work.close()  # run_service may fail before it begins


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


def report_exhaustion(report: Callable[[str], None]) -> None:
    """Call *report* with one line whenever the running loop cannot accept connections because descriptors or memory are exhausted.

    The loop pauses that listening socket for a second, and then accepts again. Other errors go to the handler that the loop has now: it may
    end the service, which clients could otherwise do by opening connections.
    """
    loop = asyncio.get_running_loop()
    handler = loop.get_exception_handler()
    is_reported = False

    def forget() -> None:
        nonlocal is_reported
        is_reported = False

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        nonlocal is_reported
        error = context.get("exception")
        if isinstance(error, OSError) and error.errno in _EXHAUSTING and "socket" in context:
            if not is_reported:  # asyncio tries again as often as the backlog is long before it pauses
                is_reported = True
                loop.call_soon(forget)
                report(f"paused accepting connections: {exhausted(error) or error.strerror or error}")
        elif isinstance(error, ValueError) and "._start_serving(" in str(context.get("handle")):
            return  # the socket was closed within its pause
        elif handler is not None:
            handler(loop, context)
        else:
            loop.default_exception_handler(context)

    loop.set_exception_handler(handle)


def _check_descriptors() -> None:
    """Raise OSError if the descriptors of an event loop are not left. A loop that is half made prints a traceback when it is removed."""
    with select.epoll():
        for end in socket.socketpair():  # while the epoll is open
            end.close()
