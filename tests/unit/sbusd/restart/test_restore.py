"""The restore of a bus, and the presence events about connections that are not restored."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from sbus.protocol import controls
from sbus.protocol.credentials import Credentials
from sbus_programs.config.rules import PolicyRule
from sbus_programs.config.settings import DaemonSettings
from sbusd.broker.durable_state import full_state
from sbusd.restart import restore as restoration
from sbusd.state.records import State, image, replay
from tests.support.in_process_bus import BusClient, InProcessBus, MakeBus

ALICE, BOB = 1_000, 1_001
NO_LAB = DaemonSettings(policy=(PolicyRule("lab/", subscribe="deny"),))

Return = Callable[[InProcessBus, State, dict[int, Credentials]], dict[int, BusClient]]


@pytest.fixture
def bring_back(monkeypatch: pytest.MonkeyPatch) -> Iterator[Return]:
    """Restore a state with some connections, by number and credentials, and return these."""
    clients: list[BusClient] = []

    def bring(bus: InProcessBus, left: State, there: dict[int, Credentials]) -> dict[int, BusClient]:
        found, by_fd = {}, {}
        for number, who in there.items():
            mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            theirs.setblocking(False)
            left.connections[number].inode = os.fstat(theirs.fileno()).st_ino
            by_fd[theirs.detach()] = who
            found[number] = BusClient(mine, number, bus.run)
        clients.extend(found.values())
        monkeypatch.setattr(restoration, "credentials_of", by_fd.__getitem__)
        outcome = restoration.restore(bus.broker, left, list(by_fd))
        assert (outcome.restored, outcome.gone) == (len(there), len(left.connections) - len(there))
        for step in outcome.then:
            step()
        return found

    yield bring
    for client in clients:
        client.close()


def _left(bus: InProcessBus) -> State:
    """Return the full state of *bus*."""
    bus.run()
    return replay(image(full_state(bus.broker)))


def _events(client: BusClient) -> list[tuple[bytes, object]]:
    """Return the received events: their keys without prefix, and the connection."""
    packets = [packet.partition(b"\0") for packet in client.receive_all()]
    assert all(head.startswith(b"MSG !/event/") for head, _, _ in packets), packets
    return [(head.removeprefix(b"MSG !/event/"), json.loads(payload)["cred"]) for head, _, payload in packets]


def test_a_connection_that_is_not_restored_has_a_disconnect_event(make_bus: MakeBus, bring_back: Return) -> None:
    """Otherwise a client that waits for its response would wait without end."""
    before = make_bus()
    there = {}
    for uid in (0, ALICE, BOB):
        client = before.client(uid=uid, gid=7, pid=40)
        client.subscribe(b"!/event/disconnect/")
        there[client.connection] = Credentials(40, uid, 7)
    before.client(uid=ALICE, gid=7, pid=55)
    left = _left(before)
    clients = bring_back(make_bus(), left, there)
    reported = {there[number].uid: _events(client) for number, client in clients.items()}
    gone = [(b"disconnect/4", "!/cred/7/1000/55")]
    assert reported == {0: gone, ALICE: gone, BOB: gone}


def test_packets_pending_for_a_connection_that_is_not_restored_are_reported(make_bus: MakeBus, bring_back: Return) -> None:
    before = make_bus()
    owner, slow = before.client(), before.client(uid=ALICE, gid=7, pid=55)
    owner.control(controls.TAP_ON, b"!/event/")
    slow.subscribe(b"a")
    sender = before.client(uid=ALICE, gid=7, pid=56)
    for _ in range(40):
        sender.publish(b"a", bytes(10_000))
        before.run()
    waited = before.switch.connection_counters(slow.connection).queued_packets
    owner.receive_all()
    there = {owner.connection: Credentials(1, 0, 0), sender.connection: Credentials(56, ALICE, 7)}
    clients = bring_back(make_bus(), _left(before), there)
    reported = [
        json.loads(packet.partition(b"\0")[2]) for packet in clients[owner.connection].receive_all() if packet.startswith(b"CMSG !/tap")
    ]
    assert waited > 0
    assert [(line["kind"], line["id"], line["count"]) for line in reported] == [("disconnect", slow.connection, waited)]


def test_a_subscription_that_is_not_restored_has_an_event(make_bus: MakeBus, bring_back: Return) -> None:
    before = make_bus()
    there = {before.client().connection: Credentials(1, 0, 0), before.client(uid=BOB, gid=7, pid=9).connection: Credentials(9, BOB, 7)}
    state = _left(before)
    state.connections[1].patterns = {b"!/event/unsubscribe/": 1}
    state.connections[2].patterns = {b"lab/x": 2, b"b": 1}
    owner, bob = bring_back(make_bus(NO_LAB), state, there).values()
    assert _events(owner) == [(b"unsubscribe/2/lab/x", "!/cred/7/1001/9")]
    assert [packet[:28] for packet in bob.receive_all()] == [b"CMSG !/bus/error\0EPERM the s"]
    members = owner.ask_json(controls.MEMBERS, b"lab/x")
    assert members == {"members": [], "next": None}


def test_a_state_without_credentials_causes_no_event(make_bus: MakeBus, bring_back: Return) -> None:
    """An older bus wrote such states."""
    before = make_bus()
    owner = before.client()
    owner.subscribe(b"!/event/")
    with closing(before.client(uid=ALICE)):
        left = _left(before)
    left.connections[2].who = None
    (owner,) = bring_back(make_bus(), left, {1: Credentials(1, 0, 0)}).values()
    assert owner.receive_all() == []


def test_a_connection_keeps_its_address(make_bus: MakeBus, bring_back: Return) -> None:
    before = make_bus()
    client = before.client(uid=ALICE)
    client.subscribe(b"!/conn/1/rpc/x")
    left = _left(before)
    (client,) = bring_back(make_bus(), left, {1: Credentials(1, ALICE, 0)}).values()
    client.publish(b"!/conn/1/rpc/x", b"call")
    assert client.receive_all() == [b"MSG !/conn/1/rpc/x\0call"]


def test_a_tap_ends_with_its_right(make_bus: MakeBus, bring_back: Return) -> None:
    """The rules that hold now decide, as for subscriptions."""
    before = make_bus()
    owner, alice = before.client(), before.client(uid=ALICE, gid=7, pid=55)
    there = {owner.connection: Credentials(1, 0, 0), alice.connection: Credentials(55, ALICE, 7)}
    state = _left(before)
    state.connections[1].tap = state.connections[2].tap = b"a"
    bus = make_bus()
    owner, alice = bring_back(bus, state, there).values()
    assert alice.receive_all() == [b"CMSG !/bus/error\0EPERM the right to tap this bus was revoked"]
    alice.publish(b"a", b"x")
    (seen,) = owner.receive_all()
    assert seen.startswith(b"CMSG !/tap")
    assert seen.endswith(b"MSG a\0x")
    assert alice.receive_all() == []
