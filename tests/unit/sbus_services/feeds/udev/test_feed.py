"""The loop of the udev feed with a fake udev, bus and clock."""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Iterator

import pytest

from sbus_services.feeds.bus_publisher import BusActivity
from sbus_services.feeds.netlink.sockets import OverrunError
from sbus_services.feeds.netlink.stored_values import PublishedKeys
from sbus_services.feeds.udev.devices import MAX_WAITING, Device, DeviceEvent
from sbus_services.feeds.udev.feed import RATE, UdevFeed

SDA = Device.of({"DEVPATH": "/devices/sda", "SUBSYSTEM": "block", "DEVNAME": "/dev/sda"})
ETH = Device.of({"DEVPATH": "/devices/eth0", "SUBSYSTEM": "net"})


def event(device: Device, action: str, **more: str) -> DeviceEvent:
    return DeviceEvent.of({**device.properties, "ACTION": action, **more})


class FakeMonitor:
    """Returns events of a list, and raises the errors in it."""

    def __init__(self) -> None:
        self.receive_bytes = 65536
        self.undecodable = 0
        self.waiting: deque[DeviceEvent | OverrunError] = deque()
        self._read_end, self._write_end = os.pipe()
        os.write(self._write_end, b"x")
        self.is_open = True

    def fileno(self) -> int:
        return self._read_end

    def read(self, most: int) -> Iterator[DeviceEvent]:
        for _ in range(min(most, len(self.waiting))):
            item = self.waiting.popleft()
            if isinstance(item, OverrunError):
                raise item
            yield item

    def close(self) -> None:
        self.is_open = False
        os.close(self._read_end)
        os.close(self._write_end)


class FakeUdev:
    def __init__(self, *devices: Device) -> None:
        self.undecodable = 0
        self.devices = {device.path: device for device in devices}
        self.monitors: list[FakeMonitor] = []

    def listen(self) -> FakeMonitor:
        self.monitors.append(FakeMonitor())
        return self.monitors[-1]

    def read_devices(self) -> list[Device]:
        assert self.monitors, "a read before listening misses the events in between"
        return list(self.devices.values())

    def read_device(self, path: str) -> Device | None:
        return self.devices.get(path)


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


class Fixture:
    def __init__(self, rate: int = RATE) -> None:
        self.now = 1000.0
        self.udev = FakeUdev(SDA)
        self.publisher = FakePublisher()
        self.said: list[str] = []
        self.ready: list[str] = []
        self.keys = PublishedKeys(("udev/",))
        self.feed = UdevFeed(
            self.udev, self.publisher, self.said.append, self.ready.append, rate=rate, clock=lambda: self.now, keys=self.keys
        )

    @property
    def monitor(self) -> FakeMonitor:
        return self.udev.monitors[-1]

    def happen(self, *events: DeviceEvent | OverrunError) -> None:
        self.monitor.waiting.extend(events)

    def turn(self, seconds: float = 0.0) -> list[tuple[str, object]]:
        """Advance the clock by *seconds*, run a turn, and return its messages: keys with the event, or the reason of a delimiter."""
        self.now += seconds
        self.feed.turn()
        found = [(key, payload.get("reason", payload["event"])) for key, payload in self.publisher.published]
        self.publisher.published.clear()
        return found


def whole(reason: str, *keys: str) -> list[tuple[str, str]]:
    return [("udev/snapshot/begin", reason), *((key, "snapshot") for key in keys), ("udev/snapshot/end", reason)]


@pytest.fixture
def fixture() -> Iterator[Fixture]:
    made = Fixture()
    assert made.turn() == whole("start", SDA.key)
    yield made
    made.feed.close()
    assert not any(monitor.is_open for monitor in made.udev.monitors)


def test_ready_is_notified_after_the_first_snapshot(fixture: Fixture) -> None:
    assert fixture.ready == ["1 devices, 0 events, 0 overruns (last snapshot: start)"]
    assert fixture.said == []
    assert fixture.keys.is_complete
    assert fixture.keys.copy()[0] == {SDA.key}


def test_an_event_comes_before_what_has_changed_by_it(fixture: Fixture) -> None:
    fixture.udev.devices[ETH.path] = ETH
    fixture.happen(event(ETH, "add"))
    assert fixture.turn() == [("udev/net/add/eth0", "add"), ("udev/net/device/eth0", "new")]
    del fixture.udev.devices[SDA.path]
    fixture.happen(event(SDA, "remove"))
    assert fixture.turn() == [("udev/block/remove/sda", "remove"), ("udev/block/device/sda", "remove")]
    assert fixture.keys.copy()[0] == {ETH.key}


def test_an_event_without_a_change_is_only_an_event(fixture: Fixture) -> None:
    fixture.happen(event(SDA, "change", DISK_MEDIA_CHANGE="1"))
    assert fixture.turn() == [("udev/block/change/sda", "change")]


def test_a_move_removes_the_former_name_and_has_all_devices_read(fixture: Fixture) -> None:
    below = Device.of({"DEVPATH": "/devices/lan0/queue", "SUBSYSTEM": "queues"})
    moved = Device.of({"DEVPATH": "/devices/sdz", "SUBSYSTEM": "block"})
    fixture.udev.devices = {moved.path: moved, below.path: below}
    fixture.happen(event(moved, "move", DEVPATH_OLD=SDA.path))
    assert fixture.turn() == [
        ("udev/block/move/sdz", "move"),
        ("udev/block/device/sda", "remove"),
        ("udev/block/device/sdz", "new"),
    ]
    assert fixture.turn(1.0) == [("udev/queues/device/queue", "new")]
    assert fixture.feed.counters.checks == 1
    assert fixture.turn(1.0) == []


