"""What the bus answers to control messages."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import sbusd
from sbusd.broker.admission import BusOwnership
from sbusd.broker.control_messages import FEATURES, PAGE_CLIENTS
from sbusd.config.rules import RightsSettings, Subjects
from sbusd.config.settings import DaemonSettings
from sbusd.dataplane.contract import ConnectionCounters, SwitchCounters
from sbusd.protocol import controls
from tests.support.parlour import Guest, MakeParlour, Parlour
from tests.support.wire import error_code

ALICE, BOB = 1_000, 1_001


def listed(answer: dict[str, object], name: str) -> list[dict[str, object]]:
    """Return a list of objects in an answer."""
    value = answer[name]
    assert isinstance(value, list)
    return value


def pages(guest: Guest) -> list[dict[str, object]]:
    """Return every page of the connections."""
    after: object = ""
    found = []
    while after is not None:
        found.append(guest.ask_json(controls.CONNECTIONS, str(after).encode()))
        after = found[-1]["next"]
    return found


def test_whoami_is_the_head_of_one_s_secret_keys(parlour: Parlour) -> None:
    guest = parlour.guest(uid=ALICE, gid=100, pid=55)
    assert guest.ask(controls.WHOAMI) == b"!/cred/100/1000/55"
    assert guest.ask(controls.WHOAMI, b"ignored") == b"!/cred/100/1000/55"
    guest.subscribe(guest.ask(controls.WHOAMI) + b"/x")
    assert guest.barrier() == []


def test_whoami_behind_a_server_begins_with_its_prefix(make_parlour: MakeParlour) -> None:
    guest = make_parlour(DaemonSettings(credential_prefix="!/cred/100/1000/1111")).guest(uid=1_000, gid=1_000, pid=19_211)
    assert guest.ask(controls.WHOAMI) == b"!/cred/100/1000/1111/!/cred/1000/1000/19211"


def test_features_are_a_name_a_line(parlour: Parlour) -> None:
    assert parlour.guest().ask(controls.FEATURES).decode().split("\n") == list(FEATURES)


@pytest.mark.parametrize("token", [b"", b"t", b"\0\xff\0", b"x" * 100_000])
def test_ping_gives_the_token_back(parlour: Parlour, token: bytes) -> None:
    assert parlour.guest().ask(controls.PING, token) == token


def test_an_owner_is_told_of_the_bus(parlour: Parlour) -> None:
    owner = parlour.guest()
    owner.publish(b"nobody")
    answer = owner.ask_json(controls.STATS)
    assert (answer["scope"], answer["version"], answer["switch"]) == ("bus", sbusd.__version__, parlour.switch.kind)
    counters = answer["counters"]
    assert isinstance(counters, dict)
    assert list(counters) == list(SwitchCounters._fields)
    assert (counters["connections"], counters["messages"], counters["undeliverable"]) == (1, 1, 1)
    assert answer["control"] == {
        "control_packets": 1,
        "errors_told": 0,
        "unknown_unsubscriptions": 0,
        "quota_refusals": 0,
        "configuration_faults": 0,
        "descriptor_senders": 0,
        "users_forgotten_early": 0,
        "internal_errors": 0,
        "connections_unparked": 0,
        "state_failures": 0,
        "state_rewrites": 0,
    }
    assert answer["log"] == {"written": 0, "suppressed": 0, "dropped": 0, "waiting": 0}


def test_others_are_told_of_themselves_alone(parlour: Parlour) -> None:
    guest = parlour.guest(uid=ALICE, gid=7, pid=55)
    guest.subscribe(b"a")
    answer = guest.ask_json(controls.STATS)
    own = answer.pop("connection")
    assert answer == {"scope": "connection", "version": sbusd.__version__}
    assert isinstance(own, dict)
    assert {name: own[name] for name in ("id", "pid", "uid", "gid", "subscriptions")} == {
        "id": guest.connection,
        "pid": 55,
        "uid": ALICE,
        "gid": 7,
        "subscriptions": 1,
    }
    assert own["received_packets"] == 2
    assert own.keys() >= set(ConnectionCounters._fields)


@pytest.mark.parametrize("count", [1, PAGE_CLIENTS - 1, PAGE_CLIENTS, PAGE_CLIENTS + 1])
def test_connections_come_in_pages(parlour: Parlour, count: int) -> None:
    guests = [parlour.guest(uid=ALICE, pid=number) for number in range(1, count + 1)]
    found = pages(guests[-1])
    ids = [entry["id"] for page in found for entry in listed(page, "connections")]
    assert ids == [guest.connection for guest in guests]
    assert len(found) == 1 + (count > PAGE_CLIENTS)
    assert all(len(listed(page, "connections")) <= PAGE_CLIENTS for page in found)


def test_one_sees_one_s_own_user_and_how_many_are_hidden(parlour: Parlour) -> None:
    alice, bob, other_bob, owner = parlour.guest(uid=ALICE), parlour.guest(uid=BOB), parlour.guest(uid=BOB), parlour.guest()
    seen = {
        guest.connection: ([entry["id"] for entry in listed(page, "connections")], page["hidden"])
        for guest in (alice, bob, owner)
        for page in pages(guest)
    }
    assert seen == {
        alice.connection: ([1], 3),
        bob.connection: ([2, 3], 2),
        owner.connection: ([1, 2, 3, 4], 0),
    }
    assert other_bob.barrier() == []


def test_the_inode_is_that_of_the_bus_s_own_end(parlour: Parlour) -> None:
    guest = parlour.guest()
    (entry,) = listed(guest.ask_json(controls.CONNECTIONS), "connections")
    held = {str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()}
    assert f"socket:[{entry['inode']}]" in held
    assert entry["inode"] != os.fstat(guest.socket.fileno()).st_ino


def test_a_connection_s_modes_are_told(parlour: Parlour) -> None:
    guest = parlour.guest()

    def modes() -> list[object]:
        (entry,) = listed(guest.ask_json(controls.CONNECTIONS), "connections")
        return [entry["soft"], entry["hard"], entry["order"]]

    assert modes() == ["queue", "discard", "queue"]
    for control in (b"blocking/soft/error", b"blocking/hard/block", b"order/random", b"order/unheard-of"):
        guest.control(control)
    assert modes() == ["error", "block", "random"]


def test_an_admin_sees_all(make_parlour: MakeParlour) -> None:
    parlour = make_parlour(ownership=BusOwnership(0, None, frozenset({0, ALICE})))
    parlour.guest(uid=BOB)
    admin = parlour.guest(uid=ALICE)
    (page,) = pages(admin)
    assert len(listed(page, "connections")) == 2


@pytest.mark.parametrize("payload", [b"-1", b"x", b"1 ", b"1.0", b"9" * 20, b"\xff", b"\xd9\xa1", b"0\0"])
def test_a_page_that_is_no_number_is_an_error_and_nothing_more(parlour: Parlour, payload: bytes) -> None:
    guest = parlour.guest(uid=ALICE)
    for packet in ((controls.CONNECTIONS, payload), (controls.TRACE, b"key\0" + payload)):
        guest.control(*packet)
        (told,) = guest.receive_all()
        assert error_code(told) == "EINVAL"
    assert guest.barrier() == []


def test_who_has_the_right_sees_all_connections_and_no_more_of_them_than_that(make_parlour: MakeParlour) -> None:
    parlour = make_parlour(DaemonSettings(rights=RightsSettings(presence=Subjects((), (27,)))))
    watcher, other = parlour.guest(uid=1_000, groups=frozenset({27})), parlour.guest(uid=1_001)
    other.subscribe(b"!/cred//1001//x")
    assert other.barrier() == []
    seen = watcher.ask_json(controls.CONNECTIONS)
    assert ([entry["id"] for entry in listed(seen, "connections")], seen["hidden"]) == ([1, 2], 0)
    unseen = other.ask_json(controls.CONNECTIONS)
    assert ([entry["id"] for entry in listed(unseen, "connections")], unseen["hidden"]) == ([2], 1)
    # Patterns are not presence: another's secrets stay unknown.
    traced = watcher.ask_json(controls.TRACE, b"!/cred//1001//x")
    assert (traced["recipients"], traced["hidden"]) == ([], 1)
    assert watcher.ask_json(controls.STATS)["scope"] == "connection"


def test_address_is_the_number_of_the_connection_and_nobody_else_may_listen_there(parlour: Parlour) -> None:
    alice, other = parlour.guest(uid=ALICE), parlour.guest(uid=ALICE)
    assert (alice.ask(controls.ADDRESS), other.ask(controls.ADDRESS)) == (b"!/conn/1/", b"!/conn/2/")
    alice.subscribe(b"!/conn/1/")
    assert alice.barrier() == []
    other.subscribe(b"!/conn/1/x")
    assert [error_code(packet) for packet in other.receive_all()] == ["EPERM"]
    other.publish(b"!/conn/1/any/thing", b"hello")
    other.publish(b"!/conn/1", b"not a whole key")
    assert [error_code(packet) for packet in other.receive_all()] == ["EPERM"]
    assert alice.receive_all() == [b"MSG !/conn/1/any/thing\0hello"]
    alice.subscribe(b"")
    alice.subscribe(b"*/")
    other.publish(b"!/conn/2/x", b"nobody's")
    assert alice.receive_all() == []


def test_on_a_bus_that_reserves_nothing_there_are_no_addresses(make_parlour: MakeParlour) -> None:
    guest = make_parlour(DaemonSettings(separator=".")).guest()
    features = guest.ask(controls.FEATURES).decode().split("\n")
    assert set(FEATURES) - set(features) == {"conn", "presence", "secret"}
    assert features == sorted(features)
    guest.control(controls.ADDRESS)
    assert [error_code(packet) for packet in guest.receive_all()] == ["ENOSYS"]
