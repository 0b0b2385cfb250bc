"""The udev feed as a program: real links and events of the kernel in a namespace, libudev, and a real bus."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sbus import Bus
from tests.support.daemons import Daemon, StartDaemon
from tests.support.relays import wait_for
from tests.support.store_programs import ENV, StoreProgram
from tests.support.udev_messages import DeviceNamespace, udev_message
from tests.support.wire import RawClient
from tools.stage import ROOT

Reported = tuple[str, dict[str, Any]]

STREAMS = (ROOT / "etc/store.toml.d/50-udev.toml").read_text()


SHARES_BUS = True


@pytest.fixture
def devices(needs_namespaces: None) -> Iterator[DeviceNamespace]:
    made = DeviceNamespace(f"sbus-test-udev-{os.getpid()}")
    yield made
    made.close()


class Feed:
    """A running feed."""

    def __init__(self, devices: DeviceNamespace, bus: str, *options: str) -> None:
        words = ["sbus-feed", "udev", "--address", bus, *options]
        code = f"import sys; sys.argv = {words!r}; from sbus_services.feeds.main import main; main()"
        command = [*devices.entering(), sys.executable, "-W", "error", "-c", code]
        self.process = subprocess.Popen(command, env=ENV, cwd="/", stderr=subprocess.PIPE, text=True)

    def end(self, number: int = signal.SIGTERM) -> str:
        """End it, and return what it has written to standard error."""
        self.process.send_signal(signal.SIGCONT)
        self.process.send_signal(number)
        _, said = self.process.communicate(timeout=60)
        assert self.process.returncode == 0, said
        return said


@contextmanager
def running(devices: DeviceNamespace, bus: str, *options: str, said: str = "") -> Iterator[Feed]:
    """Run a feed; *said* must be in what it writes, or it must write nothing."""
    feed = Feed(devices, bus, *options)
    try:
        yield feed
        written = feed.end()
        assert said in written if said else written == ""
    finally:
        feed.process.kill()
        feed.process.wait()
        if feed.process.stderr is not None:
            feed.process.stderr.close()


def listener(bus: Daemon, *patterns: bytes) -> RawClient:
    client = bus.client()
    for pattern in patterns:
        client.subscribe(pattern)
    assert client.barrier() == []
    return client


def until(client: RawClient, key: str, event: str) -> list[Reported]:
    """Return the messages up to and including *event* of *key*."""
    reported: list[Reported] = []
    while not reported or (reported[-1][0], reported[-1][1]["event"]) != (key, event):
        packet = client.receive()
        name, nul, payload = packet.removeprefix(b"MSG ").partition(b"\0")
        assert packet.startswith(b"MSG ")
        assert nul
        reported.append((name.decode("ascii"), json.loads(payload)))
    return reported


def snapshot(client: RawClient, reason: str) -> list[Reported]:
    """Return the messages of the next snapshot, which must have this *reason*, with its delimiters; skip earlier messages."""
    reported = until(client, "udev/snapshot/end", "snapshot")
    start = next(number for number, (key, _) in enumerate(reported) if key == "udev/snapshot/begin")
    assert reported[start][1]["reason"] == reported[-1][1]["reason"] == reason
    return reported[start:]


def of_links(reported: list[Reported], *names: str) -> list[tuple[str, str]]:
    """Return events and keys about links with these *names*."""
    return [(payload["event"], key) for key, payload in reported if key.rpartition("/")[2] in names and key.startswith("udev/net/")]


def test_life_of_a_link(bus: Daemon, devices: DeviceNamespace) -> None:
    client = listener(bus, b"udev/")
    with running(devices, bus.path):
        first = snapshot(client, "start")
        keys = [key for key, _ in first[1:-1]]
        assert "udev/net/device/lo" in keys
        assert "udev/mem/device/null" in keys
        assert len(set(keys)) == len(keys) == first[-1][1]["devices"]

        devices.ip("link", "add", "br*0", "type", "bridge")
        reported = until(client, "udev/net/device/br%2A0", "new")
        assert of_links(reported, "br%2A0") == [("add", "udev/net/add/br%2A0"), ("new", "udev/net/device/br%2A0")]
        assert reported[-1][1]["INTERFACE"] == "br*0"

        devices.ip("link", "set", "br*0", "name", "lan0")
        assert of_links(until(client, "udev/net/device/lan0", "new"), "br%2A0", "lan0") == [
            ("move", "udev/net/move/lan0"),
            ("remove", "udev/net/device/br%2A0"),
            ("new", "udev/net/device/lan0"),
        ]
        devices.ip("link", "delete", "lan0")
        # The check of all devices after the move can be the first to find that it is gone.
        reported = until(client, "udev/net/remove/lan0", "remove")
        if ("remove", "udev/net/device/lan0") not in of_links(reported, "lan0"):
            reported += until(client, "udev/net/device/lan0", "remove")
        assert all("DEVPATH" in payload for _, payload in reported)


def test_a_trigger_is_an_event_without_a_change(bus: Daemon, devices: DeviceNamespace) -> None:
    client = listener(bus, b"udev/mem/", b"udev/snapshot/")
    with running(devices, bus.path, "--subsystem", "mem", "--subsystem", "net"):
        assert {key.split("/")[1] for key, _ in snapshot(client, "start")} == {"mem", "snapshot"}
        for _ in range(2):
            Path("/sys/devices/virtual/mem/null/uevent").write_text("change")
            found = until(client, "udev/mem/change/null", "change")
            assert len(found) == 1
            assert (found[0][1]["DEVNAME"], found[0][1]["coalesced"]) == ("/dev/null", 0)


def test_a_flood_is_limited_coalesced_and_counted(bus: Daemon, devices: DeviceNamespace) -> None:
    client = listener(bus, b"udev/made/", b"udev/snapshot/")
    # A large buffer, so that the flood is limited by the rate alone.
    with running(devices, bus.path, "--subsystem", "made", "--rate", "5", "--receive-buffer", "65536"):
        snapshot(client, "start")
        change = {"ACTION": "change", "DEVPATH": "/devices/made/up", "SUBSYSTEM": "made"}
        for number in range(1, 1_001):
            devices.send(udev_message({**change, "SEQNUM": str(number)}))
        published, numbers = 0, [0]
        while numbers[-1] < 1_000:
            (_, payload) = until(client, "udev/made/change/up", "change")[-1]
            published += 1 + payload["coalesced"]
            numbers.append(int(payload["SEQNUM"]))
        assert numbers == sorted(numbers)
        assert published == 1_000, "each event is published or counted"
        client.publish(b"udev/request", b"")
        (_, end) = snapshot(client, "request")[-1]
        assert (end["events"] + end["coalesced"], end["overruns"]) == (1_000, 0)
        assert end["events"] == len(numbers) - 1


def test_overrun_is_a_gap_and_the_state_is_read_again(bus: Daemon, devices: DeviceNamespace) -> None:
    devices.ip("link", "add", "before0", "type", "bridge")
    client = listener(bus, b"udev/snapshot/", b"udev/net/device/")
    with running(devices, bus.path, "--receive-buffer", "4", said="overrun 1: the kernel dropped messages") as feed:
        snapshot(client, "start")
        feed.process.send_signal(signal.SIGSTOP)
        devices.ip("link", "delete", "before0")
        devices.ip("link", "add", "after0", "type", "bridge")
        for number in range(2_000):
            devices.send(udev_message({"ACTION": "add", "DEVPATH": f"/devices/made/{number}", "SUBSYSTEM": "made"}))
        feed.process.send_signal(signal.SIGCONT)
        reported = until(client, "udev/snapshot/end", "snapshot")
        while ("snapshot", "udev/net/device/after0") not in of_links(reported, "after0"):
            reported += until(client, "udev/snapshot/end", "snapshot")
        reasons = [payload["reason"] for key, payload in reported if key == "udev/snapshot/begin"]
        assert set(reasons) == {"overrun"}
        assert ("remove", "udev/net/device/before0") in of_links(reported, "before0")
        assert reported[-1][1]["overruns"] >= 1


def test_a_restarted_bus_gets_a_new_snapshot(folder: Path, daemon: StartDaemon, devices: DeviceNamespace) -> None:
    address = folder / "current"
    before = daemon()
    address.symlink_to(before.path)
    client = listener(before, b"udev/snapshot/")
    with running(devices, str(address), "--subsystem", "mem", said="reconnected to the bus; publishing a new snapshot"):
        snapshot(client, "start")
        before.stop()
        after = daemon()
        client = listener(after, b"udev/")
        address.unlink()
        address.symlink_to(after.path)
        assert "udev/mem/device/null" in dict(snapshot(client, "reconnect"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_it_with_status_0(bus: Daemon, devices: DeviceNamespace, number: int) -> None:
    client = listener(bus, b"udev/snapshot/")
    with running(devices, bus.path, "--subsystem", "mem") as feed:
        snapshot(client, "start")
        assert feed.end(number) == ""
        feed.process.communicate = lambda timeout: ("", "")  # type: ignore[assignment,method-assign,misc]


def test_last_values_are_the_devices_that_are_present(bus: Daemon, tmp_path: Path, devices: DeviceNamespace) -> None:
    def links(client: Bus) -> set[str]:
        return {each.key for each in client.store.last("udev/*/device/")}

    with Bus.connect(bus.path, timeout=60) as client, StoreProgram(tmp_path, bus.path, STREAMS):
        with running(devices, bus.path, "--subsystem", "net"):
            wait_for(lambda: links(client) == {"udev/net/device/lo"}, "lo")
            devices.ip("link", "add", "br0", "type", "bridge")
            wait_for(lambda: links(client) == {"udev/net/device/lo", "udev/net/device/br0"}, "lo and br0")
        devices.ip("link", "delete", "br0")  # while no feed runs
        assert "udev/net/device/br0" in links(client)
        with running(devices, bus.path, "--subsystem", "net"):
            wait_for(lambda: links(client) == {"udev/net/device/lo"}, "lo alone")
