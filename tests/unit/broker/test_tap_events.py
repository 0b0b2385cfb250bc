"""What taps are told of beside messages, and who may have one."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from sbusd.broker.admission import BusOwnership
from sbusd.config.quotas import QuotaSettings
from sbusd.config.rules import Origin, PolicyRule, RightsSettings, Subjects
from sbusd.config.settings import DaemonSettings, LimitSettings
from sbusd.protocol import controls
from tests.support.parlour import Guest, MakeParlour, Parlour
from tests.support.wire import error_code

ALICE, BOB, TAPPER = 1_000, 1_001, 1_002
WITH_RIGHT = DaemonSettings(rights=RightsSettings(tap=Subjects(users=(TAPPER,))))
HEAD = b"CMSG !/tap\0"


def lines(packets: list[bytes]) -> Iterator[dict[str, object]]:
    """Yield the lines that a tap was told, without their times."""
    for packet in packets:
        assert packet.startswith(HEAD), packet
        facts = json.loads(packet.removeprefix(HEAD).partition(b"\n")[0])
        assert abs(facts.pop("time") - time.time_ns()) < 600e9
        yield facts


def tapping(parlour: Parlour, pattern: bytes = b"", uid: int = 0) -> Guest:
    """Let in a guest with a tap."""
    guest = parlour.guest(uid=uid)
    guest.control(controls.TAP_ON, pattern)
    assert guest.receive_all() == []
    return guest


@pytest.mark.parametrize("uid", [0, TAPPER])
def test_owners_and_those_with_the_right_may_tap(make_parlour: MakeParlour, uid: int) -> None:
    parlour = make_parlour(WITH_RIGHT)
    guest = tapping(parlour, uid=uid)
    parlour.guest(uid=ALICE).publish(b"!/cred//1000//secret", b"word")
    told = guest.receive_all()
    assert told[-1].endswith(b"\nMSG !/cred//1000//secret\0word")
    assert [record.message.name for record in parlour.recorded()] == ["tap-opened"]


def test_those_with_the_right_see_since_when_others_are_there(make_parlour: MakeParlour) -> None:
    parlour = make_parlour(WITH_RIGHT)
    alice, tapper = parlour.guest(uid=ALICE), parlour.guest(uid=TAPPER)
    found = tapper.ask_json(controls.CONNECTIONS)
    connections = found["connections"]
    assert isinstance(connections, list)
    assert ([each["id"] for each in connections], found["hidden"]) == ([alice.connection, tapper.connection], 0)
    assert [each["id"] for each in alice.ask_json(controls.CONNECTIONS)["connections"]] == [alice.connection]  # type: ignore[attr-defined]


def test_others_may_not(make_parlour: MakeParlour) -> None:
    parlour = make_parlour(WITH_RIGHT)
    alice = parlour.guest(uid=ALICE)
    alice.control(controls.TAP_ON, b"")
    assert [error_code(packet) for packet in alice.receive_all()] == ["EPERM"]
    alice.control(controls.TAP_OFF)
    alice.publish(b"a", b"x")
    assert alice.receive_all() == []
    assert not parlour.switch.is_tapped()
    assert [(record.message.name, record.uid) for record in parlour.recorded()] == [("tap-refused", ALICE)]


@pytest.mark.parametrize(("pattern", "code"), [(b"a\0b", "EINVAL"), (b"k" * 4_097, "EMSGSIZE")])
def test_pattern_that_is_none_is_refused(parlour: Parlour, pattern: bytes, code: str) -> None:
    owner = parlour.guest()
    owner.control(controls.TAP_ON, pattern)
    assert [error_code(packet) for packet in owner.receive_all()] == [code]
    assert not parlour.switch.is_tapped()


def test_right_that_is_taken_away_ends_the_tap(make_parlour: MakeParlour) -> None:
    parlour = make_parlour(WITH_RIGHT)
    owner, tapper = tapping(parlour), tapping(parlour, uid=TAPPER)
    owner.receive_all()
    parlour.broker.reconfigure(DaemonSettings(), BusOwnership(0, None, frozenset({0})))
    assert [error_code(packet) for packet in tapper.receive_all()] == ["EPERM"]
    parlour.guest(uid=ALICE).publish(b"a")
    assert tapper.receive_all() == []
    assert [facts["kind"] for facts in lines(owner.receive_all())] == ["denial", "connect", "message"]


def test_events_are_told_whoever_may_know_of_them(parlour: Parlour) -> None:
    owner = tapping(parlour)
    alice = parlour.guest(uid=ALICE, gid=7, pid=55)
    alice.subscribe(b"!/cred//1000//x")
    alice.subscribe(b"odd\xff")
    alice.unsubscribe(b"!/cred//1000//x")
    alice.close()
    who: dict[str, object] = {"id": 2, "cred": "!/cred/7/1000/55"}
    secret = {"pattern": "!/cred//1000//x"}
    assert list(lines(owner.receive_all())) == [
        {"kind": "connect"} | who,
        {"kind": "subscribe"} | who | secret,
        {"kind": "subscribe"} | who | {"pattern": "odd\\xff", "pattern_base64": "b2Rk/w=="},
        {"kind": "unsubscribe"} | who | secret,
        {"kind": "disconnect"} | who | {"count": 0},
    ]


def test_denials_are_told_with_what_the_client_was_told(make_parlour: MakeParlour) -> None:
    rule = PolicyRule("lab/", publish="deny", users=(ALICE,), origin=Origin("rules.toml", 1))
    parlour = make_parlour(DaemonSettings(policy=(rule,)))
    owner, alice = tapping(parlour), parlour.guest(uid=ALICE, gid=7, pid=55)
    owner.receive_all()
    told: list[tuple[object, ...]] = []
    for packet in (
        *[b"MSG lab/x\0", b"MSG !/bus/x\0", b"SUB !/bus/\xff", b"CMSG !/no/such\0x", b"CMSG !/bus/trace\0a\0b", b"SUB " + b"k" * 5_000],
        *[b"SUB !/cred//0//x"],
    ):
        alice.send(packet)
        (error,) = [each for each in alice.receive_all() if each]
        for facts in lines(owner.receive_all()):
            if facts["kind"] == "disconnect":
                continue
            assert (facts["kind"], facts["id"], facts["cred"]) == ("denial", 2, "!/cred/7/1000/55")
            assert error == b"CMSG !/bus/error\0%b" % f"{facts['error']} {facts['reason']}".encode()
            told.append((facts["packet"], facts["error"], facts["key"], facts.get("key_base64"), facts["count"]))
    assert told == [
        ("MSG", "EPERM", "lab/x", None, 1),
        ("MSG", "EPERM", "!/bus/x", None, 1),
        ("SUB", "EPERM", "!/bus/\\xff", "IS9idXMv/w==", 1),
        ("CMSG", "ENOSYS", "!/no/such", None, 1),
        ("CMSG", "EINVAL", "!/bus/trace", None, 1),
        ("SUB", "EMSGSIZE", "k" * 1_024, None, 1),
        ("SUB", "EACCES", "!/cred//0//x", None, 1),
    ]


def test_malformed_packet_and_refused_connection_are_denials_without_a_key(make_parlour: MakeParlour) -> None:
    parlour = make_parlour(DaemonSettings(), BusOwnership(0, frozenset({0, ALICE}), frozenset({0})))
    owner, alice = tapping(parlour), parlour.guest(uid=ALICE)
    alice.send(b"nonsense from a stranger")
    parlour.run()
    parlour.guest(uid=BOB)
    told = [facts for facts in lines(owner.receive_all()) if facts["kind"] == "denial"]
    assert [(facts["packet"], facts["error"], facts["id"], facts["count"], "key" in facts) for facts in told] == [
        ("", "EPROTO", 2, 1, False),
        ("CONNECT", "EACCES", 3, 1, False),
    ]
    assert "not admitted" in str(told[1]["reason"])


def test_quota_that_is_used_up_is_a_denial(make_parlour: MakeParlour) -> None:
    parlour = make_parlour(DaemonSettings(quotas=QuotaSettings(subscriptions=1)))
    owner, alice = tapping(parlour, b"b"), parlour.guest(uid=ALICE)
    alice.subscribe(b"a")
    alice.subscribe(b"b")
    assert [error_code(packet) for packet in alice.receive_all()] == ["EDQUOT"]
    assert [(facts["packet"], facts["error"], facts["key"]) for facts in lines(owner.receive_all())] == [("SUB", "EDQUOT", "b")]


def test_losses_are_told_of_others_and_of_oneself(make_parlour: MakeParlour) -> None:
    parlour = make_parlour(DaemonSettings(limits=LimitSettings(queue_packets=2)))
    owner, slow, sender = tapping(parlour, b"!/bus/lost"), parlour.guest(uid=ALICE), parlour.guest(uid=ALICE)
    slow.control(b"blocking/soft/discard")
    slow.subscribe(b"a")
    for _ in range(2_000):
        sender.publish(b"a", bytes(10_000))
        parlour.run()
    counts = [packet.partition(b"\0")[2] for packet in slow.receive_all() if packet.startswith(b"CMSG !/bus/lost")]
    parlour.run()
    assert counts
    told = list(lines(owner.receive_all()))
    assert {(facts["kind"], facts["id"]) for facts in told} == {("loss", 2)}
    assert [facts["count"] for facts in told] == [int(count) for count in counts]


def test_tap_is_charged_as_a_subscription_and_given_back(parlour: Parlour) -> None:
    owner = parlour.guest()
    for wish in ((controls.TAP_ON, b"a"), (controls.TAP_ON, b"bb"), (controls.TAP_OFF, None), (controls.TAP_OFF, None)):
        owner.control(*wish)
        parlour.run()
        held = parlour.broker._quotas[owner.connection].subscriptions
        assert held == (wish[0] == controls.TAP_ON)


def test_connections_tell_who_taps(parlour: Parlour) -> None:
    owner = tapping(parlour, b"nothing")
    found = owner.ask_json(controls.CONNECTIONS)["connections"]
    assert isinstance(found, list)
    assert [each["tap"] for each in found] == [True]


def test_without_a_tap_no_line_is_made(parlour: Parlour, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sbusd.broker.tap_events._line", None)
    alice = parlour.guest(uid=ALICE)
    alice.subscribe(b"!/bus/")
    assert [error_code(packet) for packet in alice.receive_all()] == ["EPERM"]


class Flood:
    """A client that does not read, 40 messages that are published to it by its own user, and a tap that is told of them."""

    def __init__(self, parlour: Parlour, *modes: bytes) -> None:
        self._owner, self.slow, sender = tapping(parlour), parlour.guest(uid=ALICE), parlour.guest(uid=ALICE)
        for mode in modes:
            self.slow.control(mode)
        self.slow.subscribe(b"a")
        self._told: list[bytes] = []
        for _ in range(40):
            sender.publish(b"a", bytes(10_000))
            self._told += self._owner.receive_all()
        is_there = self.slow.connection in parlour.switch.connections()
        self.taken = parlour.switch.connection_counters(self.slow.connection).delivered_packets if is_there else 0
        """How many its socket took."""

    def sums(self) -> dict[str, int]:
        """Return the sums of what became of the messages, and of what the lines of other kinds count."""
        found = dict.fromkeys(("recipients", "discarded", "loss", "disconnect"), 0)
        for facts in lines([*self._told, *self._owner.receive_all()]):
            for name in ("recipients", "discarded"):
                found[name] += int(str(facts.get(name, 0)))
            if facts["kind"] in found:
                found[str(facts["kind"])] += int(str(facts["count"]))
        return found

    def received(self) -> int:
        """Return how many of the messages the client finds in its socket."""
        return sum(packet.startswith(b"MSG ") for packet in self.slow.receive_all())


def test_end_of_a_client_tells_what_waited_for_it(parlour: Parlour) -> None:
    flood = Flood(parlour)
    flood.slow.close()
    assert 0 < flood.taken < 40
    assert flood.sums() == {"recipients": 40, "discarded": 0, "loss": 0, "disconnect": 40 - flood.taken}


def test_losses_that_a_client_was_never_told_of_are_told_at_its_end(make_parlour: MakeParlour) -> None:
    parlour = make_parlour(DaemonSettings(limits=LimitSettings(queue_packets=4)))
    flood = Flood(parlour, b"blocking/hard/discard")
    flood.slow.close()
    lost = 36 - flood.taken
    assert lost > 0
    assert flood.sums() == {"recipients": flood.taken + 4, "discarded": lost, "loss": lost, "disconnect": 4}
    assert sum(int(record.facts["count"]) for record in parlour.recorded() if record.message.name == "packets-lost") == lost


def test_client_that_is_ended_for_a_loss_has_that_loss_told(make_parlour: MakeParlour) -> None:
    parlour = make_parlour(DaemonSettings(limits=LimitSettings(queue_packets=4)))
    flood = Flood(parlour, b"blocking/hard/error")
    assert flood.slow.connection not in parlour.switch.connections()
    assert flood.sums() == {"recipients": flood.received() + 4, "discarded": 1, "loss": 1, "disconnect": 4}
