"""The restore of a bus, and the presence events about connections that are not restored."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from sbusd.broker.durable_state import full_state
from sbusd.config.rules import PolicyRule
from sbusd.config.settings import DaemonSettings
from sbusd.protocol import controls
from sbusd.protocol.credentials import Credentials
from sbusd.restart import restore as restoration
from sbusd.state.records import State, image, replay
from tests.support.parlour import Guest, MakeParlour, Parlour

ALICE, BOB = 1_000, 1_001
NO_LAB = DaemonSettings(policy=(PolicyRule("lab/", subscribe="deny"),))

Return = Callable[[Parlour, State, dict[int, Credentials]], dict[int, Guest]]


@pytest.fixture
def bring_back(monkeypatch: pytest.MonkeyPatch) -> Iterator[Return]:
    """Restore a state with some connections, by number and credentials, and return these."""
    guests: list[Guest] = []

    def bring(parlour: Parlour, left: State, there: dict[int, Credentials]) -> dict[int, Guest]:
        found, by_fd = {}, {}
        for number, who in there.items():
            mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            theirs.setblocking(False)
            left.connections[number].inode = os.fstat(theirs.fileno()).st_ino
            by_fd[theirs.detach()] = who
            found[number] = Guest(mine, number, parlour.run)
        guests.extend(found.values())
        monkeypatch.setattr(restoration, "credentials_of", by_fd.__getitem__)
        outcome = restoration.restore(parlour.broker.components(), left, list(by_fd))
        assert (outcome.restored, outcome.gone) == (len(there), len(left.connections) - len(there))
        for step in outcome.then:
            step()
        return found

    yield bring
    for guest in guests:
        guest.close()


def _left(parlour: Parlour) -> State:
    """Return the full state of *parlour*."""
    parlour.run()
    return replay(image(full_state(parlour.broker.components())))


def _events(guest: Guest) -> list[tuple[bytes, object]]:
    """Return the received events: their keys without prefix, and the connection."""
    packets = [packet.partition(b"\0") for packet in guest.receive_all()]
    assert all(head.startswith(b"MSG !/event/") for head, _, _ in packets), packets
    return [(head.removeprefix(b"MSG !/event/"), json.loads(payload)["cred"]) for head, _, payload in packets]


def test_a_connection_that_is_not_restored_has_a_disconnect_event(make_parlour: MakeParlour, bring_back: Return) -> None:
    """Otherwise a client that waits for its response would wait without end."""
    before = make_parlour()
    there = {}
    for uid in (0, ALICE, BOB):
        guest = before.guest(uid=uid, gid=7, pid=40)
        guest.subscribe(b"!/event/disconnect/")
        there[guest.connection] = Credentials(40, uid, 7)
    before.guest(uid=ALICE, gid=7, pid=55)
    left = _left(before)
    guests = bring_back(make_parlour(), left, there)
    told = {there[number].uid: _events(guest) for number, guest in guests.items()}
    gone = [(b"disconnect/4", "!/cred/7/1000/55")]
    assert told == {0: gone, ALICE: gone, BOB: gone}


def test_packets_pending_for_a_connection_that_is_not_restored_are_reported(make_parlour: MakeParlour, bring_back: Return) -> None:
    before = make_parlour()
    owner, slow = before.guest(), before.guest(uid=ALICE, gid=7, pid=55)
    owner.control(controls.TAP_ON, b"!/event/")
    slow.subscribe(b"a")
    sender = before.guest(uid=ALICE, gid=7, pid=56)
    for _ in range(40):
        sender.publish(b"a", bytes(10_000))
        before.run()
    waited = before.switch.connection_counters(slow.connection).queued_packets
    owner.receive_all()
    there = {owner.connection: Credentials(1, 0, 0), sender.connection: Credentials(56, ALICE, 7)}
    guests = bring_back(make_parlour(), _left(before), there)
    told = [json.loads(packet.partition(b"\0")[2]) for packet in guests[owner.connection].receive_all() if packet.startswith(b"CMSG !/tap")]
    assert waited > 0
    assert [(line["kind"], line["id"], line["count"]) for line in told] == [("disconnect", slow.connection, waited)]


def test_a_subscription_that_is_not_restored_has_an_event(make_parlour: MakeParlour, bring_back: Return) -> None:
    before = make_parlour()
    there = {before.guest().connection: Credentials(1, 0, 0), before.guest(uid=BOB, gid=7, pid=9).connection: Credentials(9, BOB, 7)}
    state = _left(before)
    state.connections[1].patterns = {b"!/event/unsubscribe/": 1}
    state.connections[2].patterns = {b"lab/x": 2, b"b": 1}
    owner, bob = bring_back(make_parlour(NO_LAB), state, there).values()
    assert _events(owner) == [(b"unsubscribe/2/lab/x", "!/cred/7/1001/9")]
    assert [packet[:28] for packet in bob.receive_all()] == [b"CMSG !/bus/error\0EPERM the s"]
    members = owner.ask_json(controls.MEMBERS, b"lab/x")
    assert members == {"members": [], "next": None}


def test_a_state_without_credentials_causes_no_event(make_parlour: MakeParlour, bring_back: Return) -> None:
    """An older bus wrote such states."""
    before = make_parlour()
    owner = before.guest()
    owner.subscribe(b"!/event/")
    with closing(before.guest(uid=ALICE)):
        left = _left(before)
    left.connections[2].who = None
    (owner,) = bring_back(make_parlour(), left, {1: Credentials(1, 0, 0)}).values()
    assert owner.receive_all() == []


def test_a_connection_keeps_its_address(make_parlour: MakeParlour, bring_back: Return) -> None:
    before = make_parlour()
    guest = before.guest(uid=ALICE)
    guest.subscribe(b"!/conn/1/rpc/x")
    left = _left(before)
    (guest,) = bring_back(make_parlour(), left, {1: Credentials(1, ALICE, 0)}).values()
    guest.publish(b"!/conn/1/rpc/x", b"call")
    assert guest.receive_all() == [b"MSG !/conn/1/rpc/x\0call"]
