"""A host with valid credentials that sends any bytes: nothing raises, everything is bounded and counted, others are not affected."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbus.protocol.credentials import parse_sender
from sbus.protocol.vouching import MAX_LOST_PATTERNS, check_vouched
from sbus_services.link import remote_interest
from sbus_services.link.announcements import Announcements
from sbus_services.link.flows import MAX_FLOWS
from sbus_services.link.frames import (
    MAX_TAILS,
    Applied,
    Changes,
    Data,
    Head,
    Heartbeat,
    Line,
    Snapshot,
    SnapshotRequest,
    Tail,
    Tails,
    encode_line,
    encode_tail,
    message_head,
)
from sbus_services.link.local_interest import LocalInterest
from sbus_services.link.rules import Export, Import, Rules
from sbus_services.link.session import LinkSession
from tests.support.examples import examples
from tests.support.link_bodies import SENDER, join_body, sent
from tests.support.link_recorders import RecordedBus, RecordedNetwork, receive

RULES = Rules(
    "R",
    "b",
    exports=(Export(b"net/"),),
    imports=(Import(b"net/", frozenset({"evil", "good"})),),
    secret_hosts=frozenset({"evil"}),
    secret_head=b"!/cred//990//",
)


FROM_EVIL = b"CMSG !/from/!/host/evil/" + SENDER + b"\0"


class _CountingBus(RecordedBus):
    """Counts the control packets that `BusConnection` would send."""

    def __init__(self) -> None:
        super().__init__()
        self.controls = 0

    def subscribe(self, pattern: bytes) -> None:
        self.controls += 1
        super().subscribe(pattern)

    def unsubscribe(self, pattern: bytes) -> None:
        self.controls += 1
        super().unsubscribe(pattern)

    def acknowledge(self, number: int) -> None:
        self.controls += 1
        super().acknowledge(number)

    def report_lost(self, patterns: Sequence[bytes], count: int) -> None:
        self.controls += -(-len(patterns) // MAX_LOST_PATTERNS)
        super().report_lost(patterns, count)


class _Link:
    """A session with a subscriber of ``host/*/net/`` and *patterns*, recorders, and the frames of other hosts."""

    def __init__(self, rules: Rules = RULES, patterns: Sequence[bytes] = ()) -> None:
        self.network, self.bus = RecordedNetwork(), _CountingBus()
        self.session = LinkSession(rules, 7, self.network, self.bus, 0.0)
        self.now = 0.0
        self.session.restarted()
        self.session.acknowledged(1)
        self.session.connected()
        self.session.barrier_passed(0)
        for pattern in (b"host/*/net/", *patterns):
            self.session.subscribed(1, 1000, pattern)
        self.wait(0.1)
        self.session.barrier_passed(self.network.barriers[-1])
        self.receive("h", Heartbeat(1, 1, 2_000, 0, 0, 0, 1), origin="good")
        self.receive("h", Heartbeat(1, 1, 2_000, 0, 0, 0, 1))
        for origin in ("good", "evil"):
            self.receive("x", Applied(1, 7, 1, 1, 1, 0, 1), origin=origin)

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.session.tick(self.now)

    def receive(self, kind: str, head: Head | bytes, body: bytes = b"", origin: str = "evil") -> None:
        subject = {"m": f"s.R.m.{origin}.net", "x": f"s.R.x.b.{origin}"}.get(kind, f"s.R.{kind}.{origin}")
        receive(self.session, subject, head, body)

    def data(self, flow: int, number: int, *keys: bytes, origin: str = "evil", kind: str = "m", credentials: bytes = SENDER) -> None:
        packets = [message_head(key, credentials) + b"x" for key in keys]
        self.receive(kind, Data(1, flow, number, len(keys)), join_body(packets), origin)

    @property
    def evil(self):  # type: ignore[no-untyped-def]
        return self.session.counters.hosts["evil"]


