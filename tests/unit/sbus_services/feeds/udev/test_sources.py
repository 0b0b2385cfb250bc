"""What libudev reads of this machine and of messages; tests/integration/test_udev_feed.py has the whole feed."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from contextlib import closing

import pytest
from pyroute2 import netns

from sbus_services.feeds.netlink.sockets import OverrunError
from sbus_services.feeds.udev.devices import DeviceEvent
from sbus_services.feeds.udev.sources import EventMonitor, Udev
from tests.support.udev_messages import DeviceNamespace, udev_message
from tests.support.users import FIRST

pytestmark = pytest.mark.slow

CHANGE = {"ACTION": "change", "DEVPATH": "/devices/made/up", "SUBSYSTEM": "made", "SEQNUM": "7"}


@pytest.fixture
def devices(needs_namespaces: None) -> Iterator[DeviceNamespace]:
    made = DeviceNamespace(f"sbus-test-udev-{os.getpid()}")
    yield made
    made.close()


def monitor(devices: DeviceNamespace, *subsystems: str, receive_bytes: int = 1 << 20) -> EventMonitor:
    netns.pushns(devices.name)
    try:
        return Udev(subsystems, receive_bytes).listen()
    finally:
        netns.popns()


def next_event(found: EventMonitor) -> DeviceEvent:
    """Return the next event about a made-up device; others are of the machine."""
    while True:
        assert select.select([found], [], [], 60)[0]
        for event in found.read(1):
            if event.device.path.startswith("/devices/made/"):
                return event


def test_devices_of_this_machine() -> None:
    found = {device.path: device for device in Udev().read_devices()}
    null = found["/devices/virtual/mem/null"]
    assert (null.key, null.properties["DEVNAME"]) == ("udev/mem/device/null", "/dev/null")
    assert Udev().read_device(null.path) == null
    assert Udev().read_device("/devices/no/such") is None
    assert {device.subsystem for device in Udev(["mem", "net"]).read_devices()} <= {"mem", "net"}


def test_a_message_of_root_is_an_event(devices: DeviceNamespace) -> None:
    with closing(monitor(devices)) as found:
        devices.send(udev_message(CHANGE))
        assert next_event(found) == DeviceEvent.of(CHANGE)


def test_what_is_not_utf8_is_replaced_or_counted(devices: DeviceNamespace) -> None:
    with closing(monitor(devices)) as found:
        devices.send(udev_message({**CHANGE, "DEVPATH": b"/devices/made/\xff"}))
        devices.send(udev_message({**CHANGE, "ID_MODEL": b"\xff"}))
        event = next_event(found)
        # libudev of some versions discards the whole message, or the property.
        assert event.device.path == CHANGE["DEVPATH"]
        assert event.device.properties.get("ID_MODEL", "\ufffd") == "\ufffd"


def test_a_message_that_libudev_rejects_is_counted_and_the_next_one_read(devices: DeviceNamespace) -> None:
    with closing(monitor(devices, "made")) as found:
        devices.send(udev_message({**CHANGE, "SEQNUM": "0"}))
        devices.send(udev_message(CHANGE))
        assert next_event(found) == DeviceEvent.of(CHANGE)
        assert found.undecodable == 1


def test_only_the_subsystems_asked_for(devices: DeviceNamespace) -> None:
    with closing(monitor(devices, "wanted", "also")) as found:
        for number, subsystem in enumerate(("made", "wanted", "made", "also")):
            devices.send(udev_message({**CHANGE, "SUBSYSTEM": subsystem, "SEQNUM": str(number)}))
        assert [next_event(found).device.subsystem for _ in range(2)] == ["wanted", "also"]


def test_lost_messages_are_an_overrun(devices: DeviceNamespace) -> None:
    with closing(monitor(devices, receive_bytes=4_096)) as found:
        for _ in range(200):
            devices.send(udev_message(CHANGE))
        assert select.select([found], [], [], 60)[0]
        with pytest.raises(OverrunError, match="ENOBUFS"):
            list(found.read(1_000))


def test_messages_of_others_than_root_are_discarded(devices: DeviceNamespace) -> None:
    forged = udev_message({**CHANGE, "FORGED": "1"})
    with closing(monitor(devices)) as found, devices.connected() as channel:
        with pytest.raises(PermissionError):  # by the kernel
            FIRST.call(lambda: devices.send(forged))
        # By libudev: the socket of root is inherited, and the kernel reports who has sent.
        assert FIRST.call(lambda: channel.send(forged)) == len(forged)
        devices.send(udev_message({**CHANGE, "FORGED": "1"}, magic=1))
        devices.send(udev_message(CHANGE))
        assert "FORGED" not in next_event(found).device.properties
