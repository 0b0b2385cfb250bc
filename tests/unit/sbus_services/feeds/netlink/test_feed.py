"""The loop of the netlink feed with a fake kernel, bus and clock."""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Iterator

import pytest

from sbus_services.feeds.bus_publisher import BusActivity
from sbus_services.feeds.netlink.entries import Entry, Link
from sbus_services.feeds.netlink.feed import NetlinkFeed
from sbus_services.feeds.netlink.sockets import OverrunError
from tests.support.netlink_captures import captured, notices_of

LO = Link(1, b"lo", "unknown", ("up", "loopback", "running", "lower_up"), 65536, "00:00:00:00:00:00", None, None)
BRIDGE_ADDED = captured()["ip link add 'br*!' type bridge"]


class FakeMonitor:
    """Returns datagrams of a list, and raises the exceptions in it."""

    def __init__(self) -> None:
        self.forged = 0
        self.receive_bytes = 65536
        self.waiting: deque[bytes | OverrunError] = deque()
        self._read_end, self._write_end = os.pipe()
        self.is_open = True

    def put(self, *datagrams: bytes | OverrunError) -> None:
        self.waiting.extend(datagrams)
        os.write(self._write_end, b"x")

    def fileno(self) -> int:
        return self._read_end

    def read(self, most: int) -> Iterator[bytes]:
        for _ in range(min(most, len(self.waiting))):
            item = self.waiting.popleft()
            if isinstance(item, OverrunError):
                raise item
            yield item
        if not self.waiting:
            os.set_blocking(self._read_end, False)
            try:
                os.read(self._read_end, 4096)
            except BlockingIOError:
                return

    def close(self) -> None:
        self.is_open = False
        os.close(self._read_end)
        os.close(self._write_end)


class FakeKernel:
    def __init__(self, entries: list[Entry]) -> None:
        self.entries = entries
        self.interrupted = 0
        self.listeners: list[FakeMonitor] = []
        self.reads = 0
        self.during_read: list[bytes] = []
        """Messages that arrive while the tables are read."""

    def listen(self) -> FakeMonitor:
        self.listeners.append(FakeMonitor())
        return self.listeners[-1]

    def read_tables(self) -> list[Entry]:
        self.reads += 1
        assert self.listeners, "a read before listening misses the changes in between"
        if self.during_read:
            self.listeners[-1].put(*self.during_read)
            self.during_read = []
        return list(self.entries)


class FakePublisher:
    def __init__(self) -> None:
        self.published: list[tuple[str, dict[str, object]]] = []
        self.arrivals: deque[BusActivity] = deque()

    def fileno(self) -> int | None:
        return None  # so that turns do not sleep

    def publish(self, key: str, payload: bytes) -> None:
        self.published.append((key, json.loads(payload)))

    def activity(self) -> BusActivity:
        return self.arrivals.popleft() if self.arrivals else BusActivity()

    def take(self) -> list[tuple[str, object]]:
        """Return new messages: keys, with the event, or the reason of a snapshot's delimiter."""
        published = [(key, payload.get("reason", payload["event"])) for key, payload in self.published]
        self.published.clear()
        return published


class FeedFixture:
    def __init__(self, namespace: str | None = None) -> None:
        self.now = 1000.0
        self.kernel = FakeKernel([LO])
        self.publisher = FakePublisher()
        self.said: list[str] = []
        self.ready: list[str] = []
        self.feed = NetlinkFeed(
            self.kernel, self.publisher, self.said.append, self.ready.append, namespace=namespace, clock=lambda: self.now
        )

    @property
    def listener(self) -> FakeMonitor:
        return self.kernel.listeners[-1]

    def turn(self, seconds: float = 0.0) -> list[tuple[str, object]]:
        """Advance the clock by *seconds*, run a turn, and return its messages."""
        self.now += seconds
        self.feed.turn()
        return self.publisher.take()


SNAPSHOT = [("net/link/lo", "snapshot")]


