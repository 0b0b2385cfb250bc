"""The streams of a service: their parts, their turns, and their number."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbus import Peer, ServiceError
from sbus.items import Gap, Message
from sbus.protocol.envelope import Envelope, parse_envelope
from sbus.protocol.packets import Publish, parse_packet
from sbus.rpc.live_requests import CallerWatch
from sbus.rpc.requests import Request, Task
from sbus.rpc.service import Dispatcher
from sbus.rpc.streaming import MAX_WINDOW, STREAMS_PER_USER, Parts, ServiceStream, is_stream
from sbus.session import Session

NOW = 1_000_000.0


def caller(uid: int = 1000, connection: int = 7) -> Peer:
    return Peer(connection, uid, 100, 42, b"!/cred/100/%d/42" % uid)


def make_parts() -> Iterator[str]:
    yield from ("a", "b", "c")


def parts() -> Parts:
    made = make_parts()
    assert is_stream(made)
    return made


def asked(dispatcher: Dispatcher, uid: str = "u", connection: int = 7, user: int = 1000, *, window: int = 1, ret: bool = True) -> Task:
    """Receive a request, and return it."""
    reply_to = f"!/conn/{connection}/ret/{uid}" if ret else ""
    envelope = Envelope("count", uid, reply_to=reply_to, window=window)
    dispatcher.receive(Message(b"rpc/count", envelope.encode(), caller(user, connection)), NOW)
    task, _ = dispatcher.next(NOW)
    assert task is not None
    return task


def grant(dispatcher: Dispatcher, window: int, uid: str = "u", connection: int = 7, command: str = "count") -> None:
    envelope = Envelope(command, uid, expires_seconds=1, sent_at=1, more=1, window=window)
    key = b"!/conn/3/rpc/" + command.encode()
    assert dispatcher.receive(Message(key, envelope.encode(), caller(connection=connection)), NOW) == b""


@pytest.fixture
def dispatcher() -> Dispatcher:
    made = Dispatcher()
    made.add("count", lambda request: make_parts(), None)
    made.add("other", lambda request: make_parts(), None)
    return made


def sent(packet: bytes) -> Envelope:
    parsed = parse_packet(packet)
    assert isinstance(parsed, Publish)
    return parse_envelope(parsed.payload)


def test_parts_are_numbered_and_the_end_follows(dispatcher: Dispatcher) -> None:
    task = asked(dispatcher, window=5)
    stream = dispatcher.streams.open(task, parts())
    found = [sent(stream.part(each)) for each in ("a", b"b", None)]
    assert [(each.part, each.more, each.data) for each in found] == [(1, 1, b"a"), (2, 1, b"b"), (3, 1, b"")]
    end = sent(dispatcher.streamed(task, stream.sent))
    assert (end.part, end.more, end.data, end.error) == (4, 0, b"", "")
    assert dict(dispatcher.counts) == {"requests": 1, "answered": 1}


def test_a_grant_is_that_of_the_caller_of_this_command(dispatcher: Dispatcher) -> None:
    """User B has learned the uid of a stream of user A."""
    stream = dispatcher.streams.open(asked(dispatcher), parts())
    stream.part("a")
    for window, place in ((9, {"connection": 8}), (9, {"uid": "v"}), (9, {"command": "other"})):
        grant(dispatcher, window, **place)
    assert not stream.may_send()
    assert dict(dispatcher.counts) == {"requests": 1, "stray_grants": 3}
    grant(dispatcher, 2)
    assert stream.may_send()


def test_grants_only_grow_and_not_far(dispatcher: Dispatcher) -> None:
    stream = dispatcher.streams.open(asked(dispatcher, window=1 << 53), parts())
    assert stream.granted == MAX_WINDOW
    stream.part("a")
    grant(dispatcher, 1)
    assert stream.granted == MAX_WINDOW
    grant(dispatcher, 1 << 53)
    assert stream.granted == MAX_WINDOW + 1


def test_a_flood_of_grants_leaves_nothing_behind(dispatcher: Dispatcher) -> None:
    for number in range(1_000):
        grant(dispatcher, 5, f"{number}", number)
    assert dict(dispatcher.counts) == {"stray_grants": 1_000}
    assert (len(dispatcher.streams), len(dispatcher.live), len(dispatcher._seen)) == (0, 0, 0)


@pytest.mark.parametrize("how", ["no window", "no response"])
def test_a_caller_that_accepts_no_parts(dispatcher: Dispatcher, how: str) -> None:
    task = asked(dispatcher, window=0 if how == "no window" else 5, ret=how == "no window")
    with pytest.raises(ServiceError, match=r"count streams its response: call it with stream\(\)"):
        dispatcher.streams.open(task, parts())
    assert len(dispatcher.streams) == 0


def test_a_remote_host_cannot_receive_a_stream(dispatcher: Dispatcher) -> None:
    task = asked(dispatcher, window=0)
    remote = replace(task, request=replace(task.request, source=1002))
    with pytest.raises(ServiceError, match=r"^count streams its response: remote hosts cannot receive streams$"):
        dispatcher.streams.open(remote, parts())


def test_each_user_and_each_host_has_its_own_limit(dispatcher: Dispatcher) -> None:
    opened = [dispatcher.streams.open(asked(dispatcher, f"{number}"), parts()) for number in range(STREAMS_PER_USER)]
    with pytest.raises(ServiceError, match="busy: 64 streams of user 1000 are open"):
        dispatcher.streams.open(asked(dispatcher, "more"), parts())
    dispatcher.streams.open(asked(dispatcher, "u", 8, 1001), parts())
    dispatcher.streams.close(opened[0])
    dispatcher.streams.open(asked(dispatcher, "again"), parts())


def test_all_ids_of_a_user_have_the_streams_of_one_user(dispatcher: Dispatcher) -> None:
    dispatcher.charged = {100_001: 1000, 1000: 1000, 1001: 1001}.__getitem__
    for number in range(STREAMS_PER_USER):
        dispatcher.streams.open(asked(dispatcher, f"{number}", user=100_001), parts())
    with pytest.raises(ServiceError, match="busy: 64 streams of user 1000 are open"):
        dispatcher.streams.open(asked(dispatcher, "more"), parts())
    dispatcher.streams.open(asked(dispatcher, "u", 8, 1001), parts())


def test_parties_take_turns(dispatcher: Dispatcher) -> None:
    opened = [dispatcher.streams.open(asked(dispatcher, uid, connection, user, window=9), parts()) for uid, connection, user in
              [("a", 7, 1000), ("b", 7, 1000), ("c", 7, 1000), ("d", 8, 1001)]]  # fmt: skip
    for stream in opened:
        dispatcher.streams.put(stream)
    order: list[str] = []
    for _ in range(8):
        stream_or_none = dispatcher.streams.next()
        assert stream_or_none is not None
        order.append(stream_or_none.task.request.uid)
        dispatcher.streams.put(stream_or_none)
    assert order == ["a", "d", "b", "d", "c", "d", "a", "d"]


def test_a_stream_that_waits_has_no_turn_until_it_is_woken(dispatcher: Dispatcher) -> None:
    task = asked(dispatcher)
    stream = dispatcher.streams.open(task, parts())
    stream.on_wake = lambda: dispatcher.streams.put(stream)
    stream.part("a")
    dispatcher.streams.put(stream)
    assert dispatcher.streams.next() is None
    grant(dispatcher, 2)
    assert dispatcher.streams.next() is stream
    grant(dispatcher, 3)
    assert not dispatcher.streams.is_ready  # it has its turn now
    dispatcher.streams.put(stream)
    dispatcher.streams.close(stream)
    assert not dispatcher.streams.is_ready


def test_after_a_loss_all_streams_fail(dispatcher: Dispatcher) -> None:
    session = Session()
    dispatcher.watch = CallerWatch(session, session.new_inbox([b"rpc/count"]), dispatcher.live)
    stream = dispatcher.streams.open(asked(dispatcher), parts())
    stream.on_wake = lambda: dispatcher.streams.put(stream)
    stream.part("a")
    dispatcher.streams.put(stream)
    dispatcher.handle(Gap(5), NOW)
    assert dispatcher.streams.next() is stream
    with pytest.raises(ServiceError, match="the bus discarded messages to the service"):
        stream.may_send()


class Caller:
    """Reads one stream with a window, in any order of events, and checks each part."""

    def __init__(self, stream: ServiceStream, window: int) -> None:
        self.stream = stream
        self.window = window
        self.taken = 0


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=200), st.integers(1, 20))
def test_a_stream_never_stops_for_a_caller_that_reads_and_never_runs_ahead(steps: list[tuple[int, bool]], window: int) -> None:
    """Whatever the order of parts, grants that overtake or repeat, and turns."""
    dispatcher = Dispatcher()
    dispatcher.add("count", lambda request: make_parts(), None)
    task = asked(dispatcher)
    reader = Caller(dispatcher.streams.open(task, parts()), window)
    stream = reader.stream
    stream.on_wake = lambda: dispatcher.streams.put(stream)
    dispatcher.streams.put(stream)
    granted = 1
    for count, repeats in steps:
        for _ in range(count):
            ready = dispatcher.streams.next()
            if ready is None:
                assert stream.sent == stream.granted
                break
            assert ready.may_send()
            assert sent(ready.part("x")).part == ready.sent <= granted
            dispatcher.streams.put(ready)
        reader.taken = stream.sent
        if repeats:
            grant(dispatcher, granted)
        granted = reader.taken + reader.window
        grant(dispatcher, granted)
        assert dispatcher.streams.is_ready
        assert stream.sent <= stream.granted <= granted


def test_what_is_a_stream() -> None:
    async def asynchronous(_: Request) -> bytes:
        return b""

    coroutine = asynchronous(Request("c", b"", caller(), "u", None))
    assert is_stream(make_parts())
    assert not any(is_stream(each) for each in (b"", None, "x", ["a"], coroutine))
    coroutine.close()