NUMBERS = st.one_of(st.integers(0, 3), st.integers(0, (1 << 64) - 1))
HEADS = st.one_of(
    st.binary(max_size=40),
    st.builds(lambda flow, serial: b"D/1/%d/1/1/%d" % (flow, serial), NUMBERS, NUMBERS),
    *(st.builds(kind, *[NUMBERS] * len(kind._fields)) for kind in (Data, Changes, Heartbeat, Tails, SnapshotRequest, Snapshot, Applied)),
)
KEYS = st.sampled_from([b"net/x", b"", b"other", b"!/cred//1//x", b"!/bus/lost", b"host/a/x", b"net/" + b"x" * 4_096])
BODIES = st.one_of(
    st.binary(max_size=60),
    st.lists(KEYS, max_size=4).map(lambda keys: join_body([sent(key) for key in keys])),
    st.lists(st.tuples(NUMBERS, NUMBERS, KEYS), max_size=4).map(lambda tails: b"".join(encode_tail(Tail(*tail)) for tail in tails)),
    st.lists(st.tuples(st.sampled_from([b"b", b"*", b"c"]), KEYS, st.booleans()), max_size=4).map(
        lambda lines: b"".join(encode_line(Line(origins, pattern[:99]), sign) for origins, pattern, sign in lines)
    ),
)


@settings(max_examples=examples(400))
@given(st.lists(st.tuples(st.sampled_from("mihx"), HEADS, BODIES), min_size=1, max_size=12))
def test_any_frames_of_a_host_leave_other_hosts_alone(frames: list[tuple[str, Head | bytes, bytes]]) -> None:
    link = _Link()
    for kind, head, body in frames:
        link.receive(kind, head, body)
        link.wait(0.5)
    for packet in link.bus.packets:
        assert packet.startswith((FROM_EVIL + b"MSG host/evil/net/", FROM_EVIL + b"MSG !/cred//1//x\0"))
    packets = len(link.bus.packets)
    link.data(1, 1, b"net/x", origin="good")
    assert link.bus.packets[packets:] == [FROM_EVIL.replace(b"evil", b"good") + b"MSG host/good/net/x\0x"]
    assert all(patterns == (b"host/*/net/",) for patterns, _ in link.bus.losses)


def test_the_origin_in_the_subject_decides() -> None:
    link = _Link()
    body = join_body([sent(b"net/x")])
    for subject in (
        "s.R.m.b.net",
        "s.R.x.c.evil",
        "s.R.x.b.evil.x",
        "s.Q.m.evil.net",
        "s.R.m.ev*l.net",
        "s.R.z.evil",
        "s.R.m.evil",
        "s.R.h.",
        "",
    ):
        receive(link.session, subject, Data(1, 1, 1, 1), body)
    assert link.session.counters.foreign_subjects == 9
    assert not link.bus.packets


def test_keys_outside_of_the_import_do_not_come_in() -> None:
    link = _Link()
    link.data(1, 1, b"net/x", b"other", b"!/bus/lost", b"!/conn/1/x", b"host/good/net/x", b"rpc/halt", b"net/y")
    assert link.bus.packets == [FROM_EVIL + b"MSG host/evil/net/x\0x", FROM_EVIL + b"MSG host/evil/net/y\0x"]
    assert (link.evil.refused_by_import, link.evil.refused_secrets) == (3, 2)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x05\0\0\0MSG ",
        b"\xff\xff\xff\xffMSG net/x\0",
        b"\0\0\0\0",
        join_body([b"MSG net/x\0"]),
        join_body([b"CMSG !/from/\0MSG net/x\0"]),
        join_body([b"SUB net/x"]),
        join_body([sent(b"net/x"), sent(b"net/y")]),
        join_body([sent(b"net/x", sender=SENDER + b"/!/store/" + b"x" * 440 + b"/" + SENDER)]),
        join_body([sent(b"net/x", sender=SENDER + b'/!/st"re/' + SENDER)]),
        join_body([sent(b"net/x", sender=SENDER + b"/!/store")]),
        join_body([sent(b"net/x", sender=b"!/cred/1/2/12345678901")]),
        join_body([b"CMSG !/from/!/host/good/!/cred/0/0/1\0MSG net/x\0"]),
        join_body([b"CMSG !/batch\0"]),
        join_body([sent(b"net/x", bytes(500_000))]),
    ],
)
def test_a_malformed_frame_is_counted_and_ignored(body: bytes) -> None:
    link = _Link()
    link.receive("m", Data(1, 1, 1, 1), body)
    assert (link.evil.malformed, link.bus.packets) == (1, [])


