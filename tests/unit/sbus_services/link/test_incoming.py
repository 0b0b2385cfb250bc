"""Numbers of one host: gaps, repetitions and the end of flows."""

from __future__ import annotations

from collections.abc import Iterable

from sbus.protocol.packets import BATCH_HEAD, MAX_BATCH_BYTES, parse_batch
from sbus_services.link import incoming
from sbus_services.link.blob_tickets import BlobTickets
from sbus_services.link.counters import HostCounters
from sbus_services.link.frames import Data, Line, Tail
from sbus_services.link.incoming import Incoming
from sbus_services.link.rules import Import, Rules
from tests.support.link_bodies import run_of

LINE = Line(b"a", b"net/")


class _Deliveries:
    def __init__(self) -> None:
        self.events: list[bytes | int] = []
        self.batches = 0
        self.now = 0.0
        self.clients = 1

    def publish(self, body: bytes, count: int) -> None:
        assert len(BATCH_HEAD) + len(body) <= MAX_BATCH_BYTES
        packets = list(parse_batch(body, 0))
        assert len(packets) == count
        self.batches += 1
        self.events += [packet.split(b"\0", 2)[2][:8] for packet in packets]

    def report_lost(self, lines: Iterable[Line], count: int) -> None:
        assert list(lines) == [LINE]
        self.events.append(count)

    def moment(self) -> tuple[float, int]:
        return self.now, self.clients


def _incoming(served: bool = True) -> tuple[Incoming, _Deliveries, HostCounters]:
    deliveries, counters = _Deliveries(), HostCounters()
    made = Incoming(
        Rules("R", "b", imports=(Import(b""),)),
        "a",
        lambda key: [LINE] if key.startswith(b"net/") else [],
        deliveries,
        counters,
        tickets=BlobTickets(lambda: 0.0),
    )
    if served:
        made.applied([LINE], 1, 0)
    return made, deliveries, counters


def _data(made: Incoming, flow: int, number: int, *payloads: bytes) -> None:
    made.data(Data(1, flow, number, len(payloads)), [run_of(b"net/x", *payloads)], direct=False)


def test_what_is_repeated_is_dropped_also_a_part_of_a_frame() -> None:
    made, deliveries, counters = _incoming()
    _data(made, 1, 1, b"1", b"2")
    _data(made, 1, 1, b"1", b"2")
    _data(made, 1, 2, b"2", b"3")
    _data(made, 1, 0, b"0")
    assert (deliveries.events, counters.duplicates) == ([b"1", b"2", b"3"], 4)


def test_a_message_that_is_too_late_stays_lost() -> None:
    made, deliveries, counters = _incoming()
    _data(made, 1, 2, b"2")
    _data(made, 1, 1, b"1")
    assert (deliveries.events, counters.lost, counters.duplicates) == ([1, b"2"], 1, 1)


def test_the_end_of_a_flow_is_found_by_the_heartbeat() -> None:
    made, deliveries, _ = _incoming()
    _data(made, 1, 1, b"1")
    made.heartbeat(1, 0, 1, iter([Tail(1, 4, b"net/x"), Tail(2, 2, b"net/y"), Tail(3, 9, b"other")]))
    made.heartbeat(2, 0, 1, iter([Tail(1, 4, b"net/x")]))
    assert deliveries.events == [b"1", 5]  # one notice for the same lines


def test_more_missed_heartbeats_than_list_a_flow_are_an_unknown_loss() -> None:
    made, deliveries, _ = _incoming()
    made.heartbeat(1, 0, 1, iter(()))
    made.heartbeat(4, 0, 1, iter(()))
    assert deliveries.events == []
    made.heartbeat(8, 0, 1, iter(()))
    assert deliveries.events == [0]
    _data(made, 1, 1, b"1")
    made.tails("direct", 20, iter(()), first=20)
    made.tails("direct", 24, iter(()), first=20)
    assert deliveries.events == [0, b"1", 0]


def test_a_flow_below_the_floor_has_ended() -> None:
    made, deliveries, counters = _incoming()
    _data(made, 1, 1, b"1")
    made.heartbeat(1, 0, 2, iter(()))
    _data(made, 1, 5, b"5")
    assert (deliveries.events, counters.duplicates) == ([b"1"], 1)


def test_a_new_run_of_the_host_is_an_unknown_loss() -> None:
    made, deliveries, _ = _incoming()
    _data(made, 1, 7, b"7")
    made.reset()
    assert (deliveries.events, made.served) == ([6, b"7", 0], {})


def test_gaps_for_unconfirmed_lines_are_bounded(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(incoming, "MAX_PENDING", 2)
    made, deliveries, _ = _incoming(served=False)
    for flow in range(1, 4):
        _data(made, flow, 3, b"x")
    made.applied([LINE], 2, 0)
    assert deliveries.events == [b"x", b"x", b"x", 2, 0]


def test_an_unknown_loss_is_reported_once_until_a_message_or_a_subscription() -> None:
    made, deliveries, counters = _incoming()
    for _ in range(3):
        made.report_unknown([LINE])
    assert deliveries.events == [0]
    _data(made, 1, 1, b"x")
    for _ in range(2):
        made.report_unknown([LINE])
    deliveries.clients += 1
    for _ in range(2):
        made.report_unknown([LINE])
    made.withdrawn(LINE)
    made.applied([LINE], 1, 0)
    made.report_unknown([LINE])
    deliveries.now += 0.1  # clients may have asked for the present state meanwhile
    made.report_unknown([LINE])
    assert deliveries.events == [0, b"x", 0, 0, 0, 0]
    assert counters.unknown_losses == 5


def test_a_restart_of_the_host_is_reported_at_its_begin_and_at_its_end() -> None:
    """What it publishes before it has confirmed the line again may be missing."""
    made, deliveries, counters = _incoming()
    made.reset()
    assert deliveries.events == [0]
    deliveries.now += 1.0
    made.applied([LINE], 1, 0)
    assert deliveries.events == [0, 0]
    deliveries.now += 1.0
    made.applied([LINE], 2, 0)
    assert counters.unknown_losses == 2


def test_a_withdrawn_line_forgets_its_gaps() -> None:
    made, deliveries, _ = _incoming(served=False)
    _data(made, 1, 3, b"x")
    made.withdrawn(LINE)
    made.applied([LINE], 1, 0)
    assert deliveries.events == [b"x"]


def test_a_long_frame_is_published_in_batches() -> None:
    made, deliveries, counters = _incoming()
    _data(made, 1, 1, *[bytes(5_000)] * 14)
    _data(made, 1, 15, *[b""] * 2_500)
    assert (deliveries.batches, counters.messages) == (5, 2_514)
