"""Presence events: their order, their recipients, and their JSON."""

from __future__ import annotations

import base64
import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbus.protocol import controls
from sbus.protocol.credentials import Credentials
from sbus_programs.config.rules import Origin, PolicyRule, RightsSettings, Subjects
from sbus_programs.config.settings import DaemonSettings, LimitSettings
from sbusd.broker.events import connection_members, key_members
from tests.support.in_process_bus import BusClient, InProcessBus, MakeBus
from tests.support.wire import error_code, message

ALICE, BOB, CAROL = 1_000, 1_001, 1_002
SEEING = DaemonSettings(rights=RightsSettings(presence=Subjects(users=(CAROL,))))


def events(client: BusClient) -> list[bytes]:
    """Return the keys of the received events, without their prefix. All received packets must be events."""
    packets = [packet.partition(b"\0")[0] for packet in client.receive_all()]
    assert all(packet.startswith(b"MSG !/event/") for packet in packets)
    return [packet.removeprefix(b"MSG !/event/") for packet in packets]


def listener(bus: InProcessBus, uid: int = 0, pattern: bytes = b"!/event/") -> BusClient:
    """Connect a client that subscribes to events."""
    client = bus.client(uid=uid)
    client.subscribe(pattern)
    client.receive_all()
    return client


def test_events_of_a_connection_are_in_order(bus: InProcessBus) -> None:
    owner = listener(bus)
    before = time.time_ns()
    alice = bus.client(uid=ALICE, gid=7, pid=55)
    alice.subscribe(b"a/*")
    alice.subscribe(b"b")
    alice.unsubscribe(b"a/*")
    alice.close()
    packets = [packet.partition(b"\0") for packet in owner.receive_all()]
    assert [key for key, _, _ in packets] == [
        b"MSG !/event/connect/2",
        b"MSG !/event/subscribe/2/a/*",
        b"MSG !/event/subscribe/2/b",
        b"MSG !/event/unsubscribe/2/a/*",
        b"MSG !/event/disconnect/2",
    ]
    reported = [json.loads(payload) for _, _, payload in packets]
    times = [facts.pop("time") for facts in reported]
    assert times == sorted(times)
    assert before <= times[0] <= times[-1] <= time.time_ns()
    who: dict[str, object] = {"id": 2, "cred": "!/cred/7/1000/55"}
    assert reported == [who, who | {"pattern": "a/*"}, who | {"pattern": "b"}, who | {"pattern": "a/*"}, who]


def test_only_the_first_instance_and_the_end_of_the_last_are_events(bus: InProcessBus) -> None:
    owner, alice = listener(bus), bus.client(uid=ALICE)
    for verb in (b"SUB", b"SUB", b"UNSUB", b"SUB", b"UNSUB", b"UNSUB", b"UNSUB"):
        alice.send(verb + b" a")
    assert events(owner) == [b"connect/2", b"subscribe/2/a", b"unsubscribe/2/a"]


def test_a_client_receives_events_about_itself(bus: InProcessBus) -> None:
    client = bus.client(uid=ALICE)
    client.subscribe(b"!/event/")
    client.subscribe(b"a")
    client.unsubscribe(b"a")
    client.subscribe(b"!/event/*/")
    client.unsubscribe(b"!/event/")
    client.unsubscribe(b"!/event/*/")
    assert events(client) == [
        b"subscribe/1/!/event/",
        b"subscribe/1/a",
        b"unsubscribe/1/a",
        b"subscribe/1/!/event/*/",
        b"unsubscribe/1/!/event/",
    ]
    assert not bus.broker.presence.listeners


def test_events_are_sent_to_clients_that_may_see_them(make_bus: MakeBus) -> None:
    bus = make_bus(SEEING)
    watchers = {uid: listener(bus, uid) for uid in (0, ALICE, BOB, CAROL)}
    for watcher in watchers.values():
        watcher.receive_all()
    alice = bus.client(uid=ALICE)
    alice.subscribe(b"open")
    alice.subscribe(b"!/cred//1000//secret")
    alice.subscribe(b"!/conn/5/")
    alice.unsubscribe(b"!/cred//1000//secret")
    alice.close()
    secret = b"scribe/5/!/cred//1000//secret"
    public, ends = [b"connect/5"], [b"disconnect/5"]
    assert events(watchers[BOB]) == public + ends
    assert events(watchers[CAROL]) == [*public, b"subscribe/5/open", b"subscribe/5/!/conn/5/", *ends]
    all_of_it = [*public, b"subscribe/5/open", b"sub" + secret, b"subscribe/5/!/conn/5/", b"unsub" + secret, *ends]
    assert events(watchers[0]) == events(watchers[ALICE]) == all_of_it


def test_a_revoked_right_takes_effect_at_once(make_bus: MakeBus) -> None:
    bus = make_bus(SEEING)
    carol, alice = listener(bus, CAROL), bus.client(uid=ALICE)
    bus.broker.reconfigure(DaemonSettings(), bus.broker.ownership)
    alice.subscribe(b"a")
    assert events(carol) == [b"connect/2"]


@pytest.mark.parametrize("pattern", [b"\xff\xfe", "schön/*".encode(), b'"\\\n\x01', b"a\\xff", b"", b"*"])
def test_patterns_in_events_are_lossless(bus: InProcessBus, pattern: bytes) -> None:
    owner = listener(bus)
    owner.subscribe(pattern)
    (packet,) = owner.receive_all()
    key, _, payload = packet.partition(b"\0")
    assert key == b"MSG !/event/subscribe/1/" + pattern
    facts = json.loads(payload)
    encoded = facts.get("pattern_base64")
    assert (base64.b64decode(encoded) if encoded else facts["pattern"].encode()) == pattern


