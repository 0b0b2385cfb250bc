"""The connection to the bus: what it demands, what it hears, and how it comes back."""

from __future__ import annotations

import select
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from sbus.errors import NoBus
from sbus.protocol.packets import join_batch
from sbus_archive.recorder.tap import ActiveSubscriptions, BusLost, BusRestored, LostPackets, RecorderTap, TapOutput, TapRefusedError
from tests.support.tapped_bus import FEATURES, OWN_ID, TappedBus, message_packet


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[TappedBus]:
    with TappedBus(tmp_path / "bus") as bus:
        yield bus


def opened(bus: TappedBus, *early: bytes, clock: Callable[[], float] | None = None) -> RecorderTap:
    tap = RecorderTap(str(bus.path), b"net/") if clock is None else RecorderTap(str(bus.path), b"net/", clock=clock)
    accepting = bus.accept_soon(*early)
    tap.open()
    accepting.join(30)
    return tap


def receive(tap: RecorderTap, count: int) -> list[TapOutput]:
    """Return the next *count* things that are received."""
    received: list[TapOutput] = []
    while True:
        # Before the first wait: the socket has nothing to read if all came while the tap was opened.
        received += tap.receive(100)
        if len(received) >= count:
            break
        if (fd := tap.fileno()) is not None:
            select.select([fd], [], [], 30)
    return received


def test_it_demands_its_pattern_and_knows_its_number(bus: TappedBus) -> None:
    with closing(opened(bus)) as tap:
        assert bus.demand == b"CMSG tap/on\0net/"
        assert bus.wants_batches
        assert tap.own_id == OWN_ID
        assert tap.address == str(bus.path)
        assert tap.due is None


def test_it_knows_since_when_older_connections_are_there(bus: TappedBus) -> None:
    bus.pages = [b'{"connections":[{"id":1,"since":5.5}],"next":1}', b'{"connections":[{"id":3,"since":7},{"id":"x"}],"next":null}']
    with closing(opened(bus, message_packet(b"early"))) as tap:
        assert not bus.pages
        assert [tap.since(conn, 9) for conn in (1, 2, 3, OWN_ID + 1)] == [5_500_000_000, None, 7_000_000_000, 9]
        assert receive(tap, 2) == [message_packet(b"early")] * 2
    # A bus that does not list connections does not say how old they are.
    with closing(opened(bus)) as tap:
        assert [tap.since(conn, 9) for conn in (1, OWN_ID + 1)] == [None, 9]


def test_it_knows_the_units_of_older_connections(bus: TappedBus) -> None:
    web = b'{"id":1,"since":5,"unit":"user@7.service","slice":"user-7.slice","user_unit":"web.service"}'
    bus.pages = [b'{"connections":[%b,{"id":2,"since":5,"unit":null},{"id":3,"since":5}],"next":null}' % web]
    with closing(opened(bus)) as tap:
        assert [tap.unit(conn) for conn in (1, 2, 3, 4)] == ["user@7.service/web.service", None, None, None]
    bus.pages = [b'{"connections":[],"next":null}']
    with closing(opened(bus)) as tap:
        assert tap.unit(1) is None


def test_it_receives_only_the_tap(bus: TappedBus) -> None:
    with closing(opened(bus, message_packet(b"early"))) as tap:
        bus.tell(b"MSG a\0b", message_packet(b"a"), b"CMSG !/bus/error\0EPERM something", b"CMSG !/bus/lost\x0012", message_packet(b"b"))
        assert receive(tap, 4) == [message_packet(b"early"), message_packet(b"a"), LostPackets(12), message_packet(b"b")]


@pytest.mark.parametrize(("payload", "count"), [(b"5", 5), (b"0", None), (b"", None), (b"x", None), (b"9" * 30, None)])
def test_a_loss_is_a_number_or_unknown(bus: TappedBus, payload: bytes, count: int | None) -> None:
    with closing(opened(bus)) as tap:
        bus.tell(b"CMSG !/bus/lost\0" + payload)
        assert receive(tap, 1) == [LostPackets(count)]


