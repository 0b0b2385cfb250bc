"""The loop of the netlink feed, with a made-up kernel and a made-up bus: every turn is driven by hand, and no time has to pass."""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Iterator

import pytest

from sbusd.feeds.bus_publisher import BusActivity
from sbusd.feeds.netlink.entries import Entry, Link
from sbusd.feeds.netlink.feed import NetlinkFeed
from sbusd.feeds.netlink.sockets import OverrunError
from tests.support.netlink_captures import captured, notices_of

LO = Link(1, b"lo", "unknown", ("up", "loopback", "running", "lower_up"), 65536, "00:00:00:00:00:00", None, None)
BRIDGE_ADDED = captured()["ip link add 'br*!' type bridge"]


class FakeMonitor:
    """Datagrams from a list; an exception in it is raised in its place."""

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
        """What the kernel says while its tables are read."""

    def listen(self) -> FakeMonitor:
        self.listeners.append(FakeMonitor())
        return self.listeners[-1]

    def read_tables(self) -> list[Entry]:
        self.reads += 1
        assert self.listeners, "whoever reads before listening misses what comes between"
        if self.during_read:
            self.listeners[-1].put(*self.during_read)
            self.during_read = []
        return list(self.entries)


class FakePublisher:
    def __init__(self) -> None:
        self.told: list[tuple[str, dict[str, object]]] = []
        self.arrivals: deque[BusActivity] = deque()

    def fileno(self) -> int | None:
        return None  # so that no turn sleeps

    def publish(self, key: str, payload: bytes) -> None:
        self.told.append((key, json.loads(payload)))

    def activity(self) -> BusActivity:
        return self.arrivals.popleft() if self.arrivals else BusActivity()

    def take(self) -> list[tuple[str, object]]:
        """Return what was told since the last time: keys, with the event, or the reason of a snapshot's delimiter."""
        told = [(key, payload.get("reason", payload["event"])) for key, payload in self.told]
        self.told.clear()
        return told


class Scene:
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
        """Let *seconds* pass, take a turn, and return what was told in it."""
        self.now += seconds
        self.feed.turn()
        return self.publisher.take()


SNAPSHOT = [("net/link/lo", "snapshot")]


def whole(reason: str, entries: list[tuple[str, str]] | None = None) -> list[tuple[str, str]]:
    return [("net/snapshot/begin", reason), *(SNAPSHOT if entries is None else entries), ("net/snapshot/end", reason)]


@pytest.fixture
def scene() -> Iterator[Scene]:
    made = Scene()
    assert made.turn() == whole("start")
    yield made
    made.feed.close()
    assert not any(listener.is_open for listener in made.kernel.listeners)


def test_ready_is_said_after_the_first_snapshot(scene: Scene) -> None:
    assert scene.ready == ["1 entries, 1 snapshots (last: start), 0 overruns"]
    assert scene.said == []


def test_change_is_told(scene: Scene) -> None:
    scene.listener.put(*BRIDGE_ADDED)
    assert scene.turn() == [("net/link/br%2A%21", "new")]


def test_overrun_makes_a_fresh_snapshot_from_a_fresh_monitor(scene: Scene) -> None:
    scene.listener.put(OverrunError("lost"), *BRIDGE_ADDED)
    old = scene.listener
    assert scene.turn() == []
    assert not old.is_open, "what still waits there is older than what was lost"
    assert scene.said == ["overrun 1: lost; publishing a new snapshot"]
    scene.kernel.entries = []
    assert scene.turn(1.0) == [("net/link/lo", "remove"), *whole("overrun", [])]
    assert len(scene.kernel.listeners) == 2


def test_overruns_are_counted_and_paced(scene: Scene) -> None:
    for count in range(1, 4):
        scene.listener.put(OverrunError("lost"))
        scene.turn(0.1)
        assert scene.feed.counters.overruns == count
        assert scene.turn(0.5) == []
        assert scene.turn(0.5) == whole("overrun")
    scene.now += 1
    scene.publisher.arrivals.append(BusActivity(requests=1))
    scene.feed.turn()
    scene.feed.turn()
    key, end = scene.publisher.told[-1]
    assert (key, end["overruns"], end["requests"], end["entries"]) == ("net/snapshot/end", 3, 1, 1)
    assert end["receive_kib"] == 64


def test_requests_are_answered_by_one_snapshot_a_second(scene: Scene) -> None:
    scene.publisher.arrivals.extend([BusActivity(requests=500), BusActivity(requests=500)])
    assert scene.turn() == []
    assert scene.turn() == []
    assert scene.turn(0.9) == [], "the first snapshot was less than a second ago"
    assert scene.turn(0.2) == whole("request")
    assert scene.turn(5.0) == [], "all of them are answered"
    assert scene.feed.counters.requests == 1000
    assert scene.kernel.reads == 1, "asking costs the kernel nothing"


