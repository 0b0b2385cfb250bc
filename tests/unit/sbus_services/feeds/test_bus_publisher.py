"""The publisher on a fake bus: how it reports each kind of item."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import cast

from sbus import Bus, Disconnected, ErrorCode, Gap, Item, Message, Reconnected, RemoteRefusal, Subscription, TimedOut
from sbus_services.feeds.bus_publisher import BusActivity, BusPublisher, LogThrottle

REQUEST = Message(b"net/request", b"")


class FakeBus:
    """A bus and its subscription in one; a None in its items disconnects it."""

    def __init__(self, *items: Item | RemoteRefusal | None) -> None:
        self.items = deque(items)
        self.is_away = False
        self.on_refused: Callable[[RemoteRefusal], object] = list[RemoteRefusal]().append
        self.waits: list[float | None] = []
        self.published: list[tuple[str, bytes]] = []

    def fileno(self) -> int:
        if self.is_away:
            raise Disconnected("here")
        return 7

    def receive(self, timeout: float | None) -> Item:
        self.waits.append(timeout)
        if not self.items:
            assert timeout == 0, "this would wait indefinitely"
            raise TimedOut("receiving", 0)
        item = self.items.popleft()
        if item is None:
            self.is_away = True
            raise TimedOut("receiving", 0)
        self.is_away = False
        if isinstance(item, RemoteRefusal):
            self.on_refused(item)
            return self.receive(timeout)
        return item

    def publish(self, key: str, payload: bytes) -> None:
        self.published.append((key, payload))

    def close(self) -> None:
        self.is_away = True


def outlet_on(bus: FakeBus, said: list[str] | None = None) -> BusPublisher:
    return BusPublisher(cast("Bus", bus), cast("Subscription", bus), ([] if said is None else said).append)


def test_nothing_came() -> None:
    assert outlet_on(FakeBus()).activity() == BusActivity()


def test_requests_are_counted_and_so_are_those_that_were_lost() -> None:
    assert outlet_on(FakeBus(REQUEST, Gap(40), REQUEST)).activity() == BusActivity(requests=42)
    assert outlet_on(FakeBus(Gap(0))).activity() == BusActivity(requests=1)


def test_reconnection_is_reported() -> None:
    assert outlet_on(FakeBus(Reconnected(3, 1.5))).activity() == BusActivity(reconnected=True)


def test_the_feed_waits_for_a_bus_that_stops() -> None:
    bus = FakeBus(None, Reconnected(3, 1.5), REQUEST)
    assert outlet_on(bus).activity() == BusActivity(requests=1, reconnected=True)
    assert bus.waits == [0, None, 0, 0]


def test_flood_of_requests_leaves_time_for_the_kernel() -> None:
    bus = FakeBus(*[REQUEST] * 1000)
    activity = outlet_on(bus).activity()
    assert activity.has_more
    assert activity.requests == 1000 - len(bus.items) < 1000


def test_refusals_are_counted_and_logged_less_and_less_often() -> None:
    said: list[str] = []
    bus = FakeBus(*[RemoteRefusal(ErrorCode.EPERM, "not for you")] * 120)
    assert outlet_on(bus, said).activity() == BusActivity(refused=120)
    assert said == [f"the bus refused a packet: EPERM not for you ({count} so far)" for count in (1, 10, 100)]


def test_descriptor_of_a_bus_that_is_away() -> None:
    bus = FakeBus()
    publisher = outlet_on(bus)
    assert publisher.fileno() == 7
    publisher.close()
    assert publisher.fileno() is None


def test_publish() -> None:
    bus = FakeBus()
    outlet_on(bus).publish("net/link/lo", b"{}")
    assert bus.published == [("net/link/lo", b"{}")]


def test_throttle_logs_powers_of_ten() -> None:
    throttle = LogThrottle()
    reported = [throttle.count() for _ in range(1500)]
    assert [count for count in reported if count is not None] == [1, 10, 100, 1000]
    assert reported.index(100) == 99
