"""The blocking bus against one that does as the test says."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from sbus import (
    AsyncBus,
    Bus,
    Closed,
    Disconnected,
    ErrorCode,
    Gap,
    InboxFull,
    Item,
    Message,
    MessagesMissing,
    NoBus,
    Overflow,
    PayloadTooLarge,
    Reconnected,
    RemoteRefusal,
    Replaced,
    TimedOut,
    Unanswered,
    raise_missing,
)
from sbus.reconnection import ReconnectAttempts
from tests.unit.sbus.conftest import WAIT_SECONDS, WHOAMI, FakeBus


def fill(bus: Bus) -> int:
    """Publish until the socket is full, and return how many packets it took. The bus object's time-out must be 0."""
    for count in range(1_000_000):
        try:
            bus.publish("fill", b"%d" % count)
        except TimedOut:
            return count
    raise AssertionError("the socket has no end")


def test_the_life_of_a_client(fake: FakeBus) -> None:
    with Bus.connect(fake.address) as bus:
        assert bus.whoami() == WHOAMI.decode()
        with bus.subscribe("a/*/c", b"net/") as sub:
            bus.publish("a/b/c", "é")
            bus.publish(b"else")
            bus.publish(b"net/x", b"\0\xff")
            assert sub.receive(WAIT_SECONDS) == Message(b"a/b/c", "é".encode())
            assert sub.receive(WAIT_SECONDS) == Message(b"net/x", b"\0\xff")
            assert sub.patterns == ("a/*/c", "net/")
        assert bus.ping() > 0
        assert bus.fileno() > 2
    peer = fake.peer()
    assert peer.patterns == []
    assert [packet for packet in peer.received if b"SUB" in packet] == [b"SUB a/*/c", b"SUB net/", b"UNSUB a/*/c", b"UNSUB net/"]
    bus.close()
    with pytest.raises(Closed, match="the bus is closed"):
        bus.publish("a")
    with pytest.raises(Closed):
        bus.fileno()


def test_one_packet_reaches_every_subscription_that_matches(fake: FakeBus) -> None:
    with Bus.connect(fake.address) as bus, bus.subscribe("a/") as one, bus.subscribe("*/b", "a/b") as two, bus.subscribe("c") as three:
        bus.publish("a/b", "x")
        bus.ping()
        assert one.receive(0) == two.receive(0) == Message(b"a/b", b"x")
        for sub in (one, two, three):
            with pytest.raises(TimedOut):
                sub.receive(0)


def test_the_separator_of_an_earlier_revision(fake: FakeBus) -> None:
    with Bus.connect(fake.address, separator=b".") as bus, bus.subscribe("a.*") as one, bus.subscribe("a/*"):
        fake.peer().say(b"MSG a.b\0x")
        assert one.receive(WAIT_SECONDS) == Message(b"a.b", b"x")


def test_iteration_ends_with_what_you_close(fake: FakeBus) -> None:
    with Bus.connect(fake.address) as bus:
        with bus.subscribe("a") as sub:
            bus.publish("a", "1")
            seen = []
            for item in sub:
                seen.append(item)
                sub.close()
            assert seen == [Message(b"a", b"1")]
        other = bus.subscribe("b")
        bus.publish("b", "2")
        bus.ping()
        bus.unsubscribe("b")
        assert list(other) == [Message(b"b", b"2")]
        with pytest.raises(Closed, match="the subscription is closed"):
            other.receive()
        last = bus.subscribe("c")
        bus.publish("c")
        bus.ping()
    assert list(last) == [Message(b"c", b"")]


def test_iteration_in_order_with_gaps_in_place(fake: FakeBus) -> None:
    with Bus.connect(fake.address) as bus, bus.subscribe("a") as sub:
        fake.peer().say(b"MSG a\0001", b"CMSG !/bus/lost\0007", b"MSG a\0002", b"MSG a\0003", b"CMSG !/bus/lost\0001")
        items = sub.items()
        assert [next(items) for _ in range(5)] == [Message(b"a", b"1"), Gap(7), Message(b"a", b"2"), Message(b"a", b"3"), Gap(1)]
        assert bus.statistics.lost_remote == 8