def test_requests_do_not_make_a_costly_snapshot_more_than_a_tenth_of_the_time(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    publish = scene.publisher.publish

    def slow(key: str, payload: bytes) -> None:
        scene.now += 1.0
        publish(key, payload)

    monkeypatch.setattr(scene.publisher, "publish", slow)
    scene.publisher.arrivals.append(BusActivity(requests=1))
    scene.turn(2.0)
    assert scene.turn() == whole("request")  # took 3 seconds
    scene.publisher.arrivals.append(BusActivity(requests=1))
    scene.turn()
    assert scene.turn(26.0) == []
    assert scene.turn(1.1) == whole("request")


def test_reconnection_makes_a_fresh_snapshot(scene: Scene) -> None:
    scene.publisher.arrivals.append(BusActivity(requests=3, reconnected=True))
    scene.turn(2.0)
    assert scene.turn() == whole("reconnect")
    assert scene.said == ["reconnected to the bus; publishing a new snapshot"]


def test_overrun_is_the_reason_even_after_a_reconnection(scene: Scene) -> None:
    scene.listener.put(OverrunError("lost"))
    scene.publisher.arrivals.append(BusActivity(reconnected=True))
    scene.turn()
    assert scene.turn(1.0) == whole("overrun")


def test_open_question_is_answered_by_the_tables(scene: Scene) -> None:
    down = captured()["ip link set veth9 down"]
    up = captured()["ip link set veth0 up; ip link set veth1 up"]
    scene.listener.put(*up)
    scene.turn()
    scene.listener.put(*down)
    scene.turn(1.0)
    scene.turn(1.0)
    told = scene.turn(1.0)
    assert scene.feed.counters.checks >= 1
    assert told == [], "the check has told it already, and nothing twice"
    assert scene.feed.counters.checks == scene.kernel.reads - 1


def test_what_comes_while_the_tables_are_read_is_checked_again(scene: Scene) -> None:
    scene.listener.put(*captured()["ip route replace default via 10.1.0.3"])
    scene.kernel.during_read = BRIDGE_ADDED
    scene.turn()
    assert scene.turn(1.0) == [("net/link/br%2A%21", "new")]
    # The tables have no such link: the message was older than they are.
    assert scene.turn(1.0) == [("net/link/br%2A%21", "remove")]
    assert scene.turn(1.0) == []
    assert scene.feed.counters.checks == 2


def test_what_comes_before_the_first_snapshot_is_told_after_it() -> None:
    scene = Scene()
    scene.kernel.during_read = BRIDGE_ADDED
    assert scene.turn() == [*whole("start"), ("net/link/br%2A%21", "new")]
    scene.feed.close()


def test_replaced_route_is_removed_before_the_new_one(scene: Scene) -> None:
    before = [notice.entry for notice in notices_of("ip route add default via 10.1.0.2")]
    after = [notice.entry for notice in notices_of("ip route replace default via 10.1.0.3")]
    scene.kernel.entries = [LO, *after]
    scene.listener.put(*captured()["ip route add default via 10.1.0.2"])
    assert scene.turn() == [("net/route/main/default", "new")]
    scene.listener.put(*captured()["ip route replace default via 10.1.0.3"])
    assert scene.turn() == []
    assert scene.turn(1.0) == [("net/route/main/default", "remove"), ("net/route/main/default", "new")]
    assert before != after


def test_undecodable_message_is_counted_and_said_once(scene: Scene) -> None:
    wrong = bytes([40, 0, 0, 0, 16, 0]) + bytes(34)
    scene.listener.put(wrong, wrong, *BRIDGE_ADDED)
    assert scene.turn() == [("net/link/br%2A%21", "new")]
    assert scene.feed.counters.undecodable == 2
    assert len(scene.said) == 1
    assert scene.said[0].startswith("netlink message of type 16: ")
    assert scene.turn(1.0) == [("net/link/br%2A%21", "remove")], "the tables, which have no bridge, are believed"


def test_forged_and_refused_are_counted(scene: Scene) -> None:
    scene.listener.forged = 7
    scene.listener.put()
    scene.publisher.arrivals.append(BusActivity(refused=2))
    scene.turn()
    assert (scene.feed.counters.forged, scene.feed.counters.refused) == (7, 2)


def test_namespace_is_in_every_payload() -> None:
    scene = Scene("blue")
    scene.feed.turn()
    assert [payload["namespace"] for _, payload in scene.publisher.told] == ["blue"] * 3
    scene.feed.close()
