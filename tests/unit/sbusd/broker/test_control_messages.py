"""Replies to control messages."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import sbus
from sbus.protocol import controls
from sbus_programs.config.rules import RightsSettings, Subjects
from sbus_programs.config.settings import DaemonSettings
from sbusd.broker.access import BusOwnership
from sbusd.broker.control_messages import FEATURES, PAGE_CLIENTS
from sbusd.dataplane.counters import ConnectionCounters, SwitchCounters
from tests.support.in_process_bus import BusClient, InProcessBus, MakeBus
from tests.support.wire import error_code

ALICE, BOB = 1_000, 1_001


def listed(answer: dict[str, object], name: str) -> list[dict[str, object]]:
    """Return a list of objects in a reply."""
    value = answer[name]
    assert isinstance(value, list)
    return value


def pages(client: BusClient) -> list[dict[str, object]]:
    """Return every page of the connections."""
    after: object = ""
    found = []
    while after is not None:
        found.append(client.ask_json(controls.CONNECTIONS, str(after).encode()))
        after = found[-1]["next"]
    return found


def test_whoami_is_the_prefix_of_the_own_secret_keys(bus: InProcessBus) -> None:
    client = bus.client(uid=ALICE, gid=100, pid=55)
    assert client.ask(controls.WHOAMI) == b"!/cred/100/1000/55"
    assert client.ask(controls.WHOAMI, b"ignored") == b"!/cred/100/1000/55"
    client.subscribe(client.ask(controls.WHOAMI) + b"/x")
    assert client.barrier() == []


def test_whoami_begins_with_the_credential_prefix(make_bus: MakeBus) -> None:
    client = make_bus(DaemonSettings(credential_prefix="!/cred/100/1000/1111")).client(uid=1_000, gid=1_000, pid=19_211)
    assert client.ask(controls.WHOAMI) == b"!/cred/100/1000/1111/!/cred/1000/1000/19211"


def test_features_are_one_name_per_line(bus: InProcessBus) -> None:
    assert bus.client().ask(controls.FEATURES).decode().split("\n") == list(FEATURES)


@pytest.mark.parametrize("token", [b"", b"t", b"\0\xff\0", b"x" * 100_000])
def test_ping_returns_the_token(bus: InProcessBus, token: bytes) -> None:
    assert bus.client().ask(controls.PING, token) == token


def test_an_owner_gets_the_statistics_of_the_bus(bus: InProcessBus) -> None:
    owner = bus.client()
    owner.publish(b"unused")
    answer = owner.ask_json(controls.STATS)
    assert (answer["scope"], answer["version"], answer["switch"]) == ("bus", sbus.__version__, bus.switch.kind)
    counters = answer["counters"]
    assert isinstance(counters, dict)
    assert list(counters) == list(SwitchCounters._fields)
    assert (counters["connections"], counters["messages"], counters["undeliverable"]) == (1, 1, 1)
    control = answer["control"]
    assert isinstance(control, dict)
    # The bus may have tried to read the unit of the client already, and there may be none where the tests run.
    assert control.pop("unknown_units") in {0, 1}
    assert control == {
        "control_packets": 1,
        "sent_errors": 0,
        "unknown_unsubscriptions": 0,
        "quota_refusals": 0,
        "reported_losses": 0,
        "configuration_faults": 0,
        "descriptor_senders": 0,
        "users_forgotten_early": 0,
        "internal_errors": 0,
        "late_units": 0,
        "connection_store_failures": 0,
        "connections_missing": 0,
        "state_failures": 0,
        "state_rewrites": 0,
    }
    assert answer["log"] == {"written": 0, "suppressed": 0, "dropped": 0, "waiting": 0}


def test_other_clients_get_only_their_own_statistics(bus: InProcessBus) -> None:
    client = bus.client(uid=ALICE, gid=7, pid=55)
    client.subscribe(b"a")
    answer = client.ask_json(controls.STATS)
    own = answer.pop("connection")
    assert answer == {"scope": "connection", "version": sbus.__version__}
    assert isinstance(own, dict)
    assert {name: own[name] for name in ("id", "pid", "uid", "gid", "subscriptions")} == {
        "id": client.connection,
        "pid": 55,
        "uid": ALICE,
        "gid": 7,
        "subscriptions": 1,
    }
    assert own["received_packets"] == 2
    assert own.keys() >= set(ConnectionCounters._fields)


@pytest.mark.parametrize("count", [1, PAGE_CLIENTS - 1, PAGE_CLIENTS, PAGE_CLIENTS + 1])
def test_connections_are_listed_in_pages(bus: InProcessBus, count: int) -> None:
    clients = [bus.client(uid=ALICE, pid=number) for number in range(1, count + 1)]
    found = pages(clients[-1])
    ids = [entry["id"] for page in found for entry in listed(page, "connections")]
    assert ids == [client.connection for client in clients]
    assert len(found) == 1 + (count > PAGE_CLIENTS)
    assert all(len(listed(page, "connections")) <= PAGE_CLIENTS for page in found)


def test_a_client_sees_its_own_user_and_the_number_of_hidden_clients(bus: InProcessBus) -> None:
    alice, bob, other_bob, owner = bus.client(uid=ALICE), bus.client(uid=BOB), bus.client(uid=BOB), bus.client()
    seen = {
        client.connection: ([entry["id"] for entry in listed(page, "connections")], page["hidden"])
        for client in (alice, bob, owner)
        for page in pages(client)
    }
    assert seen == {
        alice.connection: ([1], 3),
        bob.connection: ([2, 3], 2),
        owner.connection: ([1, 2, 3, 4], 0),
    }
    assert other_bob.barrier() == []


def test_the_inode_is_that_of_the_socket_of_the_bus(bus: InProcessBus) -> None:
    client = bus.client()
    (entry,) = listed(client.ask_json(controls.CONNECTIONS), "connections")
    held = {str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()}
    assert f"socket:[{entry['inode']}]" in held
    assert entry["inode"] != os.fstat(client.socket.fileno()).st_ino


def test_the_modes_of_a_connection_are_listed(bus: InProcessBus) -> None:
    client = bus.client()

    def modes() -> list[object]:
        (entry,) = listed(client.ask_json(controls.CONNECTIONS), "connections")
        return [entry["soft"], entry["hard"], entry["order"]]

    assert modes() == ["queue", "discard", "queue"]
    for control in (b"blocking/soft/error", b"blocking/hard/block", b"order/random", b"order/unknown"):
        client.control(control)
    assert [error_code(packet) for packet in client.receive_all()] == ["ENOSYS"]
    assert modes() == ["error", "block", "random"]


def test_an_admin_sees_all(make_bus: MakeBus) -> None:
    bus = make_bus(ownership=BusOwnership(0, None, frozenset({0, ALICE})))
    bus.client(uid=BOB)
    admin = bus.client(uid=ALICE)
    (page,) = pages(admin)
    assert len(listed(page, "connections")) == 2


@pytest.mark.parametrize("payload", [b"-1", b"x", b"1 ", b"1.0", b"9" * 20, b"\xff", b"\xd9\xa1", b"0\0"])
def test_a_page_start_that_is_not_a_number_is_only_an_error(bus: InProcessBus, payload: bytes) -> None:
    client = bus.client(uid=ALICE)
    for packet in ((controls.CONNECTIONS, payload), (controls.TRACE, b"key\0" + payload)):
        client.control(*packet)
        (reported,) = client.receive_all()
        assert error_code(reported) == "EINVAL"
    assert client.barrier() == []


def test_the_right_presence_shows_all_connections_but_not_their_patterns(make_bus: MakeBus) -> None:
    bus = make_bus(DaemonSettings(rights=RightsSettings(presence=Subjects((), (27,)))))
    watcher, other = bus.client(uid=1_000, groups=frozenset({27})), bus.client(uid=1_001)
    other.subscribe(b"!/cred//1001//x")
    assert other.barrier() == []
    seen = watcher.ask_json(controls.CONNECTIONS)
    assert ([entry["id"] for entry in listed(seen, "connections")], seen["hidden"]) == ([1, 2], 0)
    unseen = other.ask_json(controls.CONNECTIONS)
    assert ([entry["id"] for entry in listed(unseen, "connections")], unseen["hidden"]) == ([2], 1)
    # The right presence does not show patterns, so private keys of other users stay unknown.
    traced = watcher.ask_json(controls.TRACE, b"!/cred//1001//x")
    assert (traced["recipients"], traced["hidden"]) == ([], 1)
    assert watcher.ask_json(controls.STATS)["scope"] == "connection"


def test_an_address_has_the_number_of_its_connection_and_is_denied_to_others(bus: InProcessBus) -> None:
    alice, other = bus.client(uid=ALICE), bus.client(uid=ALICE)
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
    other.publish(b"!/conn/2/x", b"unowned")
    assert alice.receive_all() == []


def test_a_bus_without_reserved_keys_has_no_addresses(make_bus: MakeBus) -> None:
    client = make_bus(DaemonSettings(separator=".")).client()
    features = client.ask(controls.FEATURES).decode().split("\n")
    assert set(FEATURES) - set(features) == {"conn", "presence", "secret"}
    assert features == sorted(features)
    client.control(controls.ADDRESS)
    assert [error_code(packet) for packet in client.receive_all()] == ["ENOSYS"]