def test_a_refused_pattern_undoes_the_others(fake: FakeBus) -> None:
    fake.refusals[b"!/x"] = b"EPERM reserved"
    with Bus.connect(fake.address) as bus:
        with pytest.raises(RemoteRefusal) as caught:
            bus.subscribe("a", "!/x", "b")
        assert (caught.value.code, caught.value.words, caught.value.request) == (ErrorCode.EPERM, "reserved", "SUB '!/x'")
        bus.ping()
        assert fake.peer().patterns == []
        with bus.subscribe("a") as sub:
            bus.publish("a", "still alive")
            assert sub.receive(WAIT_SECONDS) == Message(b"a", b"still alive")


def test_a_refusal_that_disconnects_says_both(fake: FakeBus) -> None:
    fake.refusals[b"!/cred/0/0/0/x"] = b"EACCES not yours"
    with Bus.connect(fake.address) as bus:
        with pytest.raises(RemoteRefusal, match="EACCES not yours"):
            bus.subscribe("!/cred/0/0/0/x")
        with pytest.raises(Disconnected) as caught:
            bus.ping()
        assert caught.value.refusal is not None
        assert caught.value.refusal.code is ErrorCode.EACCES


def test_a_rejected_publication_is_reported_at_the_next_receive_or_ping(fake: FakeBus) -> None:
    with Bus.connect(fake.address) as bus, bus.subscribe("a") as sub:
        bus.publish("!/event/x")
        with pytest.raises(RemoteRefusal, match="EPERM"):
            bus.ping()
        bus.ping()
        bus.publish("!/event/x")
        assert bus.whoami() == WHOAMI.decode()
        refused: list[RemoteRefusal] = []
        assert bus.on_refused is None
        bus.on_refused = refused.append
        bus.publish("a")
        assert sub.receive(WAIT_SECONDS) == Message(b"a", b"")
        assert [str(refusal) for refusal in refused] == ["the bus refused a packet: EPERM !/event/x is reserved"]


def test_an_exception_of_the_handler_for_refusals_is_raised_by_the_call(fake: FakeBus) -> None:
    with Bus.connect(fake.address) as bus, bus.subscribe("a") as sub:

        def handle(refusal: RemoteRefusal) -> None:
            raise refusal

        bus.on_refused = handle
        for receive in (sub.receive, sub.receive_many, lambda: next(iter(sub)), bus.close):
            bus.publish("!/event/x")
            assert bus.whoami() == WHOAMI.decode()
            with pytest.raises(RemoteRefusal, match="refused a packet: EPERM"):
                receive()
        assert bus.state == "closed"


def test_refusals_are_logged_by_default(fake: FakeBus, caplog: pytest.LogCaptureFixture) -> None:
    with Bus.connect(fake.address) as bus, bus.subscribe("a") as sub:
        for _ in range(5):
            bus.publish("!/event/x")
        assert bus.whoami() == WHOAMI.decode()
        bus.publish("a")
        assert next(iter(sub)) == Message(b"a", b"")
        bus.publish("!/event/x")
        assert bus.whoami() == WHOAMI.decode()
    said = "the bus refused a packet: EPERM !/event/x is reserved"
    assert [(record.name, record.levelname, record.message) for record in caplog.records] == [
        ("sbus", "WARNING", said),
        ("sbus", "WARNING", f"{said} (2 such events so far)"),
        ("sbus", "WARNING", f"{said} (4 such events so far)"),
    ]
    assert bus.statistics.refusals == 6


def test_iteration_yields_messages_alone(fake: FakeBus) -> None:
    missing: list[Item] = []
    with Bus.connect(fake.address) as bus, bus.subscribe("a", on_gap=missing.append) as sub:
        fake.peer().say(
            b"CMSG !/bus/lost\0007", b"MSG a\0001", b"CMSG !/bus/replaced\0002", b"MSG a\0002", b"CMSG !/bus/lost\0000", b"MSG a\0003"
        )
        messages = iter(sub)
        assert [next(messages).payload for _ in range(3)] == [b"1", b"2", b"3"]
    assert missing == [Gap(7), Replaced(2), Gap(0)]


