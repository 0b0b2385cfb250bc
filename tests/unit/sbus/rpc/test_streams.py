"""Streams on a small bus, from the handler to the caller, with both faces on both sides."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import aclosing
from typing import Any

import pytest

from sbus import AnswerLost, AsyncBus, Bus, CallTimeout, NoRecipient, PeerDisconnected, RemoteError, Request, ServiceError
from sbus.protocol.envelope import Envelope, parse_envelope
from sbus.protocol.memberships import SERVICE_GROUP
from sbus.rpc.streaming import STREAMS_PER_USER
from tests.support.minibus import WAIT_SECONDS, BusConnection, MiniBus
from tests.support.service_threads import ServiceThreads


class Counting:
    """Handlers that count their parts, and note the end of their generators."""

    def __init__(self) -> None:
        self.made = 0
        self.most = 0
        self.closed = threading.Event()

    def count(self, request: Request) -> Iterator[str]:
        """Make as many parts as the request says."""
        try:
            for number in range(int(request.data)):
                self.made += 1
                yield f"{number}"
        finally:
            self.closed.set()

    async def count_slowly(self, request: Request) -> AsyncIterator[str]:
        """Do the same, in turns with other tasks."""
        try:
            for number in range(int(request.data)):
                self.made += 1
                await asyncio.sleep(0)
                yield f"{number}"
        finally:
            self.closed.set()

    def fail(self, request: Request) -> Iterator[bytes]:
        """Fail after two parts."""
        yield b"0"
        yield b"1"
        if request.data == b"words":
            raise ServiceError("no more of them")
        raise LookupError("secret")


def echo(request: Request) -> bytes:
    return request.data


class Service:
    """A service of one of the faces."""

    def __init__(self, kind: str, mini_bus: MiniBus, group: str = SERVICE_GROUP) -> None:
        self.handlers = Counting()
        self.connection = 0
        self._group = group
        self.counts: dict[str, int] = {}
        self._ready = threading.Event()
        self._bus: Bus | AsyncBus | None = None
        self._thread = threading.Thread(target=self._serve if kind == "blocking" else self._serve_async, args=(mini_bus.address,))
        self._thread.start()
        assert self._ready.wait(WAIT_SECONDS)
        self.mini_bus = mini_bus

    def stop(self) -> dict[str, int]:
        """End it, and return its statistics."""
        self.mini_bus.hang_up(self.connection)
        self._thread.join(WAIT_SECONDS)
        return self.counts

    def _serve(self, address: str) -> None:
        with Bus.connect(address) as bus:
            for command, handler in (("count", self.handlers.count), ("fail", self.handlers.fail), ("echo", echo)):
                bus.service(command, group=self._group)(handler)
            self.connection = int(bus.address.split("/")[2])
            with pytest.raises(ConnectionError):
                bus.serve(ready=self._ready.set)
            self.counts = dict(bus.statistics.requests)

    def _serve_async(self, address: str) -> None:
        async def main() -> None:
            async with AsyncBus.connect(address) as bus:
                for command, handler in (("count", self.handlers.count_slowly), ("fail", self.handlers.fail), ("echo", echo)):
                    bus.service(command, group=self._group)(handler)
                self.connection = int((await bus.address).split("/")[2])
                with pytest.raises(ConnectionError):
                    await bus.serve(ready=self._ready.set)
                self.counts = dict(bus.statistics.requests)

        asyncio.run(main())


@pytest.fixture(params=["blocking", "asyncio"])
def service(request: pytest.FixtureRequest, mini_bus: MiniBus) -> Iterator[Service]:
    made = Service(request.param, mini_bus)
    yield made
    made.stop()


class Face:
    """One of the two faces: reads a stream on a new connection."""

    def __init__(self, name: str, address: str) -> None:
        self._name = name
        self._address = address

    def read(self, *args: Any, limit: int | None = None, **kwargs: Any) -> tuple[list[bytes], BaseException | None]:
        """Return the parts, at most *limit*, and the error that ended the stream."""
        parts: list[bytes] = []
        if self._name == "asyncio":
            return parts, asyncio.run(asyncio.wait_for(self._read(parts, limit, *args, **kwargs), WAIT_SECONDS))
        with Bus.connect(self._address) as bus:
            error: BaseException | None = None
            try:
                for part in bus.stream(*args, **kwargs):
                    parts.append(bytes(part))
                    if len(parts) == limit:
                        break
            except Exception as caught:
                error = caught
            # The small bus does not read what it has from a client that closes with unread packets.
            bus.ping()
        return parts, error

    async def _read(self, parts: list[bytes], limit: int | None, *args: Any, **kwargs: Any) -> BaseException | None:
        async with AsyncBus.connect(self._address) as bus:
            error: BaseException | None = None
            try:
                async with aclosing(bus.stream(*args, **kwargs)) as stream:
                    async for part in stream:
                        parts.append(bytes(part))
                        if len(parts) == limit:
                            break
            except Exception as caught:
                error = caught
            await bus.ping()
        return error


@pytest.fixture(params=["blocking", "asyncio"])
def face(request: pytest.FixtureRequest, mini_bus: MiniBus) -> Face:
    return Face(request.param, mini_bus.address)


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


@pytest.mark.parametrize("window", [1, 2, 16, 1_024])
@pytest.mark.parametrize("count", [0, 1, 2, 17, 300])
def test_all_parts_arrive_in_order(service: Service, face: Face, count: int, window: int) -> None:
    assert face.read("count", f"{count}", window=window) == (numbers(count), None)
    assert service.handlers.closed.wait(WAIT_SECONDS)


def test_a_part_has_its_sender_and_the_statistics_count_streams(service: Service) -> None:
    with Bus.connect(service.mini_bus.address) as bus:
        for part in bus.stream("count", "20"):
            assert part.callee is not None
            assert part.callee.connection == service.connection
        assert bus.statistics.stray_answers == 0
        assert bus.call("echo", "on") == b"on"
    counts = service.stop()
    assert (counts["requests"], counts["answered"]) == (2, 2)


def test_a_service_makes_no_more_parts_than_were_granted(service: Service) -> None:
    with Bus.connect(service.mini_bus.address) as bus:
        stream = bus.stream("count", "1000000", window=8)
        for number in range(50):
            assert next(stream) == b"%d" % number
            assert bus.call("echo", "on") == b"on"
            assert service.handlers.made <= number + 1 + 8
        stream.close()
        assert service.handlers.closed.wait(WAIT_SECONDS)
    assert service.stop()["cancelled"] == 1


def test_leaving_the_loop_ends_the_generator(service: Service, face: Face) -> None:
    assert face.read("count", "1000000", limit=3) == (numbers(3), None)
    assert service.handlers.closed.wait(WAIT_SECONDS)
    assert service.handlers.made < 100


@pytest.mark.parametrize(("data", "words"), [("words", "no more of them"), ("", "the handler raised LookupError")])
def test_an_error_follows_the_parts(service: Service, face: Face, data: str, words: str) -> None:
    parts, error = face.read("fail", data)
    assert parts == [b"0", b"1"]
    assert isinstance(error, RemoteError)
    assert error.words == words


def test_a_call_of_a_stream_is_an_error_that_says_so(service: Service) -> None:
    with Bus.connect(service.mini_bus.address) as bus, pytest.raises(RemoteError, match=r"count streams its response: call it with stream"):
        bus.call("count", "3")


def test_a_single_response_is_one_part(service: Service, face: Face) -> None:
    assert face.read("echo", "one") == ([b"one"], None)


def test_no_service(service: Service, face: Face) -> None:
    assert isinstance(face.read("other")[1], NoRecipient)


@pytest.mark.parametrize("window", [0, 1_025])
def test_an_invalid_window(face: Face, window: int) -> None:
    assert isinstance(face.read("count", window=window)[1], ValueError)


def test_the_end_of_the_caller_ends_the_generator(service: Service) -> None:
    with Bus.connect(service.mini_bus.address) as bus:
        stream = bus.stream("count", "1000000")
        assert next(stream) == b"0"
        service.mini_bus.hang_up(int(bus.address.split("/")[2]))
        assert service.handlers.closed.wait(WAIT_SECONDS)
        with pytest.raises(ConnectionError):
            for _ in stream:
                pass
    assert service.stop()["cancelled"] == 1


def test_the_end_of_the_service_ends_the_stream(service: Service) -> None:
    with Bus.connect(service.mini_bus.address) as bus:
        stream = bus.stream("count", "1000000", timeout=None)
        assert next(stream) == b"0"
        service.stop()
        with pytest.raises(PeerDisconnected):
            for _ in stream:
                pass


def test_streams_of_one_user_are_limited_and_others_are_served(service: Service) -> None:
    """User B opens streams and reads none of them; user A is served."""
    service.mini_bus.uids[service.mini_bus._next] = 2
    with Bus.connect(service.mini_bus.address) as hostile:
        # With small windows: the small bus does not queue, and stops while a client has a full socket.
        opened = [hostile.stream("count", "1000000", window=1) for _ in range(STREAMS_PER_USER + 1)]
        for stream in opened[:-1]:
            assert next(stream) == b"0"
        with pytest.raises(RemoteError, match=f"busy: {STREAMS_PER_USER} streams of user 2 are open"):
            next(opened[-1])
        with Bus.connect(service.mini_bus.address) as bus:
            assert list(bus.stream("count", "40")) == numbers(40)
            assert bus.call("echo", "on") == b"on"
        for stream in opened:
            stream.close()
        assert next(hostile.stream("count", "1")) == b"0"


# Defects and attacks at the caller


LOST = Envelope("odd", "lost")
"""For a notice of the bus that it has discarded messages for the caller."""


class Script:
    """A service that sends what the test says, at each message of the caller."""

    def __init__(self, mini_bus: MiniBus, responses: list[list[Envelope]]) -> None:
        self.asked: list[Envelope] = []
        self.cancelled = threading.Event()
        self._responses = responses
        self._mini_bus = mini_bus
        mini_bus.before = self._before

    def _before(self, connection: BusConnection, packet: bytes) -> None:
        if not packet.startswith((b"MSG rpc/odd", b"MSG !/conn/1/rpc/odd")):
            return
        message = parse_envelope(packet.partition(b"\0")[2])
        if message.cancel:
            self.cancelled.set()
            return
        self.asked.append(message)
        step = len(self.asked) - 1
        for each in self._responses[step] if step < len(self._responses) else ():
            if each is LOST:
                connection.say(b"CMSG !/bus/lost\0005")
                continue
            answer = Envelope("odd", message.uid, each.data, part=each.part, more=each.more)
            self._mini_bus.publish(self.asked[0].reply_to.encode(), answer.encode(), 1)


def part(number: int, more: int = 1) -> Envelope:
    return Envelope("odd", "u", b"%d" % number, part=number, more=more)


@pytest.mark.parametrize(
    ("responses", "parts", "words"),
    [
        ([[part(2)]], [], "part 1 "),
        ([[part(1)], [part(3)]], [b"1"], "part 2 "),
        ([[part(1)], [part(1)]], [b"1"], "part 2 "),
        ([[part(1)], [part(2), part(4, 0)]], [b"1", b"2"], "part 3 "),
        ([[part(1)], [Envelope("odd", "u")]], [b"1"], "part 2 "),
        ([[part(1), part(2)]], [b"1"], "part 2 was not requested"),
        ([[part(1)], [part(2), LOST]], [b"1", b"2"], "a part "),
    ],
)
def test_a_part_that_is_missing_or_too_early_ends_the_stream(
    face: Face, mini_bus: MiniBus, responses: list[list[Envelope]], parts: list[bytes], words: str
) -> None:
    with Bus.connect(mini_bus.address) as silent, silent.subscribe("rpc/odd", silent.address + "rpc/odd"):
        script = Script(mini_bus, responses)
        found, error = face.read("odd", timeout=WAIT_SECONDS)
        assert found == parts
        assert isinstance(error, AnswerLost | RemoteError)
        assert words in str(error)
        # The service may still send: it is asked to stop.
        assert script.cancelled.wait(WAIT_SECONDS)


def test_a_stream_that_stops_times_out_and_is_cancelled(face: Face, mini_bus: MiniBus) -> None:
    with Bus.connect(mini_bus.address) as silent, silent.subscribe("rpc/odd", silent.address + "rpc/odd"):
        script = Script(mini_bus, [[]])
        seconds = 0.05
        while not script.cancelled.is_set():  # on a busy machine, the time is up before the request is sent
            found, error = face.read("odd", timeout=seconds)
            assert (found, type(error)) == ([], CallTimeout)
            seconds *= 2


def test_of_several_services_one_streams_and_the_others_are_cancelled(mini_bus: MiniBus, face: Face) -> None:
    made = [Service(kind, mini_bus, group="") for kind in ("blocking", "asyncio", "blocking")]

    def before(_connection: BusConnection, packet: bytes) -> None:
        # A service that gets the cancellation together with the request does not begin.
        end = time.monotonic() + WAIT_SECONDS
        while packet.startswith(b"MSG !/conn/") and b"/rpc/count\0" in packet and not all(each.handlers.made for each in made):
            assert time.monotonic() < end
            time.sleep(0.001)

    mini_bus.before = before
    try:
        assert face.read("count", "200") == (numbers(200), None)
        for each in made:
            assert each.handlers.closed.wait(WAIT_SECONDS)
        assert sorted(each.handlers.made for each in made)[:2] == [1, 1]
    finally:
        for each in made:
            each.stop()


# The end of a service


@pytest.mark.parametrize("how", ["cancelled", "drained"])
def test_a_service_that_stops_ends_its_streams_with_an_error(mini_bus: MiniBus, how: str) -> None:
    async def main() -> None:
        async with AsyncBus.connect(mini_bus.address) as bus, AsyncBus.connect(mini_bus.address) as caller:
            handlers, ready = Counting(), asyncio.Event()
            bus.service("count")(handlers.count_slowly)
            task = asyncio.ensure_future(bus.serve(ready=ready.set))
            await ready.wait()
            stream = caller.stream("count", "1000000", timeout=None)
            assert await anext(stream) == b"0"
            if how == "drained":
                bus.stop_serving()
            else:
                task.cancel()
            with pytest.raises(RemoteError, match="the service stopped while it ran the request"):
                async for _ in stream:
                    pass
            await asyncio.gather(task, return_exceptions=True)
            assert handlers.closed.is_set()

    asyncio.run(asyncio.wait_for(main(), WAIT_SECONDS))


def test_a_blocking_service_that_stops_ends_its_streams_with_an_error(mini_bus: MiniBus) -> None:
    handlers, ready = Counting(), threading.Event()
    with Bus.connect(mini_bus.address) as bus, Bus.connect(mini_bus.address) as caller:
        bus.service("count")(handlers.count)
        bus.service("stop")(lambda request: bus.stop_serving())
        thread = threading.Thread(target=bus.serve, kwargs={"ready": ready.set})
        thread.start()
        assert ready.wait(WAIT_SECONDS)
        stream = caller.stream("count", "1000000", timeout=None)
        assert next(stream) == b"0"
        caller.call("stop")
        with pytest.raises(RemoteError, match="the service stopped while it ran the request"):
            for _ in stream:
                pass
        thread.join(WAIT_SECONDS)
        assert handlers.closed.is_set()


def test_wrong_parts_and_wrong_generators(mini_bus: MiniBus, services: ServiceThreads) -> None:
    def wrong(request: Request) -> Iterator[Any]:
        yield "right"
        yield 7

    def long(request: Request) -> Iterator[bytes]:
        yield bytes(400_000)

    async def asynchronous(request: Request) -> AsyncIterator[bytes]:
        yield b""

    services.add(wrong=wrong, long=long, asynchronous=asynchronous)
    expected = {
        "wrong": "the result of the handler must be bytes, str or None, not int",
        "long": "the part is too long",
        "asynchronous": "cannot run an asynchronous generator as a handler; serve it on an AsyncBus",
    }
    with Bus.connect(mini_bus.address) as bus:
        for command, words in expected.items():
            with pytest.raises(RemoteError, match=words):
                list(bus.stream(command))


def test_streams_do_not_take_the_places_of_handlers(mini_bus: MiniBus) -> None:
    """All streams wait for their callers; a request is run nevertheless."""

    async def main() -> None:
        async with AsyncBus.connect(mini_bus.address) as bus, AsyncBus.connect(mini_bus.address) as caller:
            ready = asyncio.Event()
            bus.service("count")(Counting().count_slowly)
            bus.service("echo")(echo)
            task = asyncio.ensure_future(bus.serve(ready=ready.set))
            await ready.wait()
            streams = [caller.stream("count", "100") for _ in range(STREAMS_PER_USER)]
            firsts: list[Awaitable[bytes]] = [anext(stream) for stream in streams]
            assert await asyncio.gather(*firsts) == [b"0"] * STREAMS_PER_USER
            assert await caller.call("echo", "on") == b"on"
            for stream in streams:
                assert [bytes(each) async for each in stream] == numbers(100)[1:]
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(asyncio.wait_for(main(), WAIT_SECONDS * 2))