def whole(reason: str, entries: list[tuple[str, str]] | None = None) -> list[tuple[str, str]]:
    return [("net/snapshot/begin", reason), *(SNAPSHOT if entries is None else entries), ("net/snapshot/end", reason)]


@pytest.fixture
def fixture() -> Iterator[FeedFixture]:
    made = FeedFixture()
    assert made.turn() == whole("start")
    yield made
    made.feed.close()
    assert not any(listener.is_open for listener in made.kernel.listeners)


def test_ready_is_notified_after_the_first_snapshot(fixture: FeedFixture) -> None:
    assert fixture.ready == ["1 entries, 1 snapshots (last: start), 0 overruns"]
    assert fixture.said == []


def test_change_is_published(fixture: FeedFixture) -> None:
    fixture.listener.put(*BRIDGE_ADDED)
    assert fixture.turn() == [("net/link/br%2A%21", "new")]


def test_overrun_makes_a_fresh_snapshot_from_a_fresh_monitor(fixture: FeedFixture) -> None:
    fixture.listener.put(OverrunError("lost"), *BRIDGE_ADDED)
    old = fixture.listener
    assert fixture.turn() == []
    assert not old.is_open, "what still waits there is older than what was lost"
    assert fixture.said == ["overrun 1: lost; publishing a new snapshot"]
    fixture.kernel.entries = []
    assert fixture.turn(1.0) == [("net/link/lo", "remove"), *whole("overrun", [])]
    assert len(fixture.kernel.listeners) == 2


def test_overruns_are_counted_and_rate_limited(fixture: FeedFixture) -> None:
    for count in range(1, 4):
        fixture.listener.put(OverrunError("lost"))
        fixture.turn(0.1)
        assert fixture.feed.counters.overruns == count
        assert fixture.turn(0.5) == []
        assert fixture.turn(0.5) == whole("overrun")
    fixture.now += 1
    fixture.publisher.arrivals.append(BusActivity(requests=1))
    fixture.feed.turn()
    fixture.feed.turn()
    key, end = fixture.publisher.published[-1]
    assert (key, end["overruns"], end["requests"], end["entries"]) == ("net/snapshot/end", 3, 1, 1)
    assert end["receive_kib"] == 64


def test_requests_are_answered_by_one_snapshot_a_second(fixture: FeedFixture) -> None:
    fixture.publisher.arrivals.extend([BusActivity(requests=500), BusActivity(requests=500)])
    assert fixture.turn() == []
    assert fixture.turn() == []
    assert fixture.turn(0.9) == [], "the first snapshot was less than a second ago"
    assert fixture.turn(0.2) == whole("request")
    assert fixture.turn(5.0) == [], "all of them are answered"
    assert fixture.feed.counters.requests == 1000
    assert fixture.kernel.reads == 1, "asking costs the kernel nothing"


