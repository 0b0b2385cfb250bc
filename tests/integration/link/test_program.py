"""The program sbus-link on two hosts, by a NATS server and by direct connections: messages, its commands, and its events."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from sbus import Bus, Gap, Message, RemoteError, Subscription, Unanswered
from sbus_services.link.administration import MAX_WAITING_OF_USER
from tests.integration.link.conftest import Realm
from tests.support.authority import Authority
from tests.support.free_ports import free_port
from tests.support.link_programs import ENV, LinkProgram
from tests.support.nats_servers import require_server
from tests.support.relays import wait_for
from tests.support.users import User

RULES = '[[export]]\nkeys = "net/"\n[[import]]\nkeys = ""\n'
SECONDS = 60.0
UNWANTED, WANTED = 5_000, 100
OVERHEAD_BYTES = 400
"""More than a frame adds to a message."""


def server_of(path: str) -> int:
    """Return the process that serves the bus at *path*."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        probe.connect(path)
        return int(struct.unpack("3i", probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0])


@dataclass
class Pair:
    """Two hosts."""

    alpha: LinkProgram
    beta: LinkProgram
    is_by_nats: bool

    def linked(self, stack: ExitStack) -> Pair:
        """Start both links, and wait until each knows the other."""
        for each in (self.alpha, self.beta):
            stack.enter_context(each)
        self.alpha.wait_for_hosts("beta")
        self.beta.wait_for_hosts("alpha")
        return self


@pytest.fixture
def program() -> Path:
    """Debian's server; other tests use a newer one too."""
    return require_server("debian")


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as ends:
        yield ends


@pytest.fixture
def by_nats(realm: Realm, make_bus: Callable[[], str], tmp_path: Path) -> Pair:
    def link(name: str) -> LinkProgram:
        tls = realm.authority.settings(realm.authority.sign(name))
        return LinkProgram(tmp_path, name, make_bus(), f'servers = ["{realm.url}"]\n{tls}{RULES}')

    return Pair(link("alpha"), link("beta"), is_by_nats=True)


@pytest.fixture
def direct(make_bus: Callable[[], str], tmp_path: Path) -> Pair:
    authority = Authority(tmp_path)
    port = free_port()

    def link(name: str, listen: int, peer: str) -> LinkProgram:
        tls = authority.settings(authority.sign(name))
        text = f'transport = "direct"\nlisten = "127.0.0.1:{listen}"\n{tls}[[peers]]\n{peer}\n{RULES}'
        return LinkProgram(tmp_path, name, make_bus(), text)

    alpha = link("alpha", port, 'host = "beta"')
    return Pair(alpha, link("beta", free_port(), f'host = "alpha"\naddress = "127.0.0.1:{port}"'), is_by_nats=False)


@pytest.fixture(params=["by_nats", "direct"])
def pair(request: pytest.FixtureRequest) -> Pair:
    made = request.getfixturevalue(request.param)
    assert isinstance(made, Pair)
    return made


def next_of(subscription: Subscription, key: bytes = b"") -> Message:
    """Return the next message, with *key* if it is not empty."""
    while True:
        item = subscription.receive(timeout=SECONDS)
        if isinstance(item, Message) and key in {b"", item.key_bytes}:
            return item
        assert isinstance(item, Message | Gap)


def test_messages_cross_with_the_credentials_of_their_publisher(pair: Pair, stack: ExitStack) -> None:
    pair.linked(stack)
    with Bus.connect(pair.beta.bus) as reader, Bus.connect(pair.alpha.bus) as publisher:
        reader.tell("sender/on")
        received = reader.subscribe("host/*/net/")
        pair.beta.synchronize()
        publisher.publish("net/link/eth0", b"up")
        publisher.publish("other", b"stays")
        publisher.publish("net/link/eth1", b"down")
        first, second = next_of(received), next_of(received)
        assert (first.key, first.payload, second.key) == ("host/alpha/net/link/eth0", b"up", "host/alpha/net/link/eth1")
        assert first.sender is not None
        assert first.sender.origin.startswith(f"!/host/alpha/!/cred/{os.getegid()}/{os.geteuid()}/")