@pytest.mark.parametrize(
    "sender",
    [
        b"!/cred/0/0/1",
        b"!/cred/0/0/1/!/cred/2/2/2",
        b"!/cred/99/99/1/!/store/!/cred/0/0/1",
        b"!/cred/99/99/1/!/host/b/!/cred/0/0/1/!/store/!/cred/0/0/1",
    ],
)
def test_each_sender_is_shown_as_one_of_the_host(sender: bytes) -> None:
    link = _Link()
    link.data(1, 1, b"net/x", credentials=sender)
    assert link.bus.packets == [b"CMSG !/from/!/host/evil/%b\0MSG host/evil/net/x\0x" % sender]
    voucher, origin = b"!/cred/990/990/7", b"!/host/evil/" + sender
    check_vouched(origin, b"MSG x\0")
    peer = parse_sender(b"!/from/2/%b/%b" % (voucher, origin))
    assert (peer.uid, peer.origin_bytes, peer.voucher and peer.voucher.uid) == (-1, origin, 990)


def test_a_private_message_comes_in_only_directly_and_never_for_the_link_itself() -> None:
    link = _Link()
    link.data(1, 1, b"!/cred//1000//mail", kind="m")
    link.data(2, 1, b"!/cred//1000//mail", b"!/cred//990//good/!/cred//1000//mail", b"!/cred/1000/mail", b"!/conn/1/x", kind="x")
    link.data(1, 1, b"!/cred//1000//mail", kind="x", origin="good")
    assert link.bus.packets == [FROM_EVIL + b"MSG !/cred//1000//mail\0x"]
    assert link.evil.refused_secrets == 4
    assert link.session.counters.hosts["good"].refused_secrets == 1


def test_the_patterns_of_a_host_are_bounded() -> None:
    link = _Link()
    for version in range(1, 101):
        link.wait(2.5)
        link.receive("h", Heartbeat(1, version + 1, 2_000, version - 1, 0, 0, 1))
        lines = [encode_line(Line(b"b", b"net/%d" % (1_000 * version + number)), wanted=True) for number in range(1_000)]
        link.receive("i", Changes(1, version), b"".join(lines))
    assert len(link.bus.patterns) == 1 + remote_interest.MAX_PATTERNS
    assert link.evil.lines_refused == 100_000 - remote_interest.MAX_PATTERNS


def test_a_host_that_changes_its_interest_too_fast_is_not_followed() -> None:
    link = _Link()
    changes = 0
    for version in range(1, 20_001):
        before = len(link.bus.patterns)
        link.receive("i", Changes(1, version), encode_line(Line(b"b", b"net/x"), wanted=version % 2 == 1))
        changes += len(link.bus.patterns) != before
    assert changes <= 8_192
    # One frame is refused for its rate; those after it come out of order. It is asked for the whole, once in a second.
    assert link.evil.changes_refused == 1
    link.wait(1.5)
    link.network.taken("Q")
    link.receive("h", Heartbeat(1, 2, 2_000, 20_000, 5, 0, 1))
    link.receive("h", Heartbeat(1, 3, 2_000, 20_000, 5, 0, 1))
    assert len(link.network.taken("Q/7/0")) == 1


def test_a_snapshot_without_a_request_is_refused() -> None:
    link = _Link()
    link.receive("x", Snapshot(1, 5, 0, 0, 1), encode_line(Line(b"b", b"net/x"), wanted=True))
    assert link.evil.changes_refused == 1
    assert b"net/x" not in link.bus.patterns


def test_requests_are_answered_once_in_a_second() -> None:
    link = _Link()
    for _ in range(1_000):
        link.receive("x", SnapshotRequest(1, 0))
        link.receive("x", SnapshotRequest(1, 1))
        link.wait(0.001)
    assert len(link.network.taken("S")) <= 2
    assert link.evil.rejoins <= 2


def test_the_flows_of_a_host_are_bounded() -> None:
    link = _Link()
    for flow in range(1, 5 * MAX_FLOWS):
        link.data(flow, 1, b"net/x")
    peer = link.session._peers.get("evil")
    assert peer is not None
    assert len(peer.incoming._flows) <= 2 * MAX_FLOWS