def test_it_receives_at_most_the_requested_number(bus: TappedBus) -> None:
    with closing(opened(bus)) as tap:
        bus.tell(*(message_packet(b"%d" % number) for number in range(5)))
        assert [len(list(tap.receive(2))) for _ in range(4)] == [2, 2, 1, 0]


def test_it_splits_batches_from_the_first_packet_on(bus: TappedBus) -> None:
    with closing(opened(bus, join_batch([message_packet(b"early"), b"MSG a\0b", message_packet(b"on time")]))) as tap:
        bus.tell(join_batch([message_packet(b"a"), b"CMSG !/bus/lost\x0012", message_packet(b"b")]), message_packet(b"c"))
        early, one, two = message_packet(b"early"), message_packet(b"on time"), message_packet(b"a")
        assert receive(tap, 6) == [early, one, two, LostPackets(12), message_packet(b"b"), message_packet(b"c")]


def test_a_batch_is_received_completely_even_over_the_requested_number(bus: TappedBus) -> None:
    with closing(opened(bus)) as tap:
        bus.tell(join_batch([message_packet(b"%d" % number) for number in range(5)]), message_packet(b"5"))
        assert [len(list(tap.receive(2))) for _ in range(3)] == [5, 1, 0]


def test_a_fault_in_a_batch_is_an_unknown_loss_after_the_packets_before_it(bus: TappedBus) -> None:
    faulty = join_batch([message_packet(b"a"), message_packet(b"b")])[:-1]
    with closing(opened(bus, b"CMSG !/batch")) as tap:
        bus.tell(faulty, message_packet(b"c"))
        assert receive(tap, 4) == [LostPackets(None), message_packet(b"a"), LostPackets(None), message_packet(b"c")]


def test_the_end_of_the_bus_is_reported_and_a_new_one_is_found(bus: TappedBus) -> None:
    now = 100.0
    with closing(opened(bus, clock=lambda: now)) as tap:
        bus.hang_up()
        assert receive(tap, 1) == [BusLost("the bus closed the connection")]
        assert tap.fileno() is None
        assert tap.due is not None
        now += 0.5
        accepting = bus.accept_soon(message_packet(b"new"))
        while tap.fileno() is None:
            received = list(tap.receive(100))
            now += 1.0
        accepting.join(30)
        assert isinstance(received[0], BusRestored)
        assert received[0].duration_ns >= 0.5e9
        assert received[1:] == [message_packet(b"new")]


def test_while_the_bus_is_away_it_is_tried_when_due_and_not_before(bus: TappedBus) -> None:
    now = 100.0
    with closing(opened(bus, clock=lambda: now)) as tap:
        bus.close()
        receive(tap, 1)
        dues = []
        for _ in range(20):
            assert list(tap.receive(100)) == []
            assert tap.due is not None
            dues.append(tap.due - now)
            now = tap.due
        assert dues[-1] <= 5.0
        assert max(dues) > 1.0


def test_the_end_follows_all_records(bus: TappedBus) -> None:
    with closing(opened(bus)) as tap:
        bus.tell(message_packet(b"before"))
        tap.request_end()
        assert receive(tap, 1) == [message_packet(b"before")]
        assert (tap.has_ended, tap.fileno() is None) == (False, False)
        bus.end()
        bus.tell(message_packet(b"behind"))
        assert receive(tap, 1) == [message_packet(b"behind")]
        assert (tap.has_ended, tap.fileno() is None) == (True, False)
        bus.hang_up()
        tap.request_end()  # a stopped bus is not asked


def test_the_answer_to_an_earlier_request_for_the_end_is_not_that_to_the_last_one(bus: TappedBus) -> None:
    with closing(opened(bus)) as tap:
        tap.request_end()
        tap.request_end()
        bus.end()
        bus.tell(message_packet(b"between"))
        assert receive(tap, 1) == [message_packet(b"between")]
        assert not tap.has_ended
        bus.end()
        bus.tell(message_packet(b"behind"))
        assert receive(tap, 1) == [message_packet(b"behind")]
        assert tap.has_ended


ONE, TWO = {"id": 1, "pattern": "a"}, {"id": 2, "pattern": "b"}