def test_sbusctl_shows_the_link_and_waits_for_it(pair: Pair, stack: ExitStack) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "sbusctl.main", "--address", pair.alpha.bus, *arguments]
        return subprocess.run(command, env=ENV, capture_output=True, text=True, check=False, timeout=SECONDS)

    none = run("link", "status")
    assert (none.returncode, none.stdout) == (3, "")
    assert run("top", "--link", "--once", "--interval", "0.1").returncode == 3
    assert none.stderr == "sbusctl: no link on this bus; start it for this bus: sbus-link -C FILE\n"
    pair.linked(stack)
    shown = run("link", "status")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert [line.split()[:2] for line in shown.stdout.splitlines()[-1:]] == [["beta", "alive"]]
    assert "network        connected, " in shown.stdout
    assert json.loads(run("link", "status", "--json=short").stdout)["hosts"][0]["name"] == "beta"
    assert run("link", "sync").returncode == 0
    top = run("top", "--link", "--once", "--interval", "0.1", "--json=short")
    assert [(row["name"], row["state"]) for row in json.loads(top.stdout)["hosts"]] == [("beta", "alive")]
    assert "beta" in run("top", "--link", "--once", "--interval", "0.1").stdout.splitlines()[-1]
    stopped = server_of(pair.beta.bus)
    os.kill(stopped, signal.SIGSTOP)  # beta's link is alive, and cannot confirm
    try:
        with Bus.connect(pair.alpha.bus) as bus:
            bus.subscribe("host/beta/other")
            bus.ping()
            late = run("link", "sync", "--timeout", "1")
    finally:
        os.kill(stopped, signal.SIGCONT)
    assert late.returncode != 0
    assert late.stderr.startswith("sbusctl: ")
    assert late.stderr.count("\n") == 1


def test_the_state_and_events_are_published(pair: Pair, stack: ExitStack) -> None:
    with Bus.connect(pair.alpha.bus) as watcher:
        events = watcher.subscribe("link/host/", "link/network")
        states = watcher.subscribe("link/state")
        pair.linked(stack)
        assert json.loads(next_of(events, b"link/network").payload)["event"] == "up"
        assert json.loads(next_of(events, b"link/host/beta").payload) == {"event": "up", "host": "beta"}
        state = json.loads(next_of(states).payload)
        assert (state["realm"], state["host"], state["network"]["encrypted"]) == ("R", "alpha", True)
        assert pair.beta.stop() == 0
        down = json.loads(next_of(events, b"link/host/beta").payload)
        assert (down["event"], down["host"]) == ("down", "beta")
        while [host["alive"] for host in json.loads(next_of(states).payload)["hosts"]] != [False]:
            pass
    assert ("host beta sends no heartbeats" in pair.alpha.log) is pair.is_by_nats
    assert "stopped linking host beta" in pair.beta.log


def test_a_loss_is_an_event_and_a_record(by_nats: Pair, realm: Realm, stack: ExitStack) -> None:
    by_nats.linked(stack)
    with Bus.connect(by_nats.beta.bus) as reader:
        events = reader.subscribe("link/lost/alpha")
        reader.subscribe("host/alpha/net/")
        by_nats.beta.synchronize()
        by_nats.alpha.kill()
        by_nats.alpha.start()
        lost = json.loads(next_of(events).payload)
        assert (lost["host"], lost["count"], lost["patterns"]) == ("alpha", 0, ["host/alpha/net/"])
    wait_for(lambda: "lost an unknown number of messages of host alpha" in by_nats.beta.log, "the record of the loss")
    by_nats.alpha.wait_for_hosts("beta")  # it can be stopped then


def test_a_network_that_is_away_is_reported(by_nats: Pair, realm: Realm, stack: ExitStack) -> None:
    by_nats.linked(stack)
    # Hosts can know each other before the link has published that the network is up. If it went before that, nothing would have changed.
    wait_for(lambda: "network available" in by_nats.alpha.log, "the record of the network")
    with Bus.connect(by_nats.alpha.bus) as watcher:
        events = watcher.subscribe("link/network")
        watcher.ping()
        realm.server.kill()
        # The event is published after it is recorded.
        while (down := json.loads(next_of(events).payload))["event"] == "up":
            pass
        assert (down["event"], bool(down["reason"])) == ("down", True)
        realm.server.start()
        assert json.loads(next_of(events).payload) == {"event": "up", "server": realm.url}
    wait_for(lambda: "network unavailable" in by_nats.alpha.log, "the record of the network")