def test_one_connection_can_be_watched(bus: InProcessBus) -> None:
    bob = listener(bus, BOB, b"!/event/disconnect/3")
    other, service = bus.client(uid=ALICE), bus.client(uid=ALICE)
    other.close()
    assert events(bob) == []
    service.publish(b"last", b"words")
    service.close()
    assert events(bob) == [b"disconnect/3"]


def test_the_last_error_comes_before_the_disconnect_event(bus: InProcessBus) -> None:
    bob, service = listener(bus, BOB, b"!/event/disconnect/"), bus.client(uid=ALICE)
    bob.subscribe(b"a")
    bob.barrier()
    service.publish(b"a", b"last words")
    service.close()
    assert [packet.partition(b"\0")[0] for packet in bob.receive_all()] == [b"MSG a", b"MSG !/event/disconnect/2"]


def test_a_rejected_connection_causes_no_event(make_bus: MakeBus) -> None:
    bus = make_bus()
    owner = listener(bus)
    bus.next_credentials = OSError(5, "no word")
    bus.connect_next()
    assert events(owner) == []


@pytest.mark.parametrize("is_asked_first", [False, True])
def test_members_and_connections_agree_with_the_events_before_them(bus: InProcessBus, is_asked_first: bool) -> None:
    """The disconnect is found in the turn that reads the requests. Each reply must agree with the events before it."""
    owner, alice = listener(bus), bus.client(uid=ALICE)
    alice.subscribe(b"a")
    assert events(owner)[-1] == b"subscribe/2/a"
    for asks in (is_asked_first, not is_asked_first):
        if asks:
            owner.control(controls.MEMBERS, b"a")
            owner.control(controls.CONNECTIONS)
        else:
            alice.send(b"no such packet")
    packets = owner.receive_all()
    owner.control(controls.MEMBERS, b"a")
    present, questions = [1, 2], 0
    for packet in [*packets, *owner.receive_all()]:
        head, _, payload = packet.partition(b"\0")
        if head == b"MSG !/event/disconnect/2":
            present.remove(2)
        else:
            answer = json.loads(payload)
            found = answer.get("members", answer.get("connections"))
            assert [each["id"] for each in found] == [each for each in present if each == 2 or "connections" in answer]
            questions += 1
    assert (present, questions) == ([1], 3)


def test_only_a_slow_listener_loses_events_and_is_notified(make_bus: MakeBus) -> None:
    bus = make_bus(DaemonSettings(limits=LimitSettings(queue_packets=10)))
    slow, quick, alice = listener(bus), listener(bus), bus.client(uid=ALICE)
    pattern = b"x" * 4_000
    delivered = events(quick)
    for _ in range(400):
        alice.subscribe(pattern)
        alice.unsubscribe(pattern)
        delivered += events(quick)
    assert delivered.count(b"subscribe/3/" + pattern) == 400
    packets = slow.receive_all()
    lost = sum(int(packet.partition(b"\0")[2]) for packet in packets if packet.startswith(b"CMSG !/bus/lost"))
    reported = sum(packet.startswith(b"MSG !/event/") for packet in packets)
    assert lost > 0
    assert lost + reported == 803  # quick connected and subscribed, alice connected, and her subscriptions
    assert alice.barrier() == []


def test_a_rule_can_deny_events(make_bus: MakeBus) -> None:
    rule = PolicyRule("!/event/", subscribe="deny", users=(BOB,), origin=Origin("rules.toml", 1))
    bus = make_bus(DaemonSettings(policy=(rule,)))
    bob = bus.client(uid=BOB)
    for pattern in (b"!/event/", b"!/event/connect/", b"!/event/*/1"):
        bob.subscribe(pattern)
        assert [error_code(packet) for packet in bob.receive_all()] == ["EPERM"]
    bob.subscribe(b"a")
    assert bob.barrier() == []


def test_no_client_can_publish_an_event(bus: InProcessBus) -> None:
    owner, alice = listener(bus), bus.client(uid=ALICE)
    owner.receive_all()
    for forger in (owner, alice):
        forger.send(message(b"!/event/disconnect/1", b"{}"))
        assert [error_code(packet) for packet in forger.receive_all()] == ["EPERM"]


def test_without_a_listener_no_event_is_made(bus: InProcessBus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bus.broker.presence, "_publish", None)
    alice = bus.client(uid=ALICE)
    alice.subscribe(b"a")
    alice.unsubscribe(b"a")
    alice.close()
    bus.run()
    assert bus.switch.counters().deliveries == 0


def test_on_a_bus_without_reserved_keys_the_event_prefix_is_ordinary(make_bus: MakeBus) -> None:
    bus = make_bus(DaemonSettings(separator="."))
    client = bus.client(uid=ALICE)
    client.subscribe(b"!/event/")
    bus.client(uid=BOB)
    assert client.barrier() == []


@given(st.binary())
def test_what_is_spelt_can_be_read_back_from_json(data: bytes) -> None:
    members = json.loads(json.dumps(key_members("key", data)))
    encoded = members.get("key_base64")
    assert (members["key"].encode() if encoded is None else base64.b64decode(encoded)) == data


def test_spelling_is_base64_too_only_where_text_does_not_do() -> None:
    assert key_members("key", b"a\\xff") == {"key": "a\\xff"}
    assert key_members("key", b"a\xff") == {"key": "a\\xff", "key_base64": "Yf8="}


def test_connection_is_described_by_its_number_credentials_and_the_time() -> None:
    assert connection_members(5, Credentials(55, 1_000, 7), b"", 12) == {"id": 5, "cred": "!/cred/7/1000/55", "time": 12}
    assert connection_members(5, Credentials(1, 2, 3), b"!/cred/0/0/0", 12)["cred"] == "!/cred/0/0/0/!/cred/3/2/1"