@pytest.fixture
def knowing(tmp_path: Path) -> Iterator[TappedBus]:
    """A bus that reports subscriptions."""
    with TappedBus(tmp_path / "knowing", features=FEATURES + b"\nsubscriptions") as bus:
        yield bus


def listening(bus: TappedBus, pattern: bytes = b"") -> RecorderTap:
    tap = RecorderTap(str(bus.path), pattern)
    accepting = bus.accept_soon()
    tap.open()
    accepting.join(30)
    return tap


def test_it_reads_subscriptions_page_by_page(knowing: TappedBus) -> None:
    with closing(listening(knowing)) as tap:
        knowing.answer_question([ONE], "1/61")
        knowing.tell(message_packet(b"between"))
        assert receive(tap, 2) == [ActiveSubscriptions((ONE,)), message_packet(b"between")]
        knowing.answer_question([TWO])
        assert receive(tap, 1) == [ActiveSubscriptions((TWO,))]
        assert knowing.asked == [b"", b"1/61"]


def test_after_a_loss_it_asks_again_and_ignores_earlier_replies(knowing: TappedBus) -> None:
    with closing(listening(knowing)) as tap:
        knowing.answer_question([ONE], "1/61")
        knowing.tell(b"CMSG !/bus/lost\x003")
        assert receive(tap, 2) == [ActiveSubscriptions((ONE,)), LostPackets(3)]
        knowing.answer_question([TWO])
        knowing.tell(message_packet(b"behind"))
        assert receive(tap, 1) == [message_packet(b"behind")]
        knowing.answer_question([ONE])
        assert receive(tap, 1) == [ActiveSubscriptions((ONE,))]
        assert knowing.asked == [b"", b"1/61", b""]


@pytest.mark.parametrize("answer", [b"", b"[]", b"{}", b"7", b"{", b"\xff", b'{"after":"","subscriptions":7,"next":null}', b"[" * 20_000])
def test_an_empty_reply_is_not_the_end(knowing: TappedBus, answer: bytes) -> None:
    with closing(listening(knowing)) as tap:
        knowing.tell(b"CMSG !/bus/subscriptions\0" + answer, message_packet(b"a"))
        assert receive(tap, 1) == [message_packet(b"a")]


def test_an_old_bus_and_a_partial_tap_are_not_asked_for_subscriptions(bus: TappedBus, knowing: TappedBus) -> None:
    for tap in (listening(bus), listening(knowing, b"net/")):
        with closing(tap):
            tap.request_end()
    for each in (bus, knowing):
        assert each.next_question() == b"CMSG !/bus/ping\0end"


def test_a_missing_bus_is_reported(tmp_path: Path) -> None:
    with pytest.raises(NoBus, match=r"cannot connect to .*/nowhere"):
        RecorderTap(str(tmp_path / "nowhere"), b"").open()


@pytest.mark.parametrize(
    ("features", "refusal", "says"),
    [
        (
            b"ping\ntap",
            b"EPERM tap/on is for owners",
            r"cannot tap the bus at \S+: EPERM tap/on is for owners\. Allow this user with",
        ),
        (b"ping\ntapdance", None, "cannot tap the bus at .*: it is too old to have a tap"),
        (b"", None, "too old to have a tap"),
    ],
)
def test_a_bus_that_denies_the_tap_is_reported(tmp_path: Path, features: bytes, refusal: bytes | None, says: str) -> None:
    with TappedBus(tmp_path / "bus", features=features, refusal=refusal) as bus:
        bus.accept_soon()
        tap = RecorderTap(str(bus.path), b"")
        with pytest.raises(TapRefusedError, match=says) as caught:
            tap.open()
        assert "\n" not in str(caught.value)
        assert tap.fileno() is None


def test_a_bus_that_disconnects_immediately_is_not_a_bus(bus: TappedBus, tmp_path: Path) -> None:
    import threading

    def accept_and_close() -> None:
        client, _ = bus._listener.accept()
        client.close()

    thread = threading.Thread(target=accept_and_close)
    thread.start()
    with pytest.raises(NoBus):
        RecorderTap(str(bus.path), b"").open()
    thread.join(30)
