"""Links between real buses, over a real NATS server."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from sbus.protocol import controls
from sbus.protocol.packets import control_packet
from sbus_services.link.network.nats import NatsNetwork
from sbus_services.link.rules import Export, Import, Rules
from tests.integration.link.conftest import Realm, one_server
from tests.support.daemons import Daemon, StartDaemon
from tests.support.running_links import RunningLink
from tests.support.wire import RawClient, message

EXPORTS = (Export(b"net/"), Export(b"private/", frozenset({"beta"})))
IMPORTS = (Import(b""),)
UNKNOWN_LOSS = control_packet(controls.LOST, b"0")


class Host:
    """A bus, and its link."""

    def __init__(self, name: str, bus: Daemon, realm: Realm) -> None:
        self.name = name
        self.bus = bus
        self._realm = realm
        self._settings = realm.nats_settings(name)

    def link(self) -> RunningLink:
        """Return a link that can be started."""
        rules = Rules("R", self.name, EXPORTS, IMPORTS)
        return RunningLink(rules, self.bus.path, lambda writable, report: NatsNetwork(self._settings, writable, report))

    def client(self, *patterns: bytes) -> RawClient:
        """Return a client with these subscriptions."""
        client = self.bus.client()
        for pattern in patterns:
            client.subscribe(pattern)
        assert client.barrier() == []
        return client


@pytest.fixture
def make_host(realm: Realm, daemon: StartDaemon, tmp_path: Path) -> Callable[[str], Host]:
    def make(name: str) -> Host:
        config = tmp_path / f"{name}.toml"
        config.write_text(f"[rights.vouch]\nusers = [{os.geteuid()}]\n[rights.presence]\nusers = [{os.geteuid()}]\n")
        return Host(name, daemon("-C", str(config)), realm)

    return make


@pytest.fixture
def small_host(realm: Realm, daemon: StartDaemon, tmp_path: Path) -> Host:
    """The host alpha, whose bus stores 20 patterns of the link."""
    uid = os.geteuid()
    config = tmp_path / "small.toml"
    quota = f"[[quotas.overrides]]\nusers = [{uid}]\nsubscriptions = 20\n"
    config.write_text(f"[rights.vouch]\nusers = [{uid}]\n[rights.presence]\nusers = [{uid}]\n{quota}")
    return Host("alpha", daemon("-C", str(config)), realm)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as ends:
        yield ends


def linked(stack: ExitStack, *hosts: Host) -> list[RunningLink]:
    """Start the links of *hosts*, and return them when each knows the others."""
    links = [stack.enter_context(host.link()) for host in hosts]
    for host, link in zip(hosts, links, strict=True):
        link.wait_for_hosts(*(other.name for other in hosts if other is not host))
    return links


def next_message(client: RawClient) -> bytes:
    """Return the next packet that does not report an unknown loss. Links report one, or two, when they begin to know each other."""
    while (packet := client.receive()) == UNKNOWN_LOSS:
        pass
    return packet


def test_a_message_appears_on_another_host_with_its_origin(make_host: Callable[[str], Host], stack: ExitStack) -> None:
    alpha, beta = make_host("alpha"), make_host("beta")
    early = beta.client(b"host/alpha/net/")
    links = linked(stack, alpha, beta)
    late = beta.client(b"host/*/net/link/*")
    late.control(controls.SENDER_ON)
    links[1].synchronize()
    assert links[1].link is not None
    assert links[1].link._session is not None
    used = links[1].link._session._local._by_user
    assert {uid: len(each.patterns) for uid, each in used.items()} == {os.geteuid(): 2}
    publisher = alpha.client()
    name = publisher.ask(controls.WHOAMI)
    publisher.publish(b"net/link/eth0", b"up")
    publisher.publish(b"net/route", b"changed")
    publisher.publish(b"other/net", b"stays")
    assert early.receive() == UNKNOWN_LOSS  # it has subscribed before the link was there
    assert next_message(early) == message(b"host/alpha/net/link/eth0", b"up")
    assert next_message(early) == message(b"host/alpha/net/route", b"changed")
    head, _, rest = next_message(late).partition(b"\0")
    assert head.startswith(b"CMSG !/from/")
    assert head.endswith(b"/!/host/alpha/" + name)
    assert rest == message(b"host/alpha/net/link/eth0", b"up")


@one_server
def test_a_restricted_export_reaches_only_its_hosts(make_host: Callable[[str], Host], stack: ExitStack) -> None:
    hosts = [make_host(name) for name in ("alpha", "beta", "gamma")]
    links = linked(stack, *hosts)
    readers = [host.client(b"host/alpha/") for host in hosts[1:]]
    for link in links[1:]:
        link.synchronize()
    publisher = hosts[0].client()
    publisher.publish(b"private/a", b"for beta")
    publisher.publish(b"net/a", b"for all")
    assert next_message(readers[0]) == message(b"host/alpha/private/a", b"for beta")
    assert next_message(readers[0]) == next_message(readers[1]) == message(b"host/alpha/net/a", b"for all")


@one_server
def test_undelivered_messages_are_reported_to_the_publisher(make_host: Callable[[str], Host], stack: ExitStack) -> None:
    alpha, beta = make_host("alpha"), make_host("beta")
    links = linked(stack, alpha, beta)
    publisher = alpha.client()
    assert publisher.ask(controls.MEMBERS, b"net/a").count(b"!/cred/") == 0
    reader = beta.client(b"host/alpha/net/a")
    links[1].synchronize()
    assert publisher.ask(controls.MEMBERS, b"net/a").count(b"!/cred/") == 1
    reader.close()
    while publisher.ask(controls.MEMBERS, b"net/a").count(b"!/cred/"):
        pass


@one_server
def test_messages_sent_while_the_server_is_away_arrive_or_are_reported(
    make_host: Callable[[str], Host], stack: ExitStack, realm: Realm
) -> None:
    alpha, beta = make_host("alpha"), make_host("beta")
    links = linked(stack, alpha, beta)
    reader = beta.client(b"host/alpha/net/")
    links[1].synchronize()
    publisher = alpha.client()
    publisher.publish(b"net/a", b"0")
    assert next_message(reader) == message(b"host/alpha/net/a", b"0")
    realm.server.kill()
    for number in range(1, 100):
        publisher.publish(b"net/a", b"%d" % number)
    publisher.barrier()
    realm.server.start()
    received: list[int] = []
    lost = 0
    while len(received) + lost < 99:
        packet = reader.receive()
        if packet == UNKNOWN_LOSS:
            break
        payload = packet.partition(b"\0")[2]
        if packet.startswith(b"MSG "):
            received.append(int(payload))
        else:
            lost += int(payload)
    assert received == sorted(set(received))
    assert len(received) + lost <= 99


@one_server
def test_patterns_that_a_bus_refuses_are_an_unknown_loss_elsewhere(
    make_host: Callable[[str], Host], small_host: Host, stack: ExitStack
) -> None:
    beta = make_host("beta")
    links = linked(stack, small_host, beta)
    reader = beta.client(b"host/alpha/net/0")
    links[1].synchronize()
    for number in range(1, 40):
        reader.subscribe(b"host/alpha/net/%d" % number)
    reader.barrier()
    small_host.client().publish(b"net/0", b"works")
    packets = {reader.receive()}
    while packets != {UNKNOWN_LOSS, message(b"host/alpha/net/0", b"works")}:
        packets.add(reader.receive())
        assert len(packets) <= 2, packets


@one_server
def test_a_link_that_begins_again_continues(make_host: Callable[[str], Host], stack: ExitStack) -> None:
    alpha, beta = make_host("alpha"), make_host("beta")
    links = linked(stack, alpha, beta)
    reader = beta.client(b"host/alpha/net/")
    links[0].stop()
    # Otherwise the old link could be the one that confirms.
    links[1].wait_for_hosts()
    fresh = stack.enter_context(alpha.link())
    fresh.wait_for_hosts("beta")
    links[1].wait_for_hosts("alpha")
    links[1].synchronize()
    alpha.client().publish(b"net/a", b"again")
    packets = [reader.receive()]
    while not packets[-1].startswith(b"MSG "):
        assert packets[-1].startswith(b"CMSG !/bus/lost")
        packets.append(reader.receive())
    assert packets[-1] == message(b"host/alpha/net/a", b"again")


@one_server
def test_a_user_without_rights_is_told_what_is_missing(realm: Realm, bus: Daemon, stack: ExitStack) -> None:
    link = stack.enter_context(Host("alpha", bus, realm).link())
    link.wait(lambda _: any("has no right vouch; see sbus-link(8), RIGHTS" in line for line in link.reports))


@one_server
def test_a_host_with_another_version_is_reported(make_host: Callable[[str], Host], realm: Realm, stack: ExitStack) -> None:
    """Its heads have no serials."""
    alpha = stack.enter_context(make_host("alpha").link())
    (gamma,) = realm.connected("gamma")

    def is_reported(_: object) -> bool:
        gamma.publish("s.R.h.gamma", b"H/1/1/2000/0/0/0/1", b"")
        return any("host gamma has another version of sbus-link" in line for line in alpha.reports)

    alpha.wait(is_reported)
