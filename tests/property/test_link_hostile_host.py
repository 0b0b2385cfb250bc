"""A host with valid credentials that sends any bytes: nothing raises, everything is bounded and counted, others are not affected."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbusd.link import remote_interest
from sbusd.link.flows import MAX_FLOWS
from sbusd.link.frames import (
    Applied,
    Changes,
    Data,
    Head,
    Heartbeat,
    Line,
    Request,
    Snapshot,
    Tail,
    Tails,
    encode_line,
    encode_tail,
    message_head,
)
from sbusd.link.rules import Export, Import, Rules
from sbusd.link.session import Session
from sbusd.protocol.credentials import parse_sender
from sbusd.protocol.vouching import check_vouched
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


class _Link:
    """A session with a subscriber of ``host/*/net/`` and recorders, and the frames of other hosts."""

    def __init__(self, rules: Rules = RULES) -> None:
        self.network, self.bus = RecordedNetwork(), RecordedBus()
        self.session = Session(rules, 7, self.network, self.bus, 0.0)
        self.now = 0.0
        self.session.restarted()
        self.session.acknowledged(1)
        self.session.connected()
        self.session.barrier_passed(0)
        self.session.subscribed(1, 1000, b"host/*/net/")
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
    *(st.builds(kind, *[NUMBERS] * len(kind._fields)) for kind in (Data, Changes, Heartbeat, Tails, Request, Snapshot, Applied)),
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


@settings(deadline=None, max_examples=400)
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
        link.receive("x", Request(1, 0))
        link.receive("x", Request(1, 1))
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
