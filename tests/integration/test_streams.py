"""Streams on a real bus, between processes and users."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing

import pytest

from sbus import AsyncBus, Bus, PeerDisconnected, Request
from sbus.protocol.envelope import Envelope, parse_envelope
from tests.support.daemons import Daemon
from tests.support.service_processes import running_service
from tests.support.users import User

WAIT_SECONDS = 30.0

LARGE = 200_000
"""Size of a large part: with base64, most of a packet."""


def count(request: Request) -> Iterator[str]:
    for number in range(int(request.data)):
        yield f"{number}"


def large(request: Request) -> Iterator[bytes]:
    for number in range(int(request.data)):
        yield b"%06d" % number + bytes(LARGE - 6)


def echo(request: Request) -> bytes:
    return request.data


def test_a_long_stream_arrives_whole_in_both_faces(bus: Daemon, first_user: User, second_user: User) -> None:
    def blocking() -> int:
        with Bus.connect(bus.path) as caller:
            parts = [int(part) for part in caller.stream("count", "5000", timeout=WAIT_SECONDS)]
        assert parts == list(range(5_000))
        return len(parts)

    async def asynchronous() -> None:
        async with AsyncBus.connect(bus.path) as caller:

            async def read() -> list[int]:
                return [int(part) async for part in caller.stream("count", "500", timeout=WAIT_SECONDS)]

            assert await asyncio.gather(*(read() for _ in range(8))) == [list(range(500))] * 8

    with running_service(bus.path, first_user, count=count):
        assert second_user.call(blocking, WAIT_SECONDS * 4) == 5_000
        asyncio.run(asyncio.wait_for(asynchronous(), WAIT_SECONDS * 4))


def test_a_slow_caller_loses_nothing_and_delays_no_other(bus: Daemon, first_user: User) -> None:
    """200 MB of parts, which neither the bus nor the service could queue; the caller takes them one by one, between other calls."""
    with running_service(bus.path, first_user, large=large, echo=echo), Bus.connect(bus.path) as slow, Bus.connect(bus.path) as other:
        for number, part in enumerate(slow.stream("large", "1000", timeout=WAIT_SECONDS)):
            assert part.startswith(b"%06d" % number)
            assert len(part) == LARGE
            if number % 100 == 0:
                assert other.call("echo", "on", timeout=WAIT_SECONDS) == b"on"
        assert number == 999
        assert slow.statistics.lost_remote == 0


def test_a_killed_caller_ends_the_generator_and_a_killed_service_the_stream(bus: Daemon, first_user: User) -> None:
    reader, writer = os.pipe()

    def noted(request: Request) -> Iterator[str]:
        try:
            yield from count(request)
        finally:
            os.write(writer, b"e")

    with running_service(bus.path, count=noted) as service:
        pid = os.fork()
        if pid == 0:
            try:
                with Bus.connect(bus.path) as caller:
                    next(caller.stream("count", "1000000"))
                    os.kill(os.getpid(), signal.SIGKILL)
            finally:
                os._exit(1)
        os.waitpid(pid, 0)
        assert os.read(reader, 1) == b"e"
        with Bus.connect(bus.path) as caller:
            stream = caller.stream("count", "1000000", timeout=None)
            assert next(stream) == b"0"
            service.kill()
            with pytest.raises(PeerDisconnected):
                for _ in stream:
                    pass
    os.close(reader)
    os.close(writer)


def test_leaving_the_loop_of_asyncio_ends_the_generator(bus: Daemon) -> None:
    async def main() -> None:
        async with AsyncBus.connect(bus.path) as service, AsyncBus.connect(bus.path) as caller:
            closed, ready = asyncio.Event(), asyncio.Event()

            @service.service("count")
            async def endless(request: Request) -> AsyncIterator[bytes]:
                try:
                    while True:
                        yield b"part"
                finally:
                    closed.set()

            task = asyncio.ensure_future(service.serve(ready=ready.set))
            await ready.wait()
            async with aclosing(caller.stream("count")) as stream:
                async for part in stream:
                    assert part == b"part"
                    break
            await closed.wait()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(asyncio.wait_for(main(), WAIT_SECONDS))


def test_another_user_cannot_add_parts_grant_them_or_end_the_stream(bus: Daemon, first_user: User, second_user: User) -> None:
    """The second user reads the request as a listener, and then sends all that a callee or the caller could send."""
    reader, writer = os.pipe()
    done_reader, done_writer = os.pipe()

    def attack() -> None:
        with Bus.connect(bus.path) as attacker, attacker.subscribe("rpc/count") as listener:
            os.write(writer, b"r")
            message = listener.receive(WAIT_SECONDS)
            request = parse_envelope(message.payload)  # type: ignore[union-attr]
            forged = [
                Envelope("count", request.uid, b"forged", part=number, more=more, error=error)
                for number in range(20)
                for more in (0, 1)
                for error in ("", "forged")
            ]
            control = [
                Envelope("count", request.uid, expires_seconds=1, sent_at=1, cancel=1),
                Envelope("count", request.uid, expires_seconds=1, sent_at=1, more=1, window=1_000),
            ]
            for _ in range(20):
                for each in forged:
                    attacker.publish(request.reply_to, each.encode(), wait=True)
                for each in control:
                    attacker.publish("rpc/count", each.encode(), wait=True)
            attacker.ping()
            os.write(done_writer, b"d")

    def read() -> list[bytes]:
        with Bus.connect(bus.path) as caller:
            stream = caller.stream("count", "100", timeout=WAIT_SECONDS)
            first = bytes(next(stream))
            assert os.read(done_reader, 1) == b"d"
            return [first, *map(bytes, stream)]

    with running_service(bus.path, count=count):
        pid = os.fork()
        if pid == 0:
            try:
                second_user.call(attack)
            finally:
                os._exit(0)
        assert os.read(reader, 1) == b"r"
        assert first_user.call(read) == [b"%d" % number for number in range(100)]
        os.waitpid(pid, 0)
    for each in (reader, writer, done_reader, done_writer):
        os.close(each)
