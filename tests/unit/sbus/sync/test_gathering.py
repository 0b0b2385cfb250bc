"""A bus that gathers by itself: which messages leave together, when, and from which thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from sbus import Bus, Disconnected, Message, RemoteRefusal
from sbus.outgoing import POSTED_BYTES, POSTED_SECONDS
from sbus.sync import gathering
from sbus.sync.gathering import TOGETHER_SECONDS, GatheringLink
from tests.unit.sbus.conftest import WAIT_SECONDS, FakeBus, Peer


def link_of(bus: Bus) -> GatheringLink:
    link = bus._link
    assert isinstance(link, GatheringLink)
    return link


class Clock:
    """The time of a link, which passes only when the test says so."""

    def __init__(self, bus: Bus) -> None:
        self.now = 100.0
        link_of(bus).clock = lambda: self.now


def asked(bus: Bus) -> Clock:
    """Let *bus* learn that batches are taken, and stop its clock."""
    with bus.coalesce():
        bus.ping()
    assert bus._session.outgoing.takes_batches
    return Clock(bus)


def numbered(received: list[bytes]) -> list[int]:
    return [int(packet.partition(b"\0")[2]) for packet in received if packet.startswith(b"MSG")]


def wait_until(is_done: Callable[[], bool]) -> None:
    """Wait for what another thread does."""
    end = time.monotonic() + WAIT_SECONDS
    while not is_done():
        assert time.monotonic() < end
        time.sleep(0.001)


def publish(bus: Bus, *numbers: int) -> None:
    for number in numbers:
        bus.publish("a", str(number))


def arrived(peer: Peer, *numbers: int) -> None:
    """Wait until the bus has *numbers*, and nothing else."""
    wait_until(lambda: len(numbered(peer.received)) >= len(numbers))
    assert numbered(peer.received) == list(numbers)


def test_messages_that_closely_follow_another_leave_together(batching: FakeBus) -> None:
    with Bus.connect(batching.address, gather=True) as bus:
        peer = batching.peer()
        clock = asked(bus)
        publish(bus, 0)
        assert not bus._session.outgoing, "the first one leaves at once"
        publish(bus, 1, 2)
        clock.now += TOGETHER_SECONDS * 0.9
        publish(bus, 3)
        assert len(bus._session.outgoing) == 3
        bus.ping()
        assert numbered(peer.received) == [0, 1, 2, 3]
        assert peer.batches == [3]


def test_a_message_that_comes_later_leaves_at_once_after_what_is_gathered(batching: FakeBus) -> None:
    with Bus.connect(batching.address, gather=True) as bus:
        peer = batching.peer()
        clock = asked(bus)
        publish(bus, 0, 1, 2)
        clock.now += TOGETHER_SECONDS * 1.1
        publish(bus, 3)
        assert not bus._session.outgoing
        for number in range(4, 8):
            clock.now += TOGETHER_SECONDS * 1.1
            publish(bus, number)
        arrived(peer, *range(8))
        assert peer.batches == [3]


def test_without_the_option_nothing_is_gathered(batching: FakeBus) -> None:
    with Bus.connect(batching.address) as bus:
        with bus.coalesce():
            bus.ping()
        publish(bus, 0, 1, 2)
        assert not bus._session.outgoing
        assert not isinstance(bus._link, GatheringLink)


@pytest.mark.parametrize("background", [False, True])
def test_what_is_gathered_leaves_without_another_call(batching: FakeBus, *, background: bool) -> None:
    with Bus.connect(batching.address, gather=True, background=background) as bus:
        peer = batching.peer()
        clock = asked(bus)
        publish(bus, 0, 1, 2)
        clock.now += POSTED_SECONDS
        arrived(peer, 0, 1, 2)
        publish(bus, 3)  # long after the others
        publish(bus, 4)
        clock.now += POSTED_SECONDS
        arrived(peer, 0, 1, 2, 3, 4)


def test_it_does_with_the_real_clock(batching: FakeBus) -> None:
    with Bus.connect(batching.address, gather=True) as bus:
        peer = batching.peer()
        publish(bus, *range(100))
        arrived(peer, *range(100))


def test_the_first_messages_ask_the_bus(batching: FakeBus) -> None:
    """Whatever arrives before the response, in whatever packets: all of it, in order."""
    with Bus.connect(batching.address, gather=True) as bus:
        peer = batching.peer()
        Clock(bus)
        publish(bus, 0)
        bus.flush()
        assert peer.received[1:] in ([], [b"MSG a\x000"]), "a program that publishes only once does not ask"
        publish(bus, 1, 2)
        bus.ping()
        bus.ping()
        assert bus._session.outgoing.takes_batches
        assert numbered(peer.received) == [0, 1, 2]


def test_a_bus_that_does_not_take_batches_gets_each_message_at_once(fake: FakeBus) -> None:
    with Bus.connect(fake.address, gather=True) as bus:
        peer = fake.peer()
        Clock(bus)
        publish(bus, 0, 1)
        bus.ping()
        publish(bus, 2, 3)
        assert not bus._session.outgoing
        arrived(peer, 0, 1, 2, 3)
        assert bus.statistics.batchless == 1


@pytest.mark.parametrize("options", [{"batching": False}, {"separator": b"."}])
def test_other_options_keep_their_meaning(batching: FakeBus, options: dict[str, object]) -> None:
    with Bus.connect(batching.address, gather=True, **options) as bus:  # type: ignore[arg-type]
        Clock(bus)
        publish(bus, *range(5))
        assert bool(bus._session.outgoing) == (options != {"batching": False})


def test_each_other_call_comes_after_what_is_gathered(batching: FakeBus) -> None:
    with Bus.connect(batching.address, timeout=WAIT_SECONDS, gather=True) as bus, bus.subscribe("a") as sub:
        peer = batching.peer()
        asked(bus)
        publish(bus, 0, 1)
        assert [sub.receive(WAIT_SECONDS) for _ in range(2)] == [Message(b"a", b"0"), Message(b"a", b"1")]
        publish(bus, 2)
        assert next(iter(sub)) == Message(b"a", b"2")
        publish(bus, 3)
        bus.tell("echo/off")
        publish(bus, 4)
        bus.unsubscribe("a")
        assert not bus._session.outgoing
        publish(bus, 5)
        bus.flush()
        bus.ping()
        order = [packet for packet in peer.received if packet.startswith((b"MSG", b"UNSUB", b"CMSG echo"))]
        assert order == [*(b"MSG a\0%d" % number for number in range(4)), b"CMSG echo/off", b"MSG a\x004", b"UNSUB a", b"MSG a\x005"]


def test_close_sends_what_is_gathered_and_ends_the_thread(batching: FakeBus) -> None:
    bus = Bus.connect(batching.address, gather=True)
    peer = batching.peer()
    asked(bus)
    publish(bus, 0, 1, 2)
    flusher = link_of(bus)._flusher
    assert flusher is not None
    bus.close()
    flusher.join(WAIT_SECONDS)
    assert not flusher.is_alive()
    arrived(peer, 0, 1, 2)
    assert bus.statistics.unsent == 0


def test_close_ends_a_thread_that_waits(batching: FakeBus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "_IDLE_SECONDS", 3600.0)
    with Bus.connect(batching.address, gather=True) as bus:
        asked(bus)
        publish(bus, 0, 1)
        bus.flush()
        wait_until(lambda: link_of(bus)._is_idle)
        flusher = link_of(bus)._flusher
        assert flusher is not None
    flusher.join(WAIT_SECONDS)
    assert not flusher.is_alive()


def test_an_idle_bus_has_no_thread(batching: FakeBus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "_IDLE_SECONDS", 0.001)
    with Bus.connect(batching.address, gather=True) as bus:
        peer = batching.peer()
        clock = asked(bus)
        assert link_of(bus)._flusher is None
        for turn in range(3):
            publish(bus, 2 * turn, 2 * turn + 1)
            flusher = link_of(bus)._flusher
            assert flusher is not None
            clock.now += POSTED_SECONDS
            flusher.join(WAIT_SECONDS)
            assert link_of(bus)._flusher is None
        arrived(peer, *range(6))


def test_a_thread_that_waits_is_woken(batching: FakeBus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "_IDLE_SECONDS", 3600.0)
    with Bus.connect(batching.address, gather=True) as bus:
        peer = batching.peer()
        clock = asked(bus)
        publish(bus, 0, 1)
        flusher = link_of(bus)._flusher
        clock.now += POSTED_SECONDS
        wait_until(lambda: link_of(bus)._is_idle)
        publish(bus, 2, 3)
        clock.now += POSTED_SECONDS
        arrived(peer, 0, 1, 2, 3)
        assert link_of(bus)._flusher is flusher


def test_a_full_socket_stops_neither_the_order_nor_the_thread(batching: FakeBus, monkeypatch: pytest.MonkeyPatch) -> None:
    with Bus.connect(batching.address, gather=True, timeout=WAIT_SECONDS) as bus:
        peer = batching.peer()
        asked(bus)
        monkeypatch.setattr(gathering, "TOGETHER_SECONDS", 3_600.0)  # a pause must not make a publication wait for room
        bus._link.clock = time.monotonic
        peer.gate.clear()
        count, size = 0, POSTED_BYTES // 8
        while bus._session.outgoing.posted_bytes < POSTED_BYTES:
            bus.publish("a", str(count).zfill(size))
            count += 1
        peer.gate.set()
        arrived(peer, *range(count))


def test_what_is_gathered_when_the_bus_ends_is_counted_and_the_next_call_fails(batching: FakeBus) -> None:
    with Bus.connect(batching.address, gather=True) as bus:
        clock = asked(bus)
        publish(bus, 0, 1, 2)
        batching.peer().hang_up()
        clock.now += POSTED_SECONDS
        wait_until(lambda: bus.state == "closed")
        with pytest.raises(Disconnected):
            bus.publish("a")
        assert bus.statistics.unsent == 2


def test_with_reconnect_what_is_gathered_waits_for_the_next_connection(batching: FakeBus) -> None:
    with Bus.connect(batching.address, gather=True, reconnect=True) as bus:
        clock = asked(bus)
        publish(bus, 0, 1, 2)
        first = batching.peer()
        wait_until(lambda: numbered(first.received) == [0])
        first.hang_up()
        clock.now += POSTED_SECONDS
        arrived(batching.peer(), 1, 2)
        assert bus.statistics.unsent == 0


def test_a_refusal_of_what_the_thread_has_sent_is_reported(batching: FakeBus) -> None:
    refusals: list[RemoteRefusal] = []
    with Bus.connect(batching.address, gather=True, background=True) as bus, bus.subscribe("b") as sub:
        bus.on_refused = refusals.append
        peer = batching.peer()
        clock = asked(bus)
        publish(bus, 0)
        bus.publish("!/bus/lost", "1")
        clock.now += POSTED_SECONDS
        wait_until(lambda: b"MSG !/bus/lost\x001" in peer.received)
        bus.publish("b")  # comes back behind the refusal
        assert sub.receive(WAIT_SECONDS) == Message(b"b", b"")
        assert [refusal.words for refusal in refusals] == ["!/bus/lost is reserved"]


def test_a_scope_keeps_its_meaning(batching: FakeBus) -> None:
    with Bus.connect(batching.address, gather=True) as bus:
        peer = batching.peer()
        clock = asked(bus)
        with bus.coalesce():
            for number in range(5):
                clock.now += TOGETHER_SECONDS * 2
                publish(bus, number)
        assert not bus._session.outgoing
        arrived(peer, *range(5))
        assert peer.batches == [5]


def test_an_interpreter_that_ends_starts_no_thread(batching: FakeBus, monkeypatch: pytest.MonkeyPatch) -> None:
    with Bus.connect(batching.address, gather=True) as bus:
        peer = batching.peer()
        asked(bus)

        def refuse(thread: threading.Thread) -> None:
            raise RuntimeError("can't start new thread at interpreter shutdown")

        monkeypatch.setattr(threading.Thread, "start", refuse)
        publish(bus, 0, 1, 2)
        assert not bus._session.outgoing
        arrived(peer, 0, 1, 2)