def test_what_is_missing_is_logged_by_default_or_raised(fake: FakeBus, caplog: pytest.LogCaptureFixture) -> None:
    with Bus.connect(fake.address) as bus, bus.subscribe("a") as first:
        peer = fake.peer()
        peer.say(b"CMSG !/bus/lost\0007", b"MSG a\0001")
        assert next(iter(first)).payload == b"1"
        with bus.subscribe("a", on_gap=raise_missing) as second:
            peer.say(b"CMSG !/bus/lost\0000", b"MSG a\0002")
            with pytest.raises(MessagesMissing, match="an unknown number of messages is missing") as caught:
                next(iter(second))
            assert caught.value.item == Gap(0)
            assert next(iter(second)).payload == b"2"
    assert caplog.messages == ["subscription to b'a': 7 messages are missing"]


def test_controls(fake: FakeBus) -> None:
    with Bus.connect(fake.address) as bus:
        assert bus.control("!/bus/stats", "{}") == b"{}"
        with pytest.raises(RemoteRefusal, match="CMSG '!/bus/nothing': ENOSYS"):
            bus.control("!/bus/nothing")
        with pytest.raises(Unanswered, match="tell"):
            bus.control("echo/off")
        bus.tell("echo/off")
        assert bus.ping() > 0
        peer = fake.peer()
        assert b"CMSG echo/off" in peer.received


def test_a_late_answer_is_never_given_to_another_call(fake: FakeBus) -> None:
    with Bus.connect(fake.address) as bus:
        peer = fake.peer()
        bus.ping()
        peer.gate.clear()
        bus._link.timeout = 0.0
        for number in range(3):
            with pytest.raises(TimedOut):
                bus.control("!/bus/stats", b"late %d" % number)
        with pytest.raises(TimedOut):
            bus.ping()
        peer.gate.set()
        bus._link.timeout = WAIT_SECONDS
        assert bus.control("!/bus/stats", b"mine") == b"mine"
        assert bus.ping() > 0


def test_a_subscribe_that_timed_out_is_taken_back(fake: FakeBus) -> None:
    with Bus.connect(fake.address) as bus:
        peer = fake.peer()
        bus.ping()
        peer.gate.clear()
        bus._link.timeout = 0.0
        with pytest.raises(TimedOut):
            bus.subscribe("a", "b")
        peer.gate.set()
        bus._link.timeout = WAIT_SECONDS
        bus.ping()
        bus.ping()
        assert peer.patterns == []
        assert [packet for packet in peer.received if b"SUB" in packet] == [b"SUB a", b"SUB b", b"UNSUB a", b"UNSUB b"]


def test_calls_that_time_out_on_a_full_socket_leave_nothing_behind(fake: FakeBus) -> None:
    with Bus.connect(fake.address) as bus:
        peer = fake.peer()
        peer.gate.clear()
        bus._link.timeout = 0.0
        count = fill(bus)
        for _ in range(20):
            with pytest.raises(TimedOut):
                bus.ping()
        assert len(bus._session.outgoing) < 4
        peer.gate.set()
        bus._link.timeout = WAIT_SECONDS
        bus.publish("fill", "last")
        bus.ping()
        published = [packet.partition(b"\0")[2] for packet in peer.received if packet.startswith(b"MSG")]
        assert published == [*(b"%d" % number for number in range(count)), b"last"]


def test_a_payload_too_large_for_the_socket(fake: FakeBus) -> None:
    with Bus.connect(fake.address) as bus:
        with socket.socket(fileno=socket.dup(bus.fileno())) as same:
            same.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8_192)
            limit = same.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) - 32
        with pytest.raises(PayloadTooLarge) as caught:
            bus.publish("k", b"x" * limit)
        assert (caught.value.size, caught.value.limit) == (limit + 6, limit)
        bus.publish("k", b"x" * (limit - 6))
        assert bus.ping() > 0


def test_block_stops_reading_and_says_whom_it_waits_for(fake: FakeBus) -> None:
    with Bus.connect(fake.address, queue_packets=2) as bus, bus.subscribe("slow") as slow, bus.subscribe("other") as other:
        peer = fake.peer()
        peer.say(*(b"MSG slow\0%d" % number for number in range(4)), b"MSG other\0x")
        with pytest.raises(InboxFull) as caught:
            other.receive(WAIT_SECONDS)
        assert (caught.value.patterns, caught.value.packets) == (("slow",), 2)
        with pytest.raises(InboxFull):
            bus.ping()
        assert [slow.receive(0) for _ in range(4)] == [Message(b"slow", b"%d" % number) for number in range(4)]
        assert other.receive(WAIT_SECONDS) == Message(b"other", b"x")
        assert bus.ping() > 0
        assert bus.statistics.lost_local == 0