def test_a_number_that_cannot_be_true_is_an_unknown_loss() -> None:
    link = _Link()
    link.receive("x", Applied(1, 7, 1, 1, 1, 0, 1))
    link.bus.losses.clear()
    link.data(1, 1, b"net/x")
    link.data(1, 1 << 63, b"net/x")
    link.data(1, 5, b"net/x")
    assert link.bus.losses == [((b"host/*/net/",), 0)]
    assert link.evil.duplicates == 1


def test_hosts_that_no_rule_names_are_refused() -> None:
    link = _Link(Rules("R", "b", imports=(Import(b"net/", frozenset({"good"})),)))
    before = link.session.counters.hosts_refused
    link.data(1, 1, b"net/x")
    assert link.session.counters.hosts_refused == before + 1
    assert "evil" not in link.session.counters.hosts


TAKEN_BY_THE_BUS = 32_768
"""Control packets of a user that the bus takes at once, by default: `Quotas.control_burst`."""

MOST_CONTROLS = TAKEN_BY_THE_BUS // 2


def _tails(step: int, number: int, key: bytes = b"net/1/x") -> bytes:
    return b"".join(encode_tail(Tail(100 + step * number + each, 1, key)) for each in range(number))


def _data_of(step: int, tails: bytes = b"", forgotten: int = 0, number: int = 0, key: bytes = b"net/1/x") -> tuple[str, Head, bytes]:
    body = join_body([sent(key)])
    return "m", Data(1, 1, number or step, 1, forgotten, len(tails)), tails + body


def _lines(step: int, number: int) -> bytes:
    return b"".join(encode_line(Line(b"b", b"net/%d/%d" % (step, each)), wanted=True) for each in range(number))


FLOODS: dict[str, Callable[[int], tuple[str, Head, bytes]]] = {
    "tails of new flows": lambda step: _data_of(step, _tails(step, MAX_TAILS)),
    "too many tails": lambda step: _data_of(step, _tails(step, 10_000)),
    "tails of flows for this host": lambda step: ("x", Tails(1, step, 1), _tails(step, 300)),
    "tails in heartbeats": lambda step: ("h", Heartbeat(1, step, 2_000, 0, 0, 0, 1), _tails(step, 300)),
    "gaps": lambda step: _data_of(step, number=10 * step),
    "keys that are too long": lambda step: _data_of(step, key=b"net/" + b"x" * 4_090),
    "losses": lambda step: ("h", Heartbeat(1, step, 2_000, 0, 0, step, 1), b""),
    "missing heartbeats": lambda step: ("h", Heartbeat(1, 100 * step, 2_000, 0, 0, 0, 1), b""),
    "forgotten hosts": lambda step: _data_of(step, forgotten=step),
    "new runs": lambda step: ("x", Applied(1 + step, 7, 1, 1, 1, 0, 1), b""),
    "first confirmations": lambda _step: ("x", Applied(1, 7, 1, 1, 1, 0, 1), b""),
    "missing confirmations": lambda step: ("x", Applied(1, 7, 1, 10 * step, 1, 0, 1), b""),
    "refused lines": lambda step: ("x", Applied(1, 7, 1, 1 + step, 1, step, 1), b""),
    "interest": lambda step: ("i", Changes(1, step), _lines(step, 50)),
    "interest of new runs": lambda step: ("i", Changes(1 + step, 1), _lines(step, 50)),
    "requests": lambda _step: ("x", SnapshotRequest(1, 1), b""),
}


def _flood(link: _Link, frames: Sequence[Callable[[int], tuple[str, Head, bytes]]], times: int) -> None:
    """Have the evil host send *frames* again and again within a second: the bus takes what follows, and the good host is received."""
    bus = link.bus
    bus.controls = 0
    for step in range(1, times + 1):
        for frame in frames:
            link.receive(*frame(step))
            assert bus.controls <= MOST_CONTROLS
        if step % 10 == 0:
            link.wait(1 / times)
            link.session.acknowledged(bus.acknowledgements[-1])
    packets = len(bus.packets)
    link.data(1, 1, b"net/x", origin="good")
    assert bus.packets[packets:] == [FROM_EVIL.replace(b"evil", b"good") + b"MSG host/good/net/x\0x"]
    link.wait(1.5)
    assert bus.controls <= MOST_CONTROLS


