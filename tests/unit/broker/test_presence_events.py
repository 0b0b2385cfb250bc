"""Events: what happened, in order, to those who may know."""

from __future__ import annotations

import base64
import json
import time

import pytest

from sbusd.config.rules import Origin, PolicyRule, RightsSettings, Subjects
from sbusd.config.settings import DaemonSettings, LimitSettings
from sbusd.protocol import controls
from tests.support.parlour import Guest, MakeParlour, Parlour
from tests.support.wire import error_code, message

ALICE, BOB, CAROL = 1_000, 1_001, 1_002
SEEING = DaemonSettings(rights=RightsSettings(presence=Subjects(users=(CAROL,))))


def events(guest: Guest) -> list[bytes]:
    """Return the keys of the events that have come, without their head; all that came must be events."""
    packets = [packet.partition(b"\0")[0] for packet in guest.receive_all()]
    assert all(packet.startswith(b"MSG !/event/") for packet in packets)
    return [packet.removeprefix(b"MSG !/event/") for packet in packets]


def listener(parlour: Parlour, uid: int = 0, pattern: bytes = b"!/event/") -> Guest:
    """Let in a guest who listens."""
    guest = parlour.guest(uid=uid)
    guest.subscribe(pattern)
    guest.receive_all()
    return guest


def test_life_of_a_connection_is_told_in_its_order(parlour: Parlour) -> None:
    owner = listener(parlour)
    before = time.time_ns()
    alice = parlour.guest(uid=ALICE, gid=7, pid=55)
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
    told = [json.loads(payload) for _, _, payload in packets]
    times = [facts.pop("time") for facts in told]
    assert times == sorted(times)
    assert before <= times[0] <= times[-1] <= time.time_ns()
    who: dict[str, object] = {"id": 2, "cred": "!/cred/7/1000/55"}
    assert told == [who, who | {"pattern": "a/*"}, who | {"pattern": "b"}, who | {"pattern": "a/*"}, who]


def test_only_the_first_instance_and_the_end_of_the_last_are_events(parlour: Parlour) -> None:
    owner, alice = listener(parlour), parlour.guest(uid=ALICE)
    for verb in (b"SUB", b"SUB", b"UNSUB", b"SUB", b"UNSUB", b"UNSUB", b"UNSUB"):
        alice.send(verb + b" a")
    assert events(owner) == [b"connect/2", b"subscribe/2/a", b"unsubscribe/2/a"]


def test_one_hears_of_oneself(parlour: Parlour) -> None:
    guest = parlour.guest(uid=ALICE)
    guest.subscribe(b"!/event/")
    guest.subscribe(b"a")
    guest.unsubscribe(b"a")
    guest.subscribe(b"!/event/*/")
    guest.unsubscribe(b"!/event/")
    guest.unsubscribe(b"!/event/*/")
    assert events(guest) == [
        b"subscribe/1/!/event/",
        b"subscribe/1/a",
        b"unsubscribe/1/a",
        b"subscribe/1/!/event/*/",
        b"unsubscribe/1/!/event/",
    ]
    assert not parlour.broker._presence.listening


def test_who_may_know_what(make_parlour: MakeParlour) -> None:
    parlour = make_parlour(SEEING)
    watchers = {uid: listener(parlour, uid) for uid in (0, ALICE, BOB, CAROL)}
    for watcher in watchers.values():
        watcher.receive_all()
    alice = parlour.guest(uid=ALICE)
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


def test_right_that_is_taken_away_is_felt_at_once(make_parlour: MakeParlour) -> None:
    parlour = make_parlour(SEEING)
    carol, alice = listener(parlour, CAROL), parlour.guest(uid=ALICE)
    parlour.broker.reconfigure(DaemonSettings(), parlour.broker._ownership)
    alice.subscribe(b"a")
    assert events(carol) == [b"connect/2"]


@pytest.mark.parametrize("pattern", [b"\xff\xfe", "schön/*".encode(), b'"\\\n\x01', b"a\\xff", b"", b"*"])
def test_pattern_is_told_without_loss(parlour: Parlour, pattern: bytes) -> None:
    owner = listener(parlour)
    owner.subscribe(pattern)
    (packet,) = owner.receive_all()
    key, _, payload = packet.partition(b"\0")
    assert key == b"MSG !/event/subscribe/1/" + pattern
    facts = json.loads(payload)
    encoded = facts.get("pattern_base64")
    assert (base64.b64decode(encoded) if encoded else facts["pattern"].encode()) == pattern