def test_discard_goes_on_and_counts(fake: FakeBus) -> None:
    with (
        Bus.connect(fake.address, queue_packets=2, overflow=Overflow.DISCARD) as bus,
        bus.subscribe("slow") as slow,
        bus.subscribe("other") as other,
    ):
        peer = fake.peer()
        peer.say(*(b"MSG slow\0%d" % number for number in range(5)), b"MSG other\0x")
        assert other.receive(WAIT_SECONDS) == Message(b"other", b"x")
        assert slow.receive(0) == Message(b"slow", b"0")
        peer.say(b"MSG slow\0last")
        bus.ping()
        assert [slow.receive(0) for _ in range(3)] == [Message(b"slow", b"1"), Gap(3), Message(b"slow", b"last")]
        assert bus.statistics.lost_local == 3


def test_closing_a_full_subscription_lets_the_others_go_on(fake: FakeBus) -> None:
    with Bus.connect(fake.address, queue_packets=1) as bus, bus.subscribe("other") as other:
        with bus.subscribe("slow"):
            fake.peer().say(b"MSG slow\0", b"MSG slow\0", b"MSG other\0x")
            with pytest.raises(InboxFull):
                other.receive(WAIT_SECONDS)
        assert other.receive(WAIT_SECONDS) == Message(b"other", b"x")


def test_what_came_before_the_end_is_received_and_then_the_reason(fake: FakeBus) -> None:
    with Bus.connect(fake.address) as bus, bus.subscribe("a") as sub:
        peer = fake.peer()
        peer.say(b"MSG a\0001", b"CMSG !/bus/error\0ENOBUFS queue is full")
        peer.hang_up()
        assert sub.receive(WAIT_SECONDS) == Message(b"a", b"1")
        for _ in range(2):
            with pytest.raises(Disconnected, match="ENOBUFS queue is full") as caught:
                sub.receive(WAIT_SECONDS)
            assert caught.value.address == fake.address
        with pytest.raises(Disconnected, match="ENOBUFS"):
            bus.publish("a")


