"""Cancelled calls on a real bus, between processes and users: the handler stops, and no other user can stop it."""

from __future__ import annotations

import asyncio
import os
import select
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from sbus import AsyncBus, Bus, Message, Request
from sbus.protocol.envelope import Envelope, parse_envelope
from tests.support.daemons import Daemon
from tests.support.service_processes import running_service
from tests.support.shell import Shell, running
from tests.support.users import User
from tools.stage import Stage

WAIT_SECONDS = 30.0


class Notes:
    """A pipe in which the handlers of another process write their notes."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()

    def write(self, text: str) -> None:
        os.write(self._writer, text.encode())

    def read(self, count: int) -> str:
        """Return the next *count* characters."""
        text = b""
        while len(text) < count:
            assert select.select([self._reader], [], [], WAIT_SECONDS)[0], f"the handlers wrote only {text!r}"
            text += os.read(self._reader, count - len(text))
        return text.decode()

    def close(self) -> None:
        os.close(self._reader)
        os.close(self._writer)

    def slow(self, request: Request) -> bytes:
        """Note the beginning, and whether the request was cancelled in time."""
        self.write("b")
        self.write("c" if request.cancelled.wait(WAIT_SECONDS) else "t")
        return b""

    def echo(self, request: Request) -> bytes:
        return request.data


@pytest.fixture
def notes() -> Iterator[Notes]:
    made = Notes()
    yield made
    made.close()


def test_a_caller_cancels_the_request_in_the_other_process(bus: Daemon, notes: Notes, first_user: User) -> None:
    async def main() -> None:
        async with AsyncBus.connect(bus.path) as caller:
            call = asyncio.ensure_future(caller.call("slow", timeout=None))
            assert await asyncio.to_thread(notes.read, 1) == "b"
            call.cancel()
            assert await asyncio.to_thread(notes.read, 1) == "c"
            assert await caller.call("echo", "on", timeout=WAIT_SECONDS) == b"on"
            await asyncio.gather(call, return_exceptions=True)

    with running_service(bus.path, first_user, slow=notes.slow, echo=notes.echo):
        asyncio.run(main())


def test_a_caller_that_is_killed_cancels_its_request(bus: Daemon, notes: Notes, first_user: User) -> None:
    with running_service(bus.path, first_user, slow=notes.slow, echo=notes.echo):
        pid = os.fork()
        if pid == 0:
            try:
                with Bus.connect(bus.path) as caller:
                    caller.call("slow", timeout=None)
            finally:
                os._exit(0)
        assert notes.read(1) == "b"
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        assert notes.read(1) == "c"
        with Bus.connect(bus.path) as caller:
            assert caller.call("echo", "on", timeout=WAIT_SECONDS) == b"on"


def test_another_user_cannot_cancel_a_call(bus: Daemon, notes: Notes, first_user: User, second_user: User) -> None:
    """The second user reads the request as a listener, and sends its cancellation in all ways, many times."""

    end, ending = os.pipe()

    def wait(request: Request) -> str:
        is_cancelled = False
        while not is_cancelled and not select.select([end], [], [], 0)[0]:
            is_cancelled = request.cancelled.wait(0.05)
        return f"{is_cancelled or request.cancelled.is_set()}"

    def attack() -> None:
        with Bus.connect(bus.path) as attacker, attacker.subscribe("rpc/wait") as listener:
            notes.write("r")
            message = listener.receive(WAIT_SECONDS)
            assert isinstance(message, Message)
            seen = parse_envelope(message.payload)
            (service,) = (each for each in attacker.members("rpc/wait") if attacker.members(each.address + "rpc/wait"))
            for ret in ("", seen.reply_to):
                forged = Envelope("wait", seen.uid, reply_to=ret, expires_seconds=1, sent_at=1, cancel=1).encode()
                for _ in range(500):
                    attacker.publish("rpc/wait", forged, wait=True)
                    attacker.publish(service.address + "rpc/wait", forged, wait=True)
            attacker.ping()
            os.write(ending, b"x")

    with running_service(bus.path, wait=wait):
        pid = os.fork()
        if pid == 0:
            try:
                second_user.call(attack)
            finally:
                os._exit(0)
        assert notes.read(1) == "r"

        def call() -> bytes:
            with Bus.connect(bus.path) as caller:
                return bytes(caller.call("wait", timeout=WAIT_SECONDS))

        assert first_user.call(call) == b"False"
        os.waitpid(pid, 0)
        os.close(end)
        os.close(ending)


def test_the_program_of_a_cancelled_call_is_killed(stage: Stage, bus: Daemon, tmp_path: Path) -> None:
    """``sbusctl serve`` runs a program that would run for an hour; the caller gives up."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    async def main() -> None:
        async with AsyncBus.connect(bus.path) as caller:
            call = asyncio.ensure_future(caller.call("slow", timeout=None))
            # Opened when the program has opened it, and at its end when the program has ended.
            with await asyncio.to_thread(pipe.open) as reading:
                call.cancel()
                assert await asyncio.to_thread(reading.read) == ""
            await asyncio.gather(call, return_exceptions=True)

    script = f"exec sleep 3600 >{pipe}"
    with running(Shell(stage, bus), "serve", "slow", "--timeout", "3600", "--exec", "sh", "--", "-c", script, until="rpc/slow"):
        asyncio.run(main())
