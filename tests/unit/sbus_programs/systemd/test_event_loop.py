"""A service ends in full, whatever number of signals it gets."""

from __future__ import annotations

import asyncio
import errno
import os
import socket

import pytest

from sbus_programs.systemd.event_loop import first_defect, on_ending_signal, report_exhaustion, run_service
from sbus_programs.systemd.signals import ENDING

pytestmark = pytest.mark.usefixtures("restored_signals")


def send_both() -> None:
    """Send all ending signals to this process."""
    for number in ENDING:
        os.kill(os.getpid(), number)


def test_signals_stop_it_once_and_do_not_interrupt_its_end() -> None:
    stops, ended = 0, False

    async def service() -> None:
        nonlocal ended
        task = asyncio.ensure_future(asyncio.Event().wait())

        def stop() -> None:
            nonlocal stops
            stops += 1
            task.cancel()

        on_ending_signal(stop)
        send_both()
        try:
            await task
        except asyncio.CancelledError:
            for _ in range(10):
                send_both()
                await asyncio.sleep(0)
            ended = True

    run_service(service())
    send_both()
    assert (stops, ended) == (1, True)


def test_signals_have_no_effect_after_a_service_that_ended_by_itself() -> None:
    async def service() -> None:
        on_ending_signal(lambda: None)

    run_service(service())
    send_both()


def test_the_first_defect_ends_what_waits_for_it() -> None:
    def fail(number: int) -> None:
        raise ValueError(number)

    async def service() -> None:
        failed = first_defect()
        for number in range(2):
            asyncio.get_running_loop().call_soon(fail, number)
        with pytest.raises(ValueError, match=r"^0$"):
            await failed
        await asyncio.sleep(0)

    asyncio.run(service())


class FullListener(socket.socket):
    """A listening socket for whose connections no descriptor is left."""

    def accept(self) -> tuple[socket.socket, object]:
        """Raise the error of accept(2)."""
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def full_listener() -> FullListener:
    """Return one that listens on a free port."""
    made = FullListener(socket.AF_INET, socket.SOCK_STREAM)
    made.bind(("127.0.0.1", 0))
    return made


def test_a_pause_of_a_listener_is_one_report_and_no_defect() -> None:
    async def service() -> None:
        loop = asyncio.get_running_loop()
        failed, reports, is_reported = first_defect(), list[str](), asyncio.Event()

        def report(reason: str) -> None:
            reports.append(reason)
            is_reported.set()

        report_exhaustion(report)
        listening = full_listener()
        server = await loop.create_server(asyncio.Protocol, sock=listening)
        with socket.create_connection(listening.getsockname()):
            for pauses in (1, 2):
                await is_reported.wait()
                is_reported.clear()
                assert len(reports) == pauses
        assert set(reports) == {
            "paused accepting connections: "
            "no file descriptor is left. Raise LimitNOFILE= of the unit, or the limit of the shell (ulimit -n)"
        }
        server.close()
        assert not failed.done()

    asyncio.run(service())


def test_a_listener_that_is_closed_within_its_pause_is_no_defect() -> None:
    async def service() -> None:
        loop = asyncio.get_running_loop()
        failed, is_reported = first_defect(), asyncio.Event()
        report_exhaustion(lambda _reason: is_reported.set())
        listening = full_listener()
        server = await loop.create_server(asyncio.Protocol, sock=listening)
        with socket.create_connection(listening.getsockname()):
            await is_reported.wait()
        server.close()
        over: asyncio.Future[None] = loop.create_future()
        loop.call_later(1.1, over.set_result, None)  # timers run in order, so that of the pause, 1 s, is over before
        await over
        assert not failed.done()

    asyncio.run(service())


@pytest.mark.parametrize("error", [OSError(errno.EMFILE, "of another call"), ValueError("another")])
def test_other_errors_are_still_defects(error: Exception) -> None:
    def fail() -> None:
        raise error

    async def service() -> None:
        failed = first_defect()
        report_exhaustion(pytest.fail)
        asyncio.get_running_loop().call_soon(fail)
        with pytest.raises(type(error)):
            await failed

    asyncio.run(service())