def test_a_user_cannot_occupy_the_commands(by_nats: Pair, stack: ExitStack, first_user: User) -> None:
    """A host that does not respond delays link/sync; one user's calls must not prevent those of others."""
    by_nats.linked(stack)
    stopped = server_of(by_nats.beta.bus)
    os.kill(stopped, signal.SIGSTOP)
    stack.callback(os.kill, stopped, signal.SIGCONT)
    holder = stack.enter_context(Bus.connect(by_nats.alpha.bus))
    holder.subscribe("host/beta/net/x")
    holder.ping()
    failures: list[str] = []

    def call() -> None:
        with Bus.connect(by_nats.alpha.bus) as bus:
            try:
                bus.call("link/sync", timeout=SECONDS)
            except (RemoteError, Unanswered) as error:
                failures.append(str(error))

    threads = [threading.Thread(target=call) for _ in range(MAX_WAITING_OF_USER + 3)]
    for thread in threads:
        thread.start()
    wait_for(lambda: len(failures) == 3, "three refusals")
    assert all("too many calls of link/sync wait" in each for each in failures)
    path = by_nats.alpha.bus

    def status_of_other_user() -> str:
        with Bus.connect(path) as bus:
            return str(json.loads(bus.call("link/status", timeout=SECONDS))["host"])

    assert first_user.call(status_of_other_user) == "alpha"
    os.kill(stopped, signal.SIGCONT)
    for thread in threads:
        thread.join()
    # Beta's link was alive all the time: now it confirms.
    assert len(failures) == 3


def test_only_what_is_wanted_elsewhere_crosses(by_nats: Pair, realm: Realm, stack: ExitStack) -> None:
    """Counted by the server: a message without a subscription would be counted as received, and not as delivered."""
    realm.server.kill()
    monitor = f"127.0.0.1:{free_port()}"
    realm.replace_configuration(lambda text: f'{text}\nhttp: "{monitor}"\n')
    realm.server.start()
    by_nats.linked(stack)
    reader, publisher = (stack.enter_context(Bus.connect(each.bus)) for each in (by_nats.beta, by_nats.alpha))
    received = reader.subscribe("host/alpha/net/link/eth0")
    by_nats.beta.synchronize()
    before, payload = traffic_of(monitor), bytes(1_000)
    for _ in range(UNWANTED):
        publisher.publish("net/link/eth1", payload)  # exported, and not wanted
    for _ in range(WANTED):
        publisher.publish("net/link/eth0", payload)
    for _ in range(WANTED):
        assert next_of(received).key == "host/alpha/net/link/eth0"
    wait_for(lambda: (now := traffic_of(monitor)).received - before.received == now.delivered - before.delivered, "all that was received")
    after = traffic_of(monitor)
    assert 0 < after.messages - before.messages <= WANTED  # a frame contains several
    assert after.bytes - before.bytes < WANTED * (len(payload) + OVERHEAD_BYTES)
    wait_for(lambda: received_of(reader, "alpha") >= WANTED, "a state after the messages")
    assert received_of(reader, "alpha") == WANTED


def received_of(bus: Bus, origin: str) -> int:
    """Return how many messages of *origin* the link of *bus* has received."""
    (host,) = json.loads(bus.call("link/status", timeout=SECONDS))["hosts"]
    assert host["name"] == origin
    return int(host["messages"])


@dataclass(frozen=True)
class ServerTraffic:
    """Counters of a server that two hosts use."""

    received: int
    """From all hosts, of all kinds."""
    delivered: int
    """To all hosts, of all kinds."""
    messages: int
    """Delivered frames with messages of clients of a bus."""
    bytes: int
    """Received bytes."""


def traffic_of(monitor: str) -> ServerTraffic:
    """Return the counters of the server with that address for monitoring, nats-server(8)."""
    with urllib.request.urlopen(f"http://{monitor}/connz?subs=detail", timeout=SECONDS) as answer:
        connections = json.load(answer)["connections"]
    lines = [line for each in connections for line in each.get("subscriptions_list_detail", ())]
    return ServerTraffic(
        sum(each["in_msgs"] for each in connections),
        sum(line["msgs"] for line in lines),
        sum(line["msgs"] for line in lines if line["subject"].startswith("s.R.m.")),
        sum(each["in_bytes"] for each in connections),
    )