def test_after_an_event_that_cannot_be_read_all_devices_are_read(fixture: Fixture) -> None:
    fixture.udev.devices[ETH.path] = ETH
    fixture.monitor.undecodable = 1
    assert fixture.turn() == []
    assert fixture.turn() == [("udev/net/device/eth0", "new")]
    assert (fixture.feed.counters.undecodable, fixture.feed.counters.checks) == (1, 1)


def test_an_overrun_is_a_gap_and_a_fresh_snapshot_from_a_fresh_monitor(fixture: Fixture) -> None:
    first = fixture.monitor
    fixture.udev.devices = {ETH.path: ETH}
    fixture.happen(event(SDA, "change"), OverrunError("lost"), event(SDA, "bind"))
    assert fixture.turn() == [("udev/block/change/sda", "change"), ("udev/block/device/sda", "remove")]
    assert not first.is_open
    assert fixture.turn(1.0) == whole("overrun", ETH.key)
    assert fixture.said == ["overrun 1: lost; publishing a new snapshot"]
    assert fixture.feed.counters.overruns == 1


def test_events_that_wait_since_before_an_overrun_are_published_before_the_snapshot() -> None:
    fixture = Fixture(rate=1)
    fixture.turn()
    fixture.happen(event(SDA, "change"), event(ETH, "add"), OverrunError("lost"))
    assert fixture.turn() == [("udev/block/change/sda", "change")]
    assert fixture.turn(0.5) == []
    assert fixture.turn(0.6) == [("udev/net/add/eth0", "add")]
    assert fixture.turn() == whole("overrun", SDA.key)
    fixture.feed.close()


def test_more_than_the_rate_waits_and_is_coalesced(fixture: Fixture) -> None:
    changes = [event(SDA, "change", SEQNUM=str(number)) for number in range(250)]
    fixture.happen(*changes)
    assert fixture.turn() == [("udev/block/change/sda", "change")] * (RATE // 10)
    fixture.now += 1.0
    fixture.feed.turn()
    (_, last) = fixture.publisher.published[-1]
    assert (last["SEQNUM"], last["coalesced"]) == ("249", 149)
    assert (fixture.feed.counters.events, fixture.feed.counters.coalesced) == (RATE // 10 + 1, 149)


def test_it_does_not_read_more_than_may_wait() -> None:
    fixture = Fixture(rate=1)
    fixture.turn()
    names = [Device.of({"DEVPATH": f"/devices/{number}", "SUBSYSTEM": "x"}) for number in range(MAX_WAITING + 1_000)]
    fixture.happen(*(event(name, "add") for name in names))
    for _ in range(40):
        fixture.turn()
    left = len(fixture.monitor.waiting)
    assert 0 < left <= 1_000
    assert fixture.turn() == []
    assert len(fixture.monitor.waiting) == left
    fixture.feed.close()


def test_requests_are_answered_at_most_once_a_second_even_during_a_flood() -> None:
    fixture = Fixture(rate=1)
    fixture.turn()
    fixture.happen(*(event(Device.of({"DEVPATH": f"/devices/{number}", "SUBSYSTEM": "x"}), "add") for number in range(100)))
    fixture.publisher.arrivals.extend([BusActivity(requests=5), BusActivity(requests=5)])
    fixture.turn()
    assert ("udev/snapshot/begin", "request") not in fixture.turn()
    assert fixture.turn(1.0)[:1] == [("udev/snapshot/begin", "request")]
    assert fixture.feed.counters.requests == 10
    fixture.feed.close()


def test_a_reconnection_brings_a_snapshot(fixture: Fixture) -> None:
    fixture.publisher.arrivals.append(BusActivity(reconnected=True, refused=2))
    fixture.turn()
    assert fixture.turn(1.0) == whole("reconnect", SDA.key)
    assert (fixture.feed.counters.reconnects, fixture.feed.counters.refused) == (1, 2)


def test_events_during_a_snapshot_are_read_and_published_after_it() -> None:
    fixture = Fixture()
    fixture.udev = FakeUdev(*(Device.of({"DEVPATH": f"/devices/{number}", "SUBSYSTEM": "x"}) for number in range(100)))
    fixture.feed = UdevFeed(fixture.udev, fixture.publisher, fixture.said.append, fixture.ready.append, clock=lambda: fixture.now)
    listen = fixture.udev.listen

    def listen_during_events() -> FakeMonitor:
        made = listen()
        made.waiting.append(event(ETH, "add"))
        return made

    fixture.udev.listen = listen_during_events  # type: ignore[method-assign]
    found = fixture.turn()
    assert found[-2:] == [("udev/snapshot/end", "start"), ("udev/net/add/eth0", "add")]
    fixture.feed.close()


def test_counters_at_the_end_of_a_snapshot(fixture: Fixture) -> None:
    fixture.monitor.undecodable = 3
    fixture.udev.undecodable = 4
    fixture.udev.devices[ETH.path] = Device.of({**ETH.properties, "ID_LONG": "x" * 5_000})
    fixture.happen(event(fixture.udev.devices[ETH.path], "add"))
    fixture.turn()
    fixture.publisher.arrivals.append(BusActivity(requests=1))
    fixture.turn()
    fixture.now += 1.0
    fixture.feed.turn()
    (_, end) = fixture.publisher.published[-1]
    assert {name: end[name] for name in ("devices", "undecodable", "events", "shortened", "waiting", "receive_kib", "generation")} == {
        "devices": 2,
        "undecodable": 7,
        "events": 1,
        "shortened": 3,
        "waiting": 0,
        "receive_kib": 64,
        "generation": 2,
    }
