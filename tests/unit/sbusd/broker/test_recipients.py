"""The recipients of a key: members and traces."""

from __future__ import annotations

import json

import pytest

from sbus.protocol import controls
from sbus_programs.config.rules import Origin, PolicyRule
from sbus_programs.config.settings import DaemonSettings
from sbusd.broker.control_messages import PAGE_CLIENTS
from sbusd.broker.recipients import COMPARISON_COST, MAX_TRACED_PATTERNS, PAGE_MEMBERS, PATTERN_COST, TRACED_BYTES
from tests.support.in_process_bus import BusClient, InProcessBus, MakeBus
from tests.support.wire import error_code

ALICE, BOB = 1_000, 1_001


def listed(answer: dict[str, object], name: str) -> list[dict[str, object]]:
    """Return a list of objects in a reply."""
    value = answer[name]
    assert isinstance(value, list)
    return value


def test_trace_lists_recipients_and_reasons_for_the_others(bus: InProcessBus) -> None:
    one, two, three, owner = (bus.client(uid=uid, pid=uid) for uid in (ALICE, BOB, ALICE, 0))
    one.subscribe(b"a/*")
    one.subscribe(b"a/")
    one.subscribe(b"b")
    two.subscribe(b"b")
    bus.run()
    answer = owner.ask_json(controls.TRACE, b"a/x")
    assert (answer["key"], answer["publishable"], answer["next"], answer["hidden"]) == ("a/x", True, None, 0)
    (recipient,) = listed(answer, "recipients")
    patterns = recipient.pop("patterns")
    assert isinstance(patterns, list)
    assert recipient.pop("when_full") == "discard"
    assert [recipient.pop(name) for name in ("blocked_others_ms", "blocks_count", "blocks")] == [0, 0, []]
    assert (recipient, sorted(patterns)) == ({"id": 1, "pid": ALICE, "uid": ALICE}, ["a/", "a/*"])
    reasons = {entry["id"]: entry["reason"] for entry in listed(answer, "others")}
    assert reasons == {
        2: "none of its patterns (1) matches the key",
        3: "the client has no subscription",
        4: "the client has no subscription",
    }
    assert three.barrier() == []
    assert bus.switch.counters().messages == 0


def test_trace_of_a_secret_key_explains_that_wildcards_do_not_match(bus: InProcessBus) -> None:
    alice, owner = bus.client(uid=ALICE, gid=1, pid=2), bus.client()
    alice.subscribe(b"!/cred//1000//x")
    owner.subscribe(b"")
    bus.run()
    answer = owner.ask_json(controls.TRACE, b"!/cred//1000//x")
    assert [entry["patterns"] for entry in listed(answer, "recipients")] == [["!/cred//1000//x"]]
    (other,) = listed(answer, "others")
    assert "wildcards do not match reserved keys" in str(other["reason"])


def test_trace_hides_other_users_from_clients_that_are_not_owners(bus: InProcessBus) -> None:
    alice, bob = bus.client(uid=ALICE), bus.client(uid=BOB)
    for client in (alice, bob):
        client.subscribe(b"a")
    bus.run()
    answer = bob.ask_json(controls.TRACE, b"a")
    assert [entry["id"] for entry in listed(answer, "recipients")] == [bob.connection]
    assert (answer["others"], answer["hidden"]) == ([], 1)


def test_trace_of_an_unpublishable_key_has_no_recipients(bus: InProcessBus) -> None:
    owner = bus.client()
    answer = owner.ask_json(controls.TRACE, b"!/bus/error")
    assert answer["publishable"] is False
    assert [entry["reason"] for entry in listed(answer, "others")] == ["no client can publish to this key"]


def test_trace_shows_any_key_as_text(bus: InProcessBus) -> None:
    answer = json.loads(bus.client().ask(controls.TRACE, b"\xff\x1b"))
    assert answer["key"] == "\\xff\x1b"


def test_trace_does_not_compare_too_many_patterns(make_bus: MakeBus) -> None:
    bus = make_bus()
    client = bus.client()
    for number in range(MAX_TRACED_PATTERNS + 1):
        client.subscribe(b"a/*" if number % 2 else b"b/%d" % number)
        if number % 50 == 0:
            bus.run()
    answer = client.ask_json(controls.TRACE, b"a/x")
    assert [(entry["id"], entry["patterns"]) for entry in listed(answer, "recipients")] == [(1, [])]


