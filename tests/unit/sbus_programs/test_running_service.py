"""The life of a service: what its service manager, its log and its caller learn of it."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket

import pytest

from sbus.protocol.errors import SbusError
from sbus_programs.running_service import Reloads, RunningService, serve
from sbus_programs.systemd.log_records import LogMessage, Priority

FAULT = LogMessage("0" * 32, Priority.ERR, "fault", "internal error: {reason}")

pytestmark = pytest.mark.usefixtures("restored_signals")


def states(systemd: socket.socket) -> list[str]:
    """Return the first words of all notifications since the last call."""
    found = []
    systemd.setblocking(False)
    while True:
        try:
            found.append(systemd.recv(4_096).decode().partition("\n")[0].partition("=")[0])
        except BlockingIOError:
            return found


def send(number: signal.Signals) -> None:
    """Send a signal to this process."""
    os.kill(os.getpid(), number)


def test_a_service_is_ready_once_and_stops_at_the_signal(systemd: socket.socket) -> None:
    seen: list[list[str]] = []

    async def work(service: RunningService) -> None:
        service.ready("first")
        service.ready("second")
        service.alive("going")
        seen.append(states(systemd))
        send(signal.SIGTERM)
        try:
            await asyncio.Event().wait()
        finally:
            seen.append(states(systemd))

    serve("sbus-some", work)
    assert seen == [["READY", "WATCHDOG"], ["STOPPING"]]
    assert states(systemd) == []


def test_requests_during_a_reload_are_one_more_reload_after_it(systemd: socket.socket) -> None:
    running, most, reloads = 0, 0, 0

    async def work(service: RunningService) -> None:
        done = asyncio.Event()

        async def reload() -> None:
            nonlocal running, most, reloads
            running, reloads = running + 1, reloads + 1
            most = max(most, running)
            if reloads == 1:
                for _ in range(3):
                    requests.begin()
                    await asyncio.sleep(0)
            running -= 1
            if reloads == 2:
                done.set()

        requests = Reloads(reload, service._manager)
        requests.begin()
        await done.wait()
        await asyncio.sleep(0)

    serve("sbus-some", work)
    assert (reloads, most) == (2, 1)
    assert states(systemd) == ["RELOADING", "READY", "RELOADING", "READY", "STOPPING"]


def test_a_reload_that_fails_is_over_and_the_next_one_runs(systemd: socket.socket) -> None:
    async def work(service: RunningService) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)
        reloaded = asyncio.Queue[None]()

        async def reload() -> None:
            reloaded.put_nowait(None)
            raise ValueError("defect")

        service.reload_by(reload)
        for _ in range(2):
            send(signal.SIGHUP)
            await reloaded.get()

    serve("sbus-some", work)
    assert states(systemd) == ["RELOADING", "READY", "RELOADING", "READY", "STOPPING"]


def failing(error: Exception, *, in_task: bool) -> None:
    """Run a service that raises *error*, if *in_task* from a group of tasks."""

    async def fail() -> None:
        raise error

    async def work(_service: RunningService) -> None:
        if not in_task:
            raise error
        async with asyncio.TaskGroup() as outer:
            outer.create_task(asyncio.Event().wait())
            async with asyncio.TaskGroup() as inner:
                inner.create_task(fail())

    serve("sbus-some", work, fault=FAULT, doing="cannot listen on alpha")


@pytest.mark.parametrize("in_task", [False, True])
@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (SbusError("no bus"), "SbusError: no bus"),
        (OSError(errno.EADDRINUSE, "Address in use"), "ServiceError: cannot listen on alpha: Address in use"),
        (OSError(errno.EACCES, "Denied", "/a"), "PermissionError: [Errno 13] Denied: '/a'"),
        (OSError(errno.EMFILE, "Too many"), "OSError: [Errno 24] Too many"),  # the machine is exhausted, not the address
    ],
)
def test_an_error_of_the_machine_is_no_fault(
    in_task: bool, error: Exception, raised: str, systemd: socket.socket, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises((SbusError, OSError)) as caught:
        failing(error, in_task=in_task)
    assert f"{caught.type.__name__}: {caught.value}" == raised
    assert (capfd.readouterr().err, states(systemd)) == ("", ["STOPPING"])


def test_a_defect_is_logged_and_raised(systemd: socket.socket, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ZeroDivisionError):
        failing(ZeroDivisionError("of a test"), in_task=False)
    with pytest.raises(ExceptionGroup):
        failing(ZeroDivisionError("of a test"), in_task=True)
    assert capfd.readouterr().err.count("internal error: ZeroDivisionError: of a test\n") == 2
    assert states(systemd) == ["STOPPING", "STOPPING"]