def test_one_connection_can_be_watched(parlour: Parlour) -> None:
    bob = listener(parlour, BOB, b"!/event/disconnect/3")
    other, service = parlour.guest(uid=ALICE), parlour.guest(uid=ALICE)
    other.close()
    assert events(bob) == []
    service.publish(b"last", b"words")
    service.close()
    assert events(bob) == [b"disconnect/3"]


def test_last_words_come_before_the_news_of_the_end(parlour: Parlour) -> None:
    bob, service = listener(parlour, BOB, b"!/event/disconnect/"), parlour.guest(uid=ALICE)
    bob.subscribe(b"a")
    bob.barrier()
    service.publish(b"a", b"last words")
    service.close()
    assert [packet.partition(b"\0")[0] for packet in bob.receive_all()] == [b"MSG a", b"MSG !/event/disconnect/2"]


def test_connection_that_is_turned_away_is_no_event(make_parlour: MakeParlour) -> None:
    parlour = make_parlour()
    owner = listener(parlour)
    parlour.arriving = OSError(5, "no word")
    parlour.arrive()
    assert events(owner) == []


@pytest.mark.parametrize("is_asked_first", [False, True])
def test_members_and_connections_agree_with_the_events_in_front_of_them(parlour: Parlour, is_asked_first: bool) -> None:
    """The end is found in the turn in which the questions are read: no answer may run ahead of the event, or fall behind it."""
    owner, alice = listener(parlour), parlour.guest(uid=ALICE)
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


def test_slow_listener_loses_events_alone_and_is_told(make_parlour: MakeParlour) -> None:
    parlour = make_parlour(DaemonSettings(limits=LimitSettings(queue_packets=10)))
    slow, quick, alice = listener(parlour), listener(parlour), parlour.guest(uid=ALICE)
    pattern = b"x" * 4_000
    heard = events(quick)
    for _ in range(400):
        alice.subscribe(pattern)
        alice.unsubscribe(pattern)
        heard += events(quick)
    assert heard.count(b"subscribe/3/" + pattern) == 400
    packets = slow.receive_all()
    lost = sum(int(packet.partition(b"\0")[2]) for packet in packets if packet.startswith(b"CMSG !/bus/lost"))
    told = sum(packet.startswith(b"MSG !/event/") for packet in packets)
    assert lost > 0
    assert lost + told == 803  # that quick came and listened, that alice came, and her subscriptions
    assert alice.barrier() == []


def test_rule_can_close_events(make_parlour: MakeParlour) -> None:
    rule = PolicyRule("!/event/", subscribe="deny", users=(BOB,), origin=Origin("rules.toml", 1))
    parlour = make_parlour(DaemonSettings(policy=(rule,)))
    bob = parlour.guest(uid=BOB)
    for pattern in (b"!/event/", b"!/event/connect/", b"!/event/*/1"):
        bob.subscribe(pattern)
        assert [error_code(packet) for packet in bob.receive_all()] == ["EPERM"]
    bob.subscribe(b"a")
    assert bob.barrier() == []


def test_no_client_can_publish_an_event(parlour: Parlour) -> None:
    owner, alice = listener(parlour), parlour.guest(uid=ALICE)
    owner.receive_all()
    for forger in (owner, alice):
        forger.send(message(b"!/event/disconnect/1", b"{}"))
        assert [error_code(packet) for packet in forger.receive_all()] == ["EPERM"]


def test_without_a_listener_nothing_is_made(parlour: Parlour, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parlour.broker._presence, "_publish", None)
    alice = parlour.guest(uid=ALICE)
    alice.subscribe(b"a")
    alice.unsubscribe(b"a")
    alice.close()
    parlour.run()
    assert parlour.switch.counters().deliveries == 0


def test_on_a_bus_that_reserves_nothing_the_head_of_events_is_an_ordinary_key(make_parlour: MakeParlour) -> None:
    parlour = make_parlour(DaemonSettings(separator="."))
    guest = parlour.guest(uid=ALICE)
    guest.subscribe(b"!/event/")
    parlour.guest(uid=BOB)
    assert guest.barrier() == []
