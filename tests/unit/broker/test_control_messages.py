"""What the bus answers to control messages."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import sbusd
from sbusd.broker.control_messages import (
    COMPARISON_COST,
    FEATURES,
    PAGE_CLIENTS,
    PAGE_MEMBERS,
    PATTERN_COST,
    TRACED_BYTES,
    TRACED_PATTERNS,
)  # fmt: skip
from sbusd.broker.ownership import BusOwnership
from sbusd.config.rules import Origin, PolicyRule, RightsSettings, Subjects
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


def test_trace_says_who_would_get_it_and_why_others_would_not(parlour: Parlour) -> None:
    one, two, three, owner = (parlour.guest(uid=uid, pid=uid) for uid in (ALICE, BOB, ALICE, 0))
    one.subscribe(b"a/*")
    one.subscribe(b"a/")
    one.subscribe(b"b")
    two.subscribe(b"b")
    parlour.run()
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
        2: "none of its 1 patterns matches the key",
        3: "the client has no subscription",
        4: "the client has no subscription",
    }
    assert three.barrier() == []
    assert parlour.switch.counters().messages == 0


def test_trace_of_a_secret_tells_that_wildcards_do_not_reach_it(parlour: Parlour) -> None:
    alice, owner = parlour.guest(uid=ALICE, gid=1, pid=2), parlour.guest()
    alice.subscribe(b"!/cred//1000//x")
    owner.subscribe(b"")
    parlour.run()
    answer = owner.ask_json(controls.TRACE, b"!/cred//1000//x")
    assert [entry["patterns"] for entry in listed(answer, "recipients")] == [["!/cred//1000//x"]]
    (other,) = listed(answer, "others")
    assert "wildcards do not match reserved keys" in str(other["reason"])


def test_trace_hides_other_users_from_one_who_is_no_owner(parlour: Parlour) -> None:
    alice, bob = parlour.guest(uid=ALICE), parlour.guest(uid=BOB)
    for guest in (alice, bob):
        guest.subscribe(b"a")
    parlour.run()
    answer = bob.ask_json(controls.TRACE, b"a")
    assert [entry["id"] for entry in listed(answer, "recipients")] == [bob.connection]
    assert (answer["others"], answer["hidden"]) == ([], 1)


def test_trace_of_a_key_nobody_may_publish_to_says_so(parlour: Parlour) -> None:
    owner = parlour.guest()
    answer = owner.ask_json(controls.TRACE, b"!/bus/error")
    assert answer["publishable"] is False
    assert [entry["reason"] for entry in listed(answer, "others")] == ["no client can publish to this key"]


def test_trace_shows_any_key_as_text(parlour: Parlour) -> None:
    answer = json.loads(parlour.guest().ask(controls.TRACE, b"\xff\x1b"))
    assert answer["key"] == "\\xff\x1b"


def test_trace_does_not_try_the_patterns_of_one_with_too_many(make_parlour: MakeParlour) -> None:
    parlour = make_parlour()
    guest = parlour.guest()
    for number in range(TRACED_PATTERNS + 1):
        guest.subscribe(b"a/*" if number % 2 else b"b/%d" % number)
        if number % 50 == 0:
            parlour.run()
    answer = guest.ask_json(controls.TRACE, b"a/x")
    assert [(entry["id"], entry["patterns"]) for entry in listed(answer, "recipients")] == [(1, [])]


def test_trace_compares_no_more_than_its_allowance_for_all_clients_together(parlour: Parlour) -> None:
    hostile = [parlour.guest(uid=ALICE) for _ in range(3)]
    # Two thirds of the allowance each: with the second it is over, and the page ends before it.
    key = b"a/" * 50
    cost = PATTERN_COST + COMPARISON_COST + 2 * len(key) + 10
    patterns = [key + b"*" * stars for stars in range(1, TRACED_BYTES * 2 // 3 // cost)]
    for guest in hostile:
        for pattern in patterns:
            guest.subscribe(pattern)
            parlour.run()
    after: object = None
    for guest in hostile:
        answer = hostile[0].ask_json(controls.TRACE, key if after is None else b"%b\0%b" % (key, str(after).encode()))
        (found,) = listed(answer, "recipients")
        assert found["id"] == guest.connection
        assert isinstance(found["patterns"], list)
        assert sorted(found["patterns"]) == sorted(pattern.decode() for pattern in patterns)
        after = answer["next"]
    assert after is None


def test_trace_leaves_out_the_patterns_of_one_that_has_more_than_the_allowance(parlour: Parlour) -> None:
    hostile, other = parlour.guest(uid=ALICE), parlour.guest(uid=ALICE)
    key = b"a/" * 500
    for stars in range(TRACED_BYTES // 1_000):
        hostile.subscribe(key + b"*" * stars)
        parlour.run()
    other.subscribe(b"a/")
    assert other.barrier() == []
    first = hostile.ask_json(controls.TRACE, key)
    assert [(entry["id"], entry["patterns"]) for entry in listed(first, "recipients")] == [(hostile.connection, [])]
    assert first["next"] == hostile.connection
    second = hostile.ask_json(controls.TRACE, b"%b\0%d" % (key, hostile.connection))
    assert [(entry["id"], entry["patterns"]) for entry in listed(second, "recipients")] == [(other.connection, ["a/"])]


def test_the_largest_answer_of_trace_fits_into_a_packet(parlour: Parlour) -> None:
    owner = parlour.guest()
    for _ in range(PAGE_CLIENTS - 1):
        guest = parlour.guest(uid=ALICE)
        guest.subscribe(b"\xff" * 4_000 + b"*")
        guest.subscribe(b"")
        parlour.run()
    answer = owner.ask(controls.TRACE, b"\xff" * 4_000)
    assert len(answer) < 300_000
    recipients = json.loads(answer)["recipients"]
    assert len(recipients) == 1


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


def test_trace_tells_that_a_rule_stops_the_asker_and_who_would_get_it_from_others(make_parlour: MakeParlour) -> None:
    parlour = make_parlour(DaemonSettings(policy=(PolicyRule("a", publish="deny", users=(0,), origin=Origin("f.toml", 1)),)))
    owner = parlour.guest()
    owner.subscribe(b"a")
    assert owner.barrier() == []
    traced = owner.ask_json(controls.TRACE, b"a")
    assert (traced["publishable"], traced["reason"]) == (False, "refused by rule 1 of f.toml")
    assert [entry["id"] for entry in listed(traced, "recipients")] == [1]


# -- addresses and members


def members(guest: Guest, key: bytes) -> list[tuple[object, object]]:
    """Return the members of a key, over all pages."""
    found: list[tuple[object, object]] = []
    after: object = ""
    while after is not None:
        page = guest.ask_json(controls.MEMBERS, b"%b\0%b" % (key, str(after).encode()))
        found += [(each["id"], each["cred"]) for each in listed(page, "members")]
        after = page["next"]
    return found


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


def test_members_are_whom_a_message_would_reach(parlour: Parlour) -> None:
    alice, bob, asker = parlour.guest(uid=ALICE, gid=7, pid=5), parlour.guest(uid=BOB, gid=8, pid=6), parlour.guest(uid=BOB, gid=8, pid=9)
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
    parlour.run()
    assert members(asker, b"rpc/x") == [(2, "!/cred/8/1001/6")]


@pytest.mark.parametrize("count", [PAGE_MEMBERS - 1, PAGE_MEMBERS, PAGE_MEMBERS + 1])
def test_members_come_in_pages(make_parlour: MakeParlour, count: int) -> None:
    parlour = make_parlour()
    guests = [parlour.guest() for _ in range(count)]
    for guest in guests:
        guest.subscribe(b"a")
    parlour.run()
    first = guests[0].ask_json(controls.MEMBERS, b"a")
    assert len(listed(first, "members")) == min(count, PAGE_MEMBERS)
    assert first["next"] == (PAGE_MEMBERS if count > PAGE_MEMBERS else None)
    assert [number for number, _ in members(guests[0], b"a")] == [guest.connection for guest in guests]


def test_members_of_a_secret_are_told_to_those_whom_it_is_for(parlour: Parlour) -> None:
    alice, bob, owner = parlour.guest(uid=ALICE, gid=7, pid=5), parlour.guest(uid=BOB), parlour.guest()
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


def test_members_of_a_key_that_a_rule_closes_are_told_to_owners_alone(make_parlour: MakeParlour) -> None:
    rule = PolicyRule("lab/", publish="deny", users=(0, BOB), origin=Origin("rules.toml", 1))
    parlour = make_parlour(DaemonSettings(policy=(rule,)))
    alice, bob, owner = parlour.guest(uid=ALICE), parlour.guest(uid=BOB), parlour.guest()
    alice.subscribe(b"lab/x")
    parlour.run()
    assert len(members(alice, b"lab/x")) == len(members(owner, b"lab/x")) == 1
    bob.control(controls.MEMBERS, b"lab/x")
    assert [error_code(packet) for packet in bob.receive_all()] == ["EPERM"]