def test_a_reset_does_not_hide_the_reason() -> None:
    """The kernel reports that the peer left packets unread before it gives what the peer had sent."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, Bus.connect(f"/dev/fd/{ours.fileno()}") as bus:
        bus.publish("unread")
        theirs.send(b"CMSG !/bus/error\0EPROTO bad packet")
        theirs.close()
        with pytest.raises(Disconnected, match="EPROTO bad packet"):
            bus.publish("a")


def test_a_bus_that_speaks_nonsense_is_left(fake: FakeBus) -> None:
    with Bus.connect(fake.address) as bus, bus.subscribe("a") as sub:
        fake.peer().say(b"HELLO world")
        with pytest.raises(Disconnected) as caught:
            next(iter(sub))
        assert caught.value.fault is not None
        assert "HELLO" in caught.value.fault


def test_calls_in_flight_learn_of_the_end(fake: FakeBus) -> None:
    with Bus.connect(fake.address) as bus:
        peer = fake.peer()
        peer.gate.clear()
        threading.Thread(target=peer.hang_up).start()
        with pytest.raises(Disconnected):
            bus.control("!/bus/stats", b"x")


def test_it_is_made_by_connect() -> None:
    for made in (Bus, AsyncBus):
        with pytest.raises(TypeError, match=rf"use {made.__name__}\.connect\(\) instead of {made.__name__}\(\)"):
            made()


def test_a_bus_that_does_not_respond_fails_connecting(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent:
        silent.bind(str(tmp_path / "silent"))
        silent.listen()
        with pytest.raises(TimedOut, match=r"the response of the bus at .*silent took longer than 0\.01 s"):
            Bus.connect(str(tmp_path / "silent"), timeout=0.01)
        silent.accept()[0].close()

        def hang_up() -> None:
            silent.accept()[0].close()

        ending = threading.Thread(target=hang_up)
        ending.start()
        with pytest.raises(NoBus, match="silent: the bus closed the connection"):
            Bus.connect(str(tmp_path / "silent"))
        ending.join()


def test_no_bus(fake: FakeBus) -> None:
    fake.stop_listening()
    with pytest.raises(NoBus, match="start the bus"):
        Bus.connect(fake.address)


def test_invalid_limits_are_rejected_immediately(fake: FakeBus) -> None:
    with pytest.raises(ValueError, match="invalid queue_packets 0: must be at least 1"):
        Bus.connect(fake.address, queue_packets=0)


def test_reconnecting_subscribes_again_and_says_so(fake: FakeBus) -> None:
    with Bus.connect(fake.address, reconnect=True) as bus, bus.subscribe("a/", "b") as one, bus.subscribe("c") as two:
        fake.peer().hang_up()
        item = one.receive(WAIT_SECONDS)
        assert isinstance(item, Reconnected)
        assert item.attempts == 1
        assert fake.peer().patterns == [b"a/", b"b", b"c"]
        assert two.receive(0) == item
        bus.publish("a/x", "new")
        assert one.receive(WAIT_SECONDS) == Message(b"a/x", b"new")
        statistics = bus.statistics
        assert (statistics.reconnects, statistics.reconnect_attempts) == (1, 1)


def test_reconnecting_goes_on_until_the_bus_is_back(fake: FakeBus, monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[ReconnectAttempts] = []
    attempt = ReconnectAttempts.attempt

    def counted(backoff: ReconnectAttempts, now: float) -> None:
        tries.append(backoff)
        if len(tries) == 3:
            fake.listen()
        attempt(backoff, now)

    with Bus.connect(fake.address, reconnect=True) as bus, bus.subscribe("a") as sub:
        monkeypatch.setattr(ReconnectAttempts, "attempt", counted)
        fake.stop_listening()
        fake.peer().hang_up()
        bus.publish("a", "after")
        item = sub.receive(WAIT_SECONDS)
        assert isinstance(item, Reconnected)
        assert item.attempts == 3
        assert sub.receive(WAIT_SECONDS) == Message(b"a", b"after")
        assert bus.statistics.reconnect_attempts == 3


def test_reconnecting_ends_in_time_and_goes_on_later(fake: FakeBus) -> None:
    with Bus.connect(fake.address, reconnect=True) as bus, bus.subscribe("a") as sub:
        fake.stop_listening()
        fake.peer().hang_up()
        bus._link.timeout = 0.0
        with pytest.raises(TimedOut):
            sub.receive(0.02)
        with pytest.raises(TimedOut):
            bus.ping()
        fake.listen()
        assert isinstance(sub.receive(WAIT_SECONDS), Reconnected)


def test_a_call_in_flight_is_not_repeated(fake: FakeBus) -> None:
    with Bus.connect(fake.address, reconnect=True) as bus:
        peer = fake.peer()
        peer.gate.clear()
        threading.Thread(target=peer.hang_up).start()
        with pytest.raises(Disconnected):
            bus.control("!/bus/stats", b"x")
        assert bus.control("!/bus/stats", b"y") == b"y"
        assert not [packet for packet in fake.peer().received if packet.endswith(b"\0x")]


def test_a_subscription_that_is_refused_again_ends_it(fake: FakeBus) -> None:
    with Bus.connect(fake.address, reconnect=True) as bus, bus.subscribe("a") as sub:
        fake.refusals[b"a"] = b"EACCES not any more"
        fake.peer().hang_up()
        with pytest.raises(Disconnected, match="EACCES not any more"):
            # The connection succeeded, so Reconnected comes first.
            list(sub)
        with pytest.raises(Disconnected, match="EACCES not any more"):
            bus.publish("a")


def test_reading_while_publishing_waits(fake: FakeBus) -> None:
    """A bus may not read from a client that does not read, so publishing must receive packets."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs, Bus.connect(f"/dev/fd/{ours.fileno()}", timeout=WAIT_SECONDS) as bus:
        inbox = bus._session.new_inbox([b"a"])
        bus._session.subscribe(inbox)
        bus._session.outgoing.clear()
        bus._link.timeout = 0.0
        fill(bus)
        theirs.send(b"MSG a\0x")
        with pytest.raises(TimedOut):
            bus.publish("fill")
        with pytest.raises(TimedOut):
            bus.publish("fill")
        assert inbox.take() == Message(b"a", b"x")