def test_requests_do_not_make_a_costly_snapshot_more_than_a_tenth_of_the_time(
    fixture: FeedFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish = fixture.publisher.publish

    def slow(key: str, payload: bytes) -> None:
        fixture.now += 1.0
        publish(key, payload)

    monkeypatch.setattr(fixture.publisher, "publish", slow)
    fixture.publisher.arrivals.append(BusActivity(requests=1))
    fixture.turn(2.0)
    assert fixture.turn() == whole("request")  # took 3 seconds
    fixture.publisher.arrivals.append(BusActivity(requests=1))
    fixture.turn()
    assert fixture.turn(26.0) == []
    assert fixture.turn(1.1) == whole("request")


def test_reconnection_makes_a_fresh_snapshot(fixture: FeedFixture) -> None:
    fixture.publisher.arrivals.append(BusActivity(requests=3, reconnected=True))
    fixture.turn(2.0)
    assert fixture.turn() == whole("reconnect")
    assert fixture.said == ["reconnected to the bus; publishing a new snapshot"]


def test_reconnection_is_the_reason_even_if_a_request_waits(fixture: FeedFixture) -> None:
    """A request answers one client; after a reconnection no client has the state."""
    for activity in (BusActivity(requests=1), BusActivity(reconnected=True), BusActivity(requests=1)):
        fixture.publisher.arrivals.append(activity)
        assert fixture.turn() == []
    assert fixture.turn(1.1) == whole("reconnect")
    assert fixture.turn(5.0) == [], "it is the answer to the requests too"


def test_overrun_is_the_reason_even_after_a_reconnection(fixture: FeedFixture) -> None:
    fixture.listener.put(OverrunError("lost"))
    fixture.publisher.arrivals.append(BusActivity(reconnected=True))
    fixture.turn()
    assert fixture.turn(1.0) == whole("overrun")


def test_open_question_is_answered_by_the_tables(fixture: FeedFixture) -> None:
    down = captured()["ip link set veth9 down"]
    up = captured()["ip link set veth0 up; ip link set veth1 up"]
    fixture.listener.put(*up)
    fixture.turn()
    fixture.listener.put(*down)
    fixture.turn(1.0)
    fixture.turn(1.0)
    published = fixture.turn(1.0)
    assert fixture.feed.counters.checks >= 1
    assert published == [], "the check has told it already, and nothing twice"
    assert fixture.feed.counters.checks == fixture.kernel.reads - 1


def test_changes_during_the_dump_are_checked_again(fixture: FeedFixture) -> None:
    fixture.listener.put(*captured()["ip route replace default via 10.1.0.3"])
    fixture.kernel.during_read = BRIDGE_ADDED
    fixture.turn()
    assert fixture.turn(1.0) == [("net/link/br%2A%21", "new")]
    # The tables do not contain this link, so the message was older.
    assert fixture.turn(1.0) == [("net/link/br%2A%21", "remove")]
    assert fixture.turn(1.0) == []
    assert fixture.feed.counters.checks == 2


def test_changes_before_the_first_snapshot_are_published_after_it() -> None:
    fixture = FeedFixture()
    fixture.kernel.during_read = BRIDGE_ADDED
    assert fixture.turn() == [*whole("start"), ("net/link/br%2A%21", "new")]
    fixture.feed.close()


def test_replaced_route_is_removed_before_the_new_one(fixture: FeedFixture) -> None:
    before = [notice.entry for notice in notices_of("ip route add default via 10.1.0.2")]
    after = [notice.entry for notice in notices_of("ip route replace default via 10.1.0.3")]
    fixture.kernel.entries = [LO, *after]
    fixture.listener.put(*captured()["ip route add default via 10.1.0.2"])
    assert fixture.turn() == [("net/route/main/default", "new")]
    fixture.listener.put(*captured()["ip route replace default via 10.1.0.3"])
    assert fixture.turn() == []
    assert fixture.turn(1.0) == [("net/route/main/default", "remove"), ("net/route/main/default", "new")]
    assert before != after


def test_an_undecodable_message_is_counted_and_logged_once(fixture: FeedFixture) -> None:
    wrong = bytes([40, 0, 0, 0, 16, 0]) + bytes(34)
    fixture.listener.put(wrong, wrong, *BRIDGE_ADDED)
    assert fixture.turn() == [("net/link/br%2A%21", "new")]
    assert fixture.feed.counters.undecodable == 2
    assert len(fixture.said) == 1
    assert fixture.said[0].startswith("netlink message of type 16: ")
    assert fixture.turn(1.0) == [("net/link/br%2A%21", "remove")], "the tables, which have no bridge, are believed"


def test_forged_and_refused_are_counted(fixture: FeedFixture) -> None:
    fixture.listener.forged = 7
    fixture.listener.put()
    fixture.publisher.arrivals.append(BusActivity(refused=2))
    fixture.turn()
    assert (fixture.feed.counters.forged, fixture.feed.counters.refused) == (7, 2)


def test_namespace_is_in_every_payload() -> None:
    fixture = FeedFixture("blue")
    fixture.feed.turn()
    assert [payload["namespace"] for _, payload in fixture.publisher.published] == ["blue"] * 3
    fixture.feed.close()