def test_trace_compares_no_more_than_its_allowance_for_all_clients_together(bus: InProcessBus) -> None:
    hostile = [bus.client(uid=ALICE) for _ in range(3)]
    # Each client takes two thirds of the allowance, so the page ends before the second.
    key = b"a/" * 50
    cost = PATTERN_COST + COMPARISON_COST + 2 * len(key) + 10
    patterns = [key + b"*" * stars for stars in range(1, TRACED_BYTES * 2 // 3 // cost)]
    for client in hostile:
        for pattern in patterns:
            client.subscribe(pattern)
            bus.run()
    after: object = None
    for client in hostile:
        answer = hostile[0].ask_json(controls.TRACE, key if after is None else b"%b\0%b" % (key, str(after).encode()))
        (found,) = listed(answer, "recipients")
        assert found["id"] == client.connection
        assert isinstance(found["patterns"], list)
        assert sorted(found["patterns"]) == sorted(pattern.decode() for pattern in patterns)
        after = answer["next"]
    assert after is None


def test_trace_omits_patterns_that_exceed_the_allowance(bus: InProcessBus) -> None:
    hostile, other = bus.client(uid=ALICE), bus.client(uid=ALICE)
    key = b"a/" * 500
    for stars in range(TRACED_BYTES // 1_000):
        hostile.subscribe(key + b"*" * stars)
        bus.run()
    other.subscribe(b"a/")
    assert other.barrier() == []
    first = hostile.ask_json(controls.TRACE, key)
    assert [(entry["id"], entry["patterns"]) for entry in listed(first, "recipients")] == [(hostile.connection, [])]
    assert first["next"] == hostile.connection
    second = hostile.ask_json(controls.TRACE, b"%b\0%d" % (key, hostile.connection))
    assert [(entry["id"], entry["patterns"]) for entry in listed(second, "recipients")] == [(other.connection, ["a/"])]


def test_the_largest_trace_fits_into_a_packet(bus: InProcessBus) -> None:
    owner = bus.client()
    for _ in range(PAGE_CLIENTS - 1):
        client = bus.client(uid=ALICE)
        client.subscribe(b"\xff" * 4_000 + b"*")
        client.subscribe(b"")
        bus.run()
    answer = owner.ask(controls.TRACE, b"\xff" * 4_000)
    assert len(answer) < 300_000
    recipients = json.loads(answer)["recipients"]
    assert len(recipients) == 1


def test_trace_names_the_denying_rule_and_lists_recipients(make_bus: MakeBus) -> None:
    bus = make_bus(DaemonSettings(policy=(PolicyRule("a", publish="deny", users=(0,), origin=Origin("f.toml", 1)),)))
    owner = bus.client()
    owner.subscribe(b"a")
    assert owner.barrier() == []
    traced = owner.ask_json(controls.TRACE, b"a")
    assert (traced["publishable"], traced["reason"]) == (False, "refused by rule 1 of f.toml")
    assert [entry["id"] for entry in listed(traced, "recipients")] == [1]


# -- addresses and members


def members(client: BusClient, key: bytes) -> list[tuple[object, object]]:
    """Return the members of a key, over all pages."""
    found: list[tuple[object, object]] = []
    after: object = ""
    while after is not None:
        page = client.ask_json(controls.MEMBERS, b"%b\0%b" % (key, str(after).encode()))
        found += [(each["id"], each["cred"]) for each in listed(page, "members")]
        after = page["next"]
    return found


def test_members_are_the_recipients_of_a_message(bus: InProcessBus) -> None:
    alice, bob, asker = bus.client(uid=ALICE, gid=7, pid=5), bus.client(uid=BOB, gid=8, pid=6), bus.client(uid=BOB, gid=8, pid=9)
    alice.subscribe(b"rpc/x")
    bob.subscribe(b"rpc/*")
    bob.subscribe(b"rpc/x")
    assert alice.barrier() == bob.barrier() == []
    assert members(asker, b"rpc/x") == [(1, "!/cred/7/1000/5"), (2, "!/cred/8/1001/6")]
    assert members(asker, b"rpc/y") == [(2, "!/cred/8/1001/6")]
    assert members(asker, b"other") == []
    asker.subscribe(b"other")
    assert members(asker, b"other") == [(3, "!/cred/8/1001/9")]
    alice.close()
    bus.run()
    assert members(asker, b"rpc/x") == [(2, "!/cred/8/1001/6")]


@pytest.mark.parametrize("count", [PAGE_MEMBERS - 1, PAGE_MEMBERS, PAGE_MEMBERS + 1])
def test_members_are_listed_in_pages(make_bus: MakeBus, count: int) -> None:
    bus = make_bus()
    clients = [bus.client() for _ in range(count)]
    for client in clients:
        client.subscribe(b"a")
    bus.run()
    first = clients[0].ask_json(controls.MEMBERS, b"a")
    assert len(listed(first, "members")) == min(count, PAGE_MEMBERS)
    assert first["next"] == (PAGE_MEMBERS if count > PAGE_MEMBERS else None)
    assert [number for number, _ in members(clients[0], b"a")] == [client.connection for client in clients]


def test_members_of_a_secret_key_are_listed_for_matching_clients(bus: InProcessBus) -> None:
    alice, bob, owner = bus.client(uid=ALICE, gid=7, pid=5), bus.client(uid=BOB), bus.client()
    secret = b"!/cred//1000//x"
    alice.subscribe(secret)
    assert members(alice, secret) == members(owner, secret) == [(1, "!/cred/7/1000/5")]
    for key, code in ((secret, "EPERM"), (b"!/cred/x/1000//x", "EPERM"), (b"!/cred/1", "EPERM"), (b"!/event/connect/1", "EPERM")):
        bob.control(controls.MEMBERS, key)
        assert [error_code(packet) for packet in bob.receive_all()] == [code], key
    bob.control(controls.MEMBERS, b"k" * 5_000)
    assert [error_code(packet) for packet in bob.receive_all()] == ["EMSGSIZE"]
    bob.control(controls.MEMBERS, b"a\0nonsense")
    assert [error_code(packet) for packet in bob.receive_all()] == ["EINVAL"]


def test_members_of_a_denied_key_are_listed_for_owners_only(make_bus: MakeBus) -> None:
    rule = PolicyRule("lab/", publish="deny", users=(0, BOB), origin=Origin("rules.toml", 1))
    bus = make_bus(DaemonSettings(policy=(rule,)))
    alice, bob, owner = bus.client(uid=ALICE), bus.client(uid=BOB), bus.client()
    alice.subscribe(b"lab/x")
    bus.run()
    assert len(members(alice, b"lab/x")) == len(members(owner, b"lab/x")) == 1
    bob.control(controls.MEMBERS, b"lab/x")
    assert [error_code(packet) for packet in bob.receive_all()] == ["EPERM"]