@pytest.mark.parametrize("flood", FLOODS)
def test_no_flood_of_a_host_makes_the_link_exceed_what_the_bus_takes(flood: str) -> None:
    link = _Link(patterns=[b"host/evil/net/%d/" % number for number in range(200)])
    _flood(link, [FLOODS[flood]], 400)


@pytest.mark.parametrize("flood", ["tails of new flows", "tails in heartbeats", "gaps"])
def test_each_loss_of_a_flood_is_reported(flood: str) -> None:
    link = _Link()
    link.bus.losses.clear()
    link.data(1, 1, b"net/1/x")
    _flood(link, [FLOODS[flood]], 400)
    assert all(patterns == (b"host/*/net/",) for patterns, _ in link.bus.losses)
    assert 0 in (counts := [count for _, count in link.bus.losses]) or sum(counts) == link.evil.lost > 0


@settings(max_examples=examples(15))
@given(st.lists(st.sampled_from(sorted(FLOODS)), min_size=2, max_size=5))
def test_no_mixture_of_floods_does_either(floods: list[str]) -> None:
    link = _Link(patterns=[b"host/evil/net/%d/" % number for number in range(70)])
    _flood(link, [FLOODS[flood] for flood in floods], 100)


SMALL = [name for name in FLOODS if not name.startswith(("interest", "tails", "too many", "gaps", "keys"))]


@pytest.mark.parametrize("flood", SMALL)
def test_small_frames_do_not_have_all_lines_looked_at_each_time(flood: str, monkeypatch: pytest.MonkeyPatch) -> None:
    looked = [0]
    lines, patterns = Announcements.lines, LocalInterest.patterns

    def counted_lines(self: Announcements, host: str, after: int = 0) -> Iterator[tuple[Line, int]]:
        for each in lines(self, host, after):
            looked[0] += 1
            yield each

    def counted_patterns(self: LocalInterest, line: Line) -> list[bytes]:
        looked[0] += 1
        return patterns(self, line)

    monkeypatch.setattr(Announcements, "lines", counted_lines)
    monkeypatch.setattr(LocalInterest, "patterns", counted_patterns)
    link = _Link(patterns=[b"host/evil/net/%d/" % number for number in range(200)])
    looked[0] = 0
    _flood(link, [FLOODS[flood]], 500)
    # Each frame would look at 200 of them once or more.
    assert looked[0] <= 500 * 200 // 5


@pytest.mark.parametrize(
    ("flood", "last"),
    [
        ("losses", Heartbeat(1, 60, 2_000, 0, 0, 49, 1)),
        ("missing heartbeats", Heartbeat(1, 4_900, 2_000, 0, 0, 0, 1)),
        ("forgotten hosts", Heartbeat(1, 2, 2_000, 0, 0, 0, 1, 49)),
        ("refused lines", Heartbeat(1, 2, 2_000, 0, 0, 0, 1)),
    ],
)
def test_what_comes_too_often_is_reported_later(flood: str, last: Heartbeat) -> None:
    link = _Link()
    link.bus.losses.clear()
    for step in range(1, 50):
        link.receive(*FLOODS[flood](step))
        link.data(100 + step, 1, b"net/x")
    assert 0 < len(link.bus.losses) < 49
    link.bus.losses.clear()
    link.wait(1)
    for _ in range(2):
        link.receive("h", last)
        assert [count for _, count in link.bus.losses] == [0]


def test_a_host_that_confirms_too_often_is_ignored_until_it_begins_again() -> None:
    link = _Link()
    for _ in range(50):
        link.receive("x", Applied(1, 7, 1, 1, 1, 0, 1))
    assert link.evil.changes_refused > 0
    link.data(1, 1, b"net/x")
    assert not link.bus.packets
    link.wait(5)
    link.network.taken("")
    for beat in range(2, 6):
        link.receive("h", Heartbeat(1, beat, 2_000, 0, 0, 0, 1))
    assert len(link.network.taken("Q/7/1")) == 1
    link.bus.losses.clear()
    link.wait(0.1)
    link.receive("x", Applied(1, 7, 1, 1, 1, 0, 1))
    assert [count for _, count in link.bus.losses] == [0]
    link.data(1, 2, b"net/x")
    assert len(link.bus.packets) == 1
