"""The netlink feed as a program: a real namespace, real links, a real bus."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.daemons import Daemon, StartDaemon
from tests.support.users import User
from tests.support.wire import RawClient
from tools.stage import Stage

ROOT = Path(__file__).parents[2]
Reported = tuple[str, dict[str, Any]]

pytestmark = pytest.mark.usefixtures("needs_namespaces")


SHARES_BUS = True


class Namespace:
    """A network namespace for a test."""

    def __init__(self, name: str) -> None:
        self.name = name
        subprocess.run(["ip", "netns", "add", name], check=True, timeout=30)

    def ip(self, *command: str | bytes) -> None:
        subprocess.run(["ip", "-n", self.name, *command], check=True, timeout=30)

    def batch(self, *commands: str) -> None:
        subprocess.run(["ip", "-n", self.name, "-batch", "-"], input="\n".join(commands), text=True, check=True, timeout=60)

    def delete(self) -> None:
        subprocess.run(["ip", "netns", "delete", self.name], check=True, timeout=30)


class Feed:
    """A running feed, with a socket in place of the service manager's."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.errors = folder / "feed-stderr"
        self.manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.manager.bind(str(folder / "notify"))
        self.manager.settimeout(30)
        with self.errors.open("wb") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-W", "error", "-c", "from sbus_services.feeds.main import main; main()", "netlink", *options],
                env={**os.environ, "PYTHONPATH": str(ROOT), "NOTIFY_SOCKET": str(folder / "notify")},
                cwd="/",
                stdout=subprocess.DEVNULL,
                stderr=stderr,
            )

    def wait_status(self) -> str:
        """Return the next status line that it sends to the service manager."""
        return self.manager.recv(4096).decode()

    @property
    def stderr(self) -> str:
        return self.errors.read_text()

    def end(self, signal_number: int = signal.SIGTERM) -> int:
        """Stop it and return its status; may be called repeatedly."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(signal_number)
        try:
            return self.process.wait(30)
        finally:
            self.manager.close()


StartFeed = Callable[..., Feed]


@pytest.fixture
def namespace() -> Iterator[Namespace]:
    made = Namespace(f"sbus-test-{os.getpid()}")
    yield made
    made.delete()


@pytest.fixture
def start_feed(folder: Path) -> Iterator[StartFeed]:
    feeds: list[Feed] = []

    def start(*options: str) -> Feed:
        feeds.append(Feed(folder, *options))
        return feeds[-1]

    yield start
    for feed in feeds:
        assert feed.end() == 0, feed.stderr
        assert "Traceback" not in feed.stderr


def next_message(client: RawClient) -> Reported:
    """Return the next message of the feed."""
    packet = client.receive()
    key, nul, payload = packet.removeprefix(b"MSG ").partition(b"\0")
    assert packet.startswith(b"MSG ")
    assert nul
    return key.decode("ascii"), json.loads(payload)


def messages_through(client: RawClient, key: str, event: str) -> list[Reported]:
    """Return the messages up to and including *event* of *key*."""
    reported = [next_message(client)]
    while (reported[-1][0], reported[-1][1]["event"]) != (key, event):
        reported.append(next_message(client))
    return reported


def snapshot(client: RawClient, reason: str) -> dict[str, dict[str, Any]]:
    """Return the next snapshot by key, which must have this *reason*; skip earlier messages."""
    reported = messages_through(client, "net/snapshot/end", "snapshot")
    start = next(number for number, (key, _) in enumerate(reported) if key == "net/snapshot/begin")
    assert reported[start][1]["reason"] == reason
    assert reported[-1][1]["generation"] == reported[start][1]["generation"]
    assert all(payload["event"] == "snapshot" for _, payload in reported[start:])
    return dict(reported[start + 1 :])


def listener(bus: Daemon, *patterns: bytes) -> RawClient:
    client = bus.client()
    for pattern in patterns or (b"net/",):
        client.subscribe(pattern)
    assert client.barrier() == []
    return client


def events(reported: list[Reported]) -> list[tuple[str, str]]:
    return [(payload["event"], key) for key, payload in reported]


def test_life_of_links(bus: Daemon, namespace: Namespace, start_feed: StartFeed) -> None:
    client = listener(bus, b"net/link/", b"net/snapshot/", b"net/address/br%2A/")
    feed = start_feed("--address", bus.path, "--namespace", namespace.name)
    first = snapshot(client, "start")
    assert first["net/link/lo"]["mtu"] == 65536
    assert first["net/link/lo"]["namespace"] == namespace.name
    assert feed.wait_status().startswith("READY=1\nSTATUS=")

    namespace.ip("link", "add", "br*", "type", "bridge")
    reported = messages_through(client, "net/link/br%2A", "new")
    assert (reported[-1][1]["kind"], reported[-1][1]["name"]) == ("bridge", "br*")

    namespace.ip("address", "add", "10.77.0.1/24", "dev", "br*")
    namespace.ip("address", "add", "10.77.0.1/16", "dev", "br*")
    assert events(messages_through(client, "net/address/br%2A/10.77.0.1%2F16", "new")) == [
        ("new", "net/address/br%2A/10.77.0.1%2F24"),
        ("new", "net/address/br%2A/10.77.0.1%2F16"),
    ]

    namespace.ip("link", "set", "br*", "name", b"x\xffy")
    reported = messages_through(client, "net/link/x%FFy", "new")
    assert {("remove", "net/link/br%2A"), ("remove", "net/address/br%2A/10.77.0.1%2F24")} < set(events(reported))

    namespace.ip("link", "delete", b"x\xffy")
    assert messages_through(client, "net/link/x%FFy", "remove")[-1][1]["name"] == "x\ufffdy"
    assert feed.stderr == ""


def test_routes_and_neighbours(bus: Daemon, namespace: Namespace, start_feed: StartFeed) -> None:
    namespace.ip("link", "add", "veth0", "type", "veth", "peer", "name", "veth1")
    namespace.batch("link set veth1 up", "link set veth0 up", "address add 10.77.0.1/24 dev veth0")
    client = listener(bus, b"net/route/main/", b"net/neighbour/veth0/10.77.0.2", b"net/snapshot/")
    start_feed("--address", bus.path, "--namespace", namespace.name)
    assert snapshot(client, "start")["net/route/main/10.77.0.0%2F24"]["name"] == "veth0"

    namespace.ip("route", "add", "default", "via", "10.77.0.2")
    assert messages_through(client, "net/route/main/default", "new")[-1][1]["gateway"] == "10.77.0.2"
    namespace.ip("route", "replace", "default", "via", "10.77.0.3")
    reported = messages_through(client, "net/route/main/default", "new")
    assert [(payload["event"], payload["gateway"]) for key, payload in reported if key.endswith("/default")] == [
        ("remove", "10.77.0.2"),
        ("new", "10.77.0.3"),
    ]

    namespace.ip("neighbour", "add", "10.77.0.2", "lladdr", "02:00:00:00:00:07", "dev", "veth0")
    assert messages_through(client, "net/neighbour/veth0/10.77.0.2", "new")[-1][1]["mac"] == "02:00:00:00:00:07"

    # The kernel removes this route without a message when its link goes down.
    namespace.ip("link", "set", "veth0", "down")
    reported = messages_through(client, "net/route/main/default", "remove")
    assert reported[-1][1]["gateway"] == "10.77.0.3"


def test_routes_that_a_nexthop_object_takes_away(bus: Daemon, namespace: Namespace, start_feed: StartFeed) -> None:
    """The kernel reports the nexthop only: the routes of IPv4 that use it go without a message."""
    namespace.ip("link", "add", "veth0", "type", "veth", "peer", "name", "veth1")
    namespace.batch("link set veth1 up", "link set veth0 up", "address add 10.77.0.1/24 dev veth0")
    namespace.batch(*(f"nexthop add id {number} via 10.77.0.{number} dev veth0" for number in (2, 3, 4)), "nexthop add id 9 group 3/4")
    namespace.batch("route add 10.78.1.0/24 nhid 2", "route add 10.78.2.0/24 nhid 9")
    alone, grouped = "net/route/main/10.78.1.0%2F24", "net/route/main/10.78.2.0%2F24"
    client = listener(bus, b"net/route/main/", b"net/snapshot/")
    start_feed("--address", bus.path, "--namespace", namespace.name)
    assert snapshot(client, "start")[alone]["gateway"] == "10.77.0.2"

    namespace.ip("nexthop", "del", "id", "4")
    assert "10.77.0.4" not in json.dumps(messages_through(client, grouped, "new")[-1][1])
    namespace.ip("nexthop", "replace", "id", "2", "via", "10.77.0.5", "dev", "veth0")
    assert messages_through(client, alone, "new")[-1][1]["gateway"] == "10.77.0.5"
    namespace.ip("nexthop", "del", "id", "2")
    messages_through(client, alone, "remove")
    namespace.ip("nexthop", "del", "id", "9")
    messages_through(client, grouped, "remove")


def test_overrun_is_followed_by_a_fresh_snapshot(bus: Daemon, namespace: Namespace, start_feed: StartFeed) -> None:
    namespace.ip("link", "add", "br0", "type", "bridge")
    client = listener(bus)
    feed = start_feed("--address", bus.path, "--namespace", namespace.name, "--receive-buffer", "1")
    snapshot(client, "start")
    feed.process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, feed.process.pid, os.WSTOPPED)
    namespace.batch(*(f"address add 10.78.{number // 250}.{number % 250 + 1}/32 dev br0" for number in range(400)))
    namespace.ip("link", "add", "br1", "type", "bridge")
    feed.process.send_signal(signal.SIGCONT)
    fresh = snapshot(client, "overrun")
    assert fresh["net/snapshot/end"]["entries"] >= len(fresh) - 1 > 400, "several routes can share a key"
    assert "net/link/br1" in fresh
    assert len([key for key in fresh if key.startswith("net/address/br0/10.78.")]) == 400
    assert fresh["net/snapshot/end"]["overruns"] >= 1
    assert "overrun 1: the kernel dropped messages (ENOBUFS); publishing a new snapshot" in feed.stderr


def test_request_brings_the_present_state_to_a_late_subscriber(bus: Daemon, namespace: Namespace, start_feed: StartFeed) -> None:
    feed = start_feed("--address", bus.path, "--namespace", namespace.name)
    feed.wait_status()
    client = listener(bus, b"net/snapshot/", b"net/link/")
    for _ in range(500):
        client.publish(b"net/request", b"now, please")
    first = snapshot(client, "request")
    client.publish(b"net/request")
    second = snapshot(client, "request")
    assert "net/link/lo" in first
    assert "net/link/lo" in second
    # At most one per second, however many requests. The limit uses another clock than the payload.
    assert second["net/snapshot/end"]["time"] - first["net/snapshot/end"]["time"] > 0.9


def test_a_restarted_bus_gets_a_new_snapshot(folder: Path, daemon: StartDaemon, namespace: Namespace, start_feed: StartFeed) -> None:
    address = folder / "current"
    before = daemon()
    address.symlink_to(before.path)
    feed = start_feed("--address", str(address), "--namespace", namespace.name)
    feed.wait_status()
    before.stop()
    after = daemon()
    client = listener(after)
    address.unlink()
    address.symlink_to(after.path)
    assert "net/link/lo" in snapshot(client, "reconnect")
    assert "reconnected to the bus; publishing a new snapshot" in feed.stderr


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_it_with_status_0(bus: Daemon, namespace: Namespace, start_feed: StartFeed, signal_number: int) -> None:
    feed = start_feed("--address", bus.path, "--namespace", namespace.name)
    feed.wait_status()
    assert feed.end(signal_number) == 0
    assert feed.stderr == ""


def test_signal_ends_it_while_the_bus_is_away(bus: Daemon, namespace: Namespace, start_feed: StartFeed) -> None:
    feed = start_feed("--address", bus.path, "--namespace", namespace.name)
    feed.wait_status()
    bus.stop()
    assert feed.end() == 0


def run(*options: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-c", "from sbus_services.feeds.main import main; main()", "netlink", *options]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(program, capture_output=True, text=True, check=False, env=env, timeout=60)


def test_user_without_privilege_may_not_enter_a_namespace(bus: Daemon, namespace: Namespace, stage: Stage, first_user: User) -> None:
    program = [stage.python, "-c", "from sbus_services.feeds.main import main; main()", "netlink", "--address", bus.path]
    result = subprocess.run(
        [*program, "--namespace", namespace.name],
        cwd="/",
        env=stage.env,
        user=first_user.uid,
        group=first_user.gid,
        extra_groups=first_user.groups,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (result.returncode, result.stderr) == (
        1,
        "sbus-feed: cannot enter the network namespace: Operation not permitted; run as root\n",
    )


@pytest.mark.parametrize("name", ["no-such-namespace", "../netns/x", "é"])
def test_unknown_namespace_is_one_line(bus: Daemon, name: str) -> None:
    result = run("--address", bus.path, "--namespace", name)
    assert result.returncode == 1
    assert len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith(f"sbus-feed: network namespace {name!r}: ")


def test_no_bus_is_one_line(folder: Path) -> None:
    result = run("--address", str(folder / "absent"))
    assert result.returncode == 1
    assert len(result.stderr.splitlines()) == 1
    assert str(folder / "absent") in result.stderr
