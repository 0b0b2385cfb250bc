"""Taps: access to them, their lines about events, denials and losses, and the pages of all subscriptions, which agree with them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator

import pytest

from sbus.protocol import controls
from sbus_programs.config.rules import Origin, PolicyRule, RightsSettings, Subjects
from sbus_programs.config.settings import DaemonSettings, LimitSettings, QuotaSettings
from sbusd.broker.access import BusOwnership
from sbusd.broker.taps import PAGE_CLIENTS, PAGE_PATTERN_BYTES, PAGE_PATTERNS
from tests.support.in_process_bus import BusClient, InProcessBus, MakeBus
from tests.support.wire import error_code

ALICE, BOB, TAPPER = 1_000, 1_001, 1_002
WITH_RIGHT = DaemonSettings(rights=RightsSettings(tap=Subjects(users=(TAPPER,))))
HEAD = b"CMSG !/tap\0"


def lines(packets: list[bytes]) -> Iterator[dict[str, object]]:
    """Yield the lines that a tap received, without their times."""
    for packet in packets:
        assert packet.startswith(HEAD), packet
        facts = json.loads(packet.removeprefix(HEAD).partition(b"\n")[0])
        assert abs(facts.pop("time") - time.time_ns()) < 600e9
        yield facts


def tapping(bus: InProcessBus, pattern: bytes = b"", uid: int = 0) -> BusClient:
    """Connect a client with a tap."""
    client = bus.client(uid=uid)
    client.control(controls.TAP_ON, pattern)
    assert client.receive_all() == []
    return client


@pytest.mark.parametrize("uid", [0, TAPPER])
def test_owners_and_users_with_the_right_may_tap(make_bus: MakeBus, uid: int) -> None:
    bus = make_bus(WITH_RIGHT)
    client = tapping(bus, uid=uid)
    bus.client(uid=ALICE).publish(b"!/cred//1000//secret", b"word")
    reported = client.receive_all()
    assert reported[-1].endswith(b"\nMSG !/cred//1000//secret\0word")
    assert [record.message.name for record in bus.recorded()] == ["tap-opened"]


def test_users_with_the_right_tap_see_the_age_of_connections(make_bus: MakeBus) -> None:
    bus = make_bus(WITH_RIGHT)
    alice, tapper = bus.client(uid=ALICE), bus.client(uid=TAPPER)
    found = tapper.ask_json(controls.CONNECTIONS)
    connections = found["connections"]
    assert isinstance(connections, list)
    assert ([each["id"] for each in connections], found["hidden"]) == ([alice.connection, tapper.connection], 0)
    assert [each["id"] for each in alice.ask_json(controls.CONNECTIONS)["connections"]] == [alice.connection]  # type: ignore[attr-defined]


def test_other_users_may_not_tap(make_bus: MakeBus) -> None:
    bus = make_bus(WITH_RIGHT)
    alice = bus.client(uid=ALICE)
    alice.control(controls.TAP_ON, b"")
    assert [error_code(packet) for packet in alice.receive_all()] == ["EPERM"]
    alice.control(controls.TAP_OFF)
    alice.publish(b"a", b"x")
    assert alice.receive_all() == []
    assert not bus.switch.is_tapped()
    assert [(record.message.name, record.uid) for record in bus.recorded()] == [("tap-refused", ALICE)]


@pytest.mark.parametrize(("pattern", "code"), [(b"a\0b", "EINVAL"), (b"k" * 4_097, "EMSGSIZE")])
def test_an_invalid_pattern_is_refused(bus: InProcessBus, pattern: bytes, code: str) -> None:
    owner = bus.client()
    owner.control(controls.TAP_ON, pattern)
    assert [error_code(packet) for packet in owner.receive_all()] == [code]
    assert not bus.switch.is_tapped()


def test_revoking_the_right_closes_the_tap(make_bus: MakeBus) -> None:
    bus = make_bus(WITH_RIGHT)
    owner, tapper = tapping(bus), tapping(bus, uid=TAPPER)
    owner.receive_all()
    bus.broker.reconfigure(DaemonSettings(), BusOwnership(0, None, frozenset({0})))
    assert [error_code(packet) for packet in tapper.receive_all()] == ["EPERM"]
    bus.client(uid=ALICE).publish(b"a")
    assert tapper.receive_all() == []
    assert [facts["kind"] for facts in lines(owner.receive_all())] == ["denial", "connect", "message"]


def test_a_tap_receives_all_events(bus: InProcessBus) -> None:
    owner = tapping(bus)
    alice = bus.client(uid=ALICE, gid=7, pid=55)
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


def test_denials_have_the_error_of_the_client(make_bus: MakeBus) -> None:
    rule = PolicyRule("lab/", publish="deny", users=(ALICE,), origin=Origin("rules.toml", 1))
    bus = make_bus(DaemonSettings(policy=(rule,)))
    owner, alice = tapping(bus), bus.client(uid=ALICE, gid=7, pid=55)
    owner.receive_all()
    reported: list[tuple[object, ...]] = []
    for packet in (
        *[b"MSG lab/x\0", b"MSG !/bus/x\0", b"SUB !/bus/\xff", b"CMSG !/no/such\0x", b"CMSG !/bus/trace\0a\0b", b"SUB " + b"k" * 5_000],
        *[b"SUB !/cred//0//x"],
    ):
        alice.send(packet)
        (error,) = [each for each in alice.receive_all() if each]
        for facts in lines(owner.receive_all()):
            assert error.split(b"\0")[:2] == [b"CMSG !/bus/error", f"{facts['error']} {facts['reason']}".encode()]
            if facts["kind"] == "disconnect":
                continue
            assert (facts["kind"], facts["id"], facts["cred"]) == ("denial", 2, "!/cred/7/1000/55")
            reported.append((facts["packet"], facts["error"], facts["key"], facts.get("key_base64"), facts["count"]))
    assert reported == [
        ("MSG", "EPERM", "lab/x", None, 1),
        ("MSG", "EPERM", "!/bus/x", None, 1),
        ("SUB", "EPERM", "!/bus/\\xff", "IS9idXMv/w==", 1),
        ("CMSG", "ENOSYS", "!/no/such", None, 1),
        ("CMSG", "EINVAL", "!/bus/trace", None, 1),
        ("SUB", "EMSGSIZE", "k" * 1_024, None, 1),
        ("SUB", "EACCES", "!/cred//0//x", None, 1),
    ]


def test_malformed_packets_and_rejected_connections_are_denials_without_a_key(make_bus: MakeBus) -> None:
    bus = make_bus(DaemonSettings(), BusOwnership(0, frozenset({0, ALICE}), frozenset({0})))
    owner, alice = tapping(bus), bus.client(uid=ALICE)
    alice.send(b"nonsense")
    bus.run()
    bus.client(uid=BOB)
    reported = [facts for facts in lines(owner.receive_all()) if facts["kind"] == "denial"]
    assert [(facts["packet"], facts["error"], facts["id"], facts["count"], "key" in facts) for facts in reported] == [
        ("", "EPROTO", 2, 1, False),
        ("CONNECT", "EACCES", 3, 1, False),
    ]
    assert "not admitted" in str(reported[1]["reason"])


def test_a_refusal_for_a_quota_is_a_denial(make_bus: MakeBus) -> None:
    bus = make_bus(DaemonSettings(quotas=QuotaSettings(subscriptions=1)))
    owner, alice = tapping(bus, b"b"), bus.client(uid=ALICE)
    alice.subscribe(b"a")
    alice.subscribe(b"b")
    assert [error_code(packet) for packet in alice.receive_all()] == ["EDQUOT"]
    assert [(facts["packet"], facts["error"], facts["key"]) for facts in lines(owner.receive_all())] == [("SUB", "EDQUOT", "b")]


def test_losses_of_all_clients_are_reported(make_bus: MakeBus) -> None:
    bus = make_bus(DaemonSettings(limits=LimitSettings(queue_packets=2)))
    owner, slow, sender = tapping(bus, b"!/bus/lost"), bus.client(uid=ALICE), bus.client(uid=ALICE)
    slow.control(b"blocking/soft/discard")
    slow.subscribe(b"a")
    for _ in range(2_000):
        sender.publish(b"a", bytes(10_000))
        bus.run()
    counts = [packet.partition(b"\0")[2] for packet in slow.receive_all() if packet.startswith(b"CMSG !/bus/lost")]
    bus.run()
    assert counts
    reported = list(lines(owner.receive_all()))
    assert {(facts["kind"], facts["id"]) for facts in reported} == {("loss", 2)}
    assert [facts["count"] for facts in reported] == [int(count) for count in counts]


def test_a_tap_is_charged_as_a_subscription_and_released(bus: InProcessBus) -> None:
    owner = bus.client()
    for command in ((controls.TAP_ON, b"a"), (controls.TAP_ON, b"bb"), (controls.TAP_OFF, None), (controls.TAP_OFF, None)):
        owner.control(*command)
        bus.run()
        held = bus.broker.quotas[owner.connection].subscriptions
        assert held == (command[0] == controls.TAP_ON)


def test_connections_list_taps(bus: InProcessBus) -> None:
    owner = tapping(bus, b"nothing")
    found = owner.ask_json(controls.CONNECTIONS)["connections"]
    assert isinstance(found, list)
    assert [each["tap"] for each in found] == [True]


def test_without_a_tap_no_line_is_made(bus: InProcessBus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sbusd.broker.events._line", None)
    alice = bus.client(uid=ALICE)
    alice.subscribe(b"!/bus/")
    assert [error_code(packet) for packet in alice.receive_all()] == ["EPERM"]


class Flood:
    """A client that does not read, 40 messages that its own user publishes to it, and a tap that receives them."""

    def __init__(self, bus: InProcessBus, *modes: bytes) -> None:
        self._owner, self.slow, sender = tapping(bus), bus.client(uid=ALICE), bus.client(uid=ALICE)
        for mode in modes:
            self.slow.control(mode)
        self.slow.subscribe(b"a")
        bus.run()  # the bus may serve the publisher first
        self._told: list[bytes] = []
        for _ in range(40):
            sender.publish(b"a", bytes(10_000))
            self._told += self._owner.receive_all()
        is_there = self.slow.connection in bus.switch.connections()
        self.taken = bus.switch.connection_counters(self.slow.connection).delivered_packets if is_there else 0
        """Number of messages that its socket accepted."""

    def sums(self) -> dict[str, int]:
        """Return the sums of the counts in the lines about messages, and in lines of other kinds."""
        found = dict.fromkeys(("recipients", "discarded", "loss", "disconnect"), 0)
        self._told += self._owner.receive_all()
        for facts in lines(self._told):
            for name in ("recipients", "discarded"):
                found[name] += int(str(facts.get(name, 0)))
            if facts["kind"] in found:
                found[str(facts["kind"])] += int(str(facts["count"]))
        return found

    def errors(self) -> list[object]:
        """Return the codes of the errors with which connections ended; None for those that closed."""
        self._told += self._owner.receive_all()
        return [facts.get("error") for facts in lines(self._told) if facts["kind"] == "disconnect"]

    def received(self) -> int:
        """Return the number of messages in the socket of the client."""
        return sum(packet.startswith(b"MSG ") for packet in self.slow.receive_all())


def test_the_disconnect_event_counts_pending_packets(bus: InProcessBus) -> None:
    flood = Flood(bus)
    flood.slow.close()
    assert 0 < flood.taken < 40
    assert flood.sums() == {"recipients": 40, "discarded": 0, "loss": 0, "disconnect": 40 - flood.taken}
    assert flood.errors() == [None]


def test_losses_unknown_to_a_client_are_reported_at_its_disconnect(make_bus: MakeBus) -> None:
    bus = make_bus(DaemonSettings(limits=LimitSettings(queue_packets=4)))
    flood = Flood(bus, b"blocking/hard/discard")
    flood.slow.close()
    lost = 36 - flood.taken
    assert lost > 0
    assert flood.sums() == {"recipients": flood.taken + 4, "discarded": lost, "loss": lost, "disconnect": 4}
    assert sum(int(record.facts["count"]) for record in bus.recorded() if record.message.name == "packets-lost") == lost


def test_the_loss_that_disconnects_a_client_is_reported(make_bus: MakeBus) -> None:
    bus = make_bus(DaemonSettings(limits=LimitSettings(queue_packets=4)))
    flood = Flood(bus, b"blocking/hard/error")
    assert flood.slow.connection not in bus.switch.connections()
    assert flood.sums() == {"recipients": flood.received() + 4, "discarded": 1, "loss": 1, "disconnect": 4}
    assert flood.errors() == ["ENOBUFS"]


Reported = tuple[int, str]


def fill(bus: InProcessBus, client: BusClient, patterns: Iterable[bytes]) -> None:
    """Let *client* subscribe to *patterns*, and let the bus read after each, because the socket buffer is small."""
    for pattern in patterns:
        client.subscribe(pattern)
        bus.run()


def next_page(client: BusClient, after: str = "") -> tuple[list[Reported], str | None]:
    """Return the pairs of connection and pattern on a page, and the start of the next page."""
    page = json.loads(client.ask(controls.SUBSCRIPTIONS, after.encode()))
    assert page["after"] == after
    return [(each["id"], each["pattern"]) for each in page["subscriptions"]], page["next"]


def all_pages(client: BusClient) -> list[list[Reported]]:
    reported, following = next_page(client)
    pages = [reported]
    while following is not None:
        reported, following = next_page(client, following)
        pages.append(reported)
    return pages


def test_each_pattern_is_listed_once_with_its_connection(bus: InProcessBus) -> None:
    alice, bob, owner = bus.client(uid=ALICE, gid=7, pid=55), bus.client(uid=BOB), bus.client()
    for pattern in (b"b", b"a/", b"a/", b"", b"\xff", b"!/cred//1000//x"):
        alice.subscribe(pattern)
    bob.subscribe(b"a/")
    bus.run()
    (reported,) = all_pages(owner)
    mine = [(alice.connection, pattern) for pattern in ("", "!/cred//1000//x", "a/", "b", "\\xff")]
    assert reported == [*mine, (bob.connection, "a/")]
    entries = json.loads(owner.ask(controls.SUBSCRIPTIONS))["subscriptions"]
    assert {each["cred"] for each in entries if each["id"] == alice.connection} == {"!/cred/7/1000/55"}
    assert entries[4]["pattern_base64"] == "/w=="


@pytest.mark.parametrize("count", [0, 1, PAGE_PATTERNS - 1, PAGE_PATTERNS, PAGE_PATTERNS + 1, 2 * PAGE_PATTERNS + 1])
def test_pages_are_bounded_wherever_connections_end(make_bus: MakeBus, count: int) -> None:
    bus = make_bus()
    clients = [bus.client(uid=ALICE) for _ in range(3)]
    owner = bus.client()
    fill(bus, clients[0], (b"%04d" % number for number in range(min(count, PAGE_PATTERNS))))
    fill(bus, clients[2], (b"%04d" % number for number in range(PAGE_PATTERNS, count)))
    pages = all_pages(owner)
    assert [reported for page in pages for reported in page] == [
        (clients[0 if number < PAGE_PATTERNS else 2].connection, f"{number:04}") for number in range(count)
    ]
    assert [len(page) for page in pages[:-1]] == [PAGE_PATTERNS] * (max(0, count - 1) // PAGE_PATTERNS)


def test_long_patterns_end_a_page_sooner(bus: InProcessBus) -> None:
    alice, owner = bus.client(uid=ALICE), bus.client()
    longest = 1_000
    fill(bus, alice, (b"%02d" % number + b"\x01" * (longest - 2) for number in range(40)))
    pages = all_pages(owner)
    assert sum(len(page) for page in pages) == 40
    assert all(sum(len(pattern) for _, pattern in page) < PAGE_PATTERN_BYTES + longest for page in pages)
    assert len(pages) == 3


def test_with_the_events_of_a_tap_the_pages_agree(bus: InProcessBus) -> None:
    """Patterns and connections come and go between two pages; no subscription is missing, and events report each removal."""
    first, second, owner = bus.client(uid=ALICE), bus.client(uid=BOB), bus.client()
    fill(bus, first, (b"%04d" % number for number in range(PAGE_PATTERNS + 50)))
    fill(bus, second, [b"z"])
    owner.control(controls.TAP_ON)
    reported, following = next_page(owner)
    known = set(reported)
    first.unsubscribe(b"0000")
    first.unsubscribe(b"%04d" % (PAGE_PATTERNS - 1))
    first.unsubscribe(b"%04d" % PAGE_PATTERNS)
    first.subscribe(b"0000x")
    first.subscribe(b"9")
    second.close()
    bus.run()
    for packet in owner.receive_all():
        fact = json.loads(packet.removeprefix(b"CMSG !/tap\0"))
        if fact["kind"] == "subscribe":
            known.add((fact["id"], fact["pattern"]))
        elif fact["kind"] == "unsubscribe":
            known.discard((fact["id"], fact["pattern"]))
        elif fact["kind"] == "disconnect":
            known = {each for each in known if each[0] != fact["id"]}
    assert following is not None
    reported, following = next_page(owner, following)
    assert following is None
    gone = {0, PAGE_PATTERNS - 1, PAGE_PATTERNS}
    names = {f"{number:04}" for number in range(PAGE_PATTERNS + 50) if number not in gone} | {"0000x", "9"}
    assert known | set(reported) == {(first.connection, name) for name in names}


SEEING = DaemonSettings(rights=RightsSettings(tap=Subjects(users=(TAPPER,)), presence=Subjects(users=(BOB,))))


def test_other_clients_are_denied(make_bus: MakeBus) -> None:
    bus = make_bus(SEEING)
    alice, tapper = bus.client(uid=ALICE), bus.client(uid=TAPPER)
    alice.subscribe(b"!/cred//1000//x")
    bus.run()
    alice.control(controls.SUBSCRIPTIONS)
    (reported,) = alice.receive_all()
    assert error_code(reported) == "EPERM"
    assert all_pages(tapper) == [[(alice.connection, "!/cred//1000//x")]]


@pytest.mark.parametrize("secrets", [0, 1, 10, PAGE_PATTERNS, PAGE_PATTERNS + 1, 3 * PAGE_PATTERNS])
@pytest.mark.parametrize(
    ("before", "after"), [(0, 0), (1, 1), (0, PAGE_PATTERNS + 5), (PAGE_PATTERNS - 1, 2), (PAGE_PATTERNS + 5, PAGE_PATTERNS)]
)
def test_the_right_presence_shows_all_patterns_but_private_ones(make_bus: MakeBus, secrets: int, before: int, after: int) -> None:
    bus = make_bus(SEEING)
    alice, last, bob = bus.client(uid=ALICE), bus.client(uid=ALICE), bus.client(uid=BOB)
    shown = [f" {number:04}" for number in range(before)] + [f"a{number:04}" for number in range(after)]
    fill(bus, alice, map(str.encode, shown))
    fill(bus, alice, (b"!/cred//1000//%d" % number for number in range(secrets)))
    fill(bus, last, [b"z"])
    fill(bus, bob, [b"!/cred//1001//own"])
    listed = [each for page in all_pages(bob) for each in page]
    expected = [(alice.connection, pattern) for pattern in shown]
    assert listed == [*expected, (last.connection, "z"), (bob.connection, "!/cred//1001//own")]


@pytest.mark.parametrize("after", ["1", "/", "1/", "x/61", "1/6", "1/6A", "1/61/", "-1/61", "1/61\n", "1" * 20 + "/61", "\0", "1/ 61"])
def test_an_invalid_cursor_is_an_error(bus: InProcessBus, after: str) -> None:
    owner = bus.client()
    if after == "1/":
        assert next_page(owner, after) == ([], None)
        return
    owner.control(controls.SUBSCRIPTIONS, after.encode())
    (reported,) = owner.receive_all()
    assert error_code(reported) == "EINVAL"


def test_a_page_reads_a_bounded_number_of_connections(bus: InProcessBus) -> None:
    """Otherwise one request would read ten thousand connections without patterns."""
    clients = [bus.client(uid=ALICE) for _ in range(2 * PAGE_CLIENTS + 5)]
    owner = bus.client()
    having = [clients[0], clients[PAGE_CLIENTS - 1], clients[PAGE_CLIENTS], clients[-1]]
    for client in having:
        fill(bus, client, [b"", b"x"])
    pages = all_pages(owner)
    assert [reported for page in pages for reported in page] == [(client.connection, pattern) for client in having for pattern in ("", "x")]
    assert [len(page) for page in pages] == [4, 2, 2]
    assert all_pages(owner) == pages
