"""Packets of the tap become rows, with as much of their payloads as the rules allow."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbus.protocol.envelope import Envelope, call_digest
from sbus.protocol.packets import MAX_PACKET_BYTES
from sbus_archive.record.calls import CallRecognizer
from sbus_archive.record.schema import Row, RowKind, batch_of, rows_of
from sbus_archive.recorder.rows import Keep, PayloadPolicy, RowBuilder
from sbus_programs.config.recorder import PayloadRule
from tests.support.records import NOON
from tests.support.tapped_bus import fact, message_packet, tap_packet


class Units:
    """Units by process, and who was asked for."""

    def __init__(self) -> None:
        self.asked: list[int | None] = []
        self.times: list[float | None] = []

    def __call__(self, pid: int | None, since: float | None) -> str | None:
        self.asked.append(pid)
        self.times.append(since)
        return f"unit-{pid}.service"


@pytest.fixture
def units() -> Units:
    return Units()


@pytest.fixture
def maker(units: Units) -> RowBuilder:
    return RowBuilder(PayloadPolicy(), CallRecognizer("alpha", "boot"), unit_at=units)


WHO: dict[str, Any] = {"conn": 7, "uid": 1000, "gid": 100, "pid": 4321, "unit": "unit-4321.service"}


def row(kind: RowKind, **columns: Any) -> Row:
    """Return a row at noon about connection 7."""
    return Row(**{"ts": NOON, "seq": 0, "kind": kind, **WHO, **columns})


def test_a_message(maker: RowBuilder) -> None:
    made = maker.row(message_packet(b"a/\xff", b"payload", recipients=5, queued=2, discarded=1))
    assert made == row(RowKind.MESSAGE, key=r"a/\xff", recipients=5, queued=2, discarded=1, payload=b"payload", payload_bytes=7)


@pytest.mark.parametrize("missed", [[], [3], [3, 2**62]])
def test_connections_that_missed_a_message_are_kept(maker: RowBuilder, missed: list[int]) -> None:
    made = maker.row(message_packet(b"a", b"", missed=missed))
    assert made is not None
    assert rows_of(batch_of([made]))[0].missed == missed


def test_the_origin_of_a_message_is_kept_beside_the_connection_that_vouches(maker: RowBuilder) -> None:
    origin = "!/host/alpha/!/cred/1000/1000/19211"
    made = maker.row(message_packet(b"a", b"", vouched=origin))
    assert made is not None
    assert (made.vouched, made.uid, made.pid) == (origin, 1000, 4321)
    assert rows_of(batch_of([made])) == [made]
    assert [each.vouched for each in (maker.row(message_packet(b"a", b"")), maker.row(message_packet(b"a", b"", vouched=7))) if each] == [
        None
    ] * 2


def test_the_recipient_of_a_direct_message_is_kept(maker: RowBuilder) -> None:
    made = maker.row(message_packet(b"a", b"", to=12))
    assert made is not None
    assert (made.to_conn, made.conn) == (12, 7)
    assert rows_of(batch_of([made])) == [made]
    others = [maker.row(message_packet(b"a", b"", **fields)) for fields in ({}, {"to": "12"}, {"to": -1}, {"to": 2**63})]
    assert [each.to_conn for each in others if each] == [None] * 4


@pytest.mark.parametrize("missed", [7, "7", [-1], ["7"], [2**63], [True], [None], {}])
def test_an_invalid_connection_list_is_counted_as_unreadable(maker: RowBuilder, missed: object) -> None:
    assert maker.row(message_packet(b"a", b"", missed=missed)) is None
    assert maker.unreadable == 1


def test_a_payload_with_newlines_and_nuls_is_whole(maker: RowBuilder) -> None:
    made = maker.row(message_packet(b"k", b"a\nb\0c\n"))
    assert made is not None
    assert (made.key, made.payload) == ("k", b"a\nb\0c\n")


def test_a_secret_is_counted_and_not_kept(maker: RowBuilder) -> None:
    made = maker.row(message_packet(b"!/cred/1/2/3/x", b"secret"))
    assert made is not None
    assert (made.key, made.payload, made.payload_bytes) == ("!/cred/1/2/3/x", None, 6)


def test_a_request_and_its_reply_are_joined(maker: RowBuilder) -> None:
    envelope = {"ver": 1, "uid": "u", "cmd": "add", "exp": 30, "ret": "!/conn/7/ret/1", "err": ""}
    request = maker.row(message_packet(b"rpc/add", json.dumps(envelope).encode()))
    reply = maker.row(message_packet(b"!/conn/7/ret/1", json.dumps({**envelope, "err": "no"}).encode(), id=9, cred="!/cred/0/0/1"))
    assert request is not None
    assert reply is not None
    assert request.call_id == reply.call_id is not None
    assert (request.call_role, request.call_cmd, request.call_exp, request.call_failed) == ("request", "add", 30, None)
    assert (reply.call_role, reply.call_failed, reply.uid, reply.payload) == ("reply", True, 0, None)


@pytest.mark.parametrize("kind", [RowKind.CONNECT, RowKind.DISCONNECT])
def test_presence(maker: RowBuilder, kind: RowKind) -> None:
    assert maker.row(tap_packet(fact(kind.value))) == row(kind)


def test_an_end_says_how_much_still_waited(maker: RowBuilder) -> None:
    assert maker.row(tap_packet(fact("disconnect", count=12))) == row(RowKind.DISCONNECT, lost=12)
    assert maker.row(tap_packet(fact("disconnect", count=0))) == row(RowKind.DISCONNECT, lost=0)
    ended = tap_packet(fact("disconnect", count=3, error="ETIMEDOUT", reason="blocked too long"))
    assert maker.row(ended) == row(RowKind.DISCONNECT, lost=3, code="ETIMEDOUT", reason="blocked too long")


@pytest.mark.parametrize("kind", [RowKind.SUBSCRIBE, RowKind.UNSUBSCRIBE])
def test_subscriptions(maker: RowBuilder, kind: RowKind) -> None:
    assert maker.row(tap_packet(fact(kind.value, pattern="a/*"))) == row(kind, key="a/*")
    odd = fact(kind.value, pattern=r"\xff", pattern_base64=base64.b64encode(b"\xff").decode())
    assert maker.row(tap_packet(odd)) == row(kind, key=r"\xff")
    # Without the bytes of the pattern, a backslash is an ordinary character.
    assert maker.row(tap_packet(fact(kind.value, pattern=r"\xff"))) == row(kind, key=r"\\xff")


def test_a_denial(maker: RowBuilder) -> None:
    reported = fact("denial", packet="SUB", error="EACCES", reason="not yours", count=3, key="!/cred//0//x")
    assert maker.row(tap_packet(reported)) == row(
        RowKind.DENIAL, key="!/cred//0//x", code="EACCES", reason="not yours", packet="SUB", lost=3
    )


def test_a_denial_of_an_unknown_connection(maker: RowBuilder) -> None:
    reported = {"kind": "denial", "time": NOON, "cred": "!/cred/100/1000/4321", "packet": "CONNECT", "error": "EMFILE", "reason": "full"}
    assert maker.row(tap_packet(reported)) == row(
        RowKind.DENIAL, conn=None, unit=None, code="EMFILE", reason="full", packet="CONNECT", lost=1
    )


def test_a_loss(maker: RowBuilder) -> None:
    assert maker.row(tap_packet(fact("loss", count=12))) == row(RowKind.LOSS, lost=12)


def test_a_relay_attempt(maker: RowBuilder) -> None:
    reported = {"twin": 1002, "attempt": 2, "cmd": "add", "code": "ETIMEDOUT", "reason": "no answer", "duration": 5 * 10**9}
    made = maker.row(message_packet(b"relay/attempt", json.dumps(reported).encode()))
    expected = {"call_cmd": "add", "code": "ETIMEDOUT", "reason": "no answer", "duration": 5 * 10**9, "twin": 1002, "attempt": 2}
    assert made == row(RowKind.RELAY, key="relay/attempt", **expected)
    call = Envelope("add", "u", reply_to="!/conn/7/ret/u")
    digest = call_digest(7, call.reply_to.encode(), call.uid)
    joined = maker.row(message_packet(b"relay/attempt", json.dumps(reported | {"call": digest}).encode()))
    asked = maker.row(message_packet(b"relay/1002/add", call.encode()))
    assert joined is not None
    assert asked is not None
    assert joined == row(RowKind.RELAY, key="relay/attempt", call_id=joined.call_id, **expected)
    assert joined.call_id == asked.call_id is not None
    for strange in ("", digest[1:], digest.upper(), digest + "0", 5, None):
        odd = maker.row(message_packet(b"relay/attempt", json.dumps(reported | {"call": strange}).encode()))
        assert odd == made
    other = maker.row(message_packet(b"relay/attempt", b"something else"))
    assert other is not None
    assert other.kind == RowKind.MESSAGE


def test_the_unit_is_that_of_the_time_of_the_connection(units: Units) -> None:
    known = {8: NOON - 5 * 10**9}
    maker = RowBuilder(PayloadPolicy(), CallRecognizer("alpha", "boot"), lambda conn, _ts: known.get(conn), units)
    # The event has the time of a new connection; if its age is unknown, the process id may have been reused.
    packets = (message_packet(id=8), message_packet(id=9), tap_packet(fact("connect", id=10)))
    made = [maker.row(packet) for packet in packets]
    assert [row.unit for row in made if row] == ["unit-4321.service", None, "unit-4321.service"]
    assert units.times == [NOON / 1e9 - 5, NOON / 1e9]


def test_the_unit_is_that_which_the_bus_reports(units: Units) -> None:
    maker = RowBuilder(PayloadPolicy(), CallRecognizer("alpha", "boot"), unit_at=units, reported={8: "old.service"}.get)
    made = [maker.row(tap_packet(fact("connect", id=7, unit="web.service", slice="system.slice"))), maker.row(message_packet(id=7))]
    made += [maker.row(message_packet(id=8))]
    assert [each.unit for each in made if each] == ["web.service", "web.service", "old.service"]
    user_unit = {"unit": "user@7.service", "slice": "user-7.slice", "user_unit": "web.service"}
    assert maker.row(tap_packet(fact("unit", id=8, **user_unit))) is None
    later = maker.row(message_packet(id=8))
    assert later is not None
    assert later.unit == "user@7.service/web.service"
    assert (units.asked, maker.unreadable) == ([], 0)


def test_the_unit_is_asked_once_for_each_connection(maker: RowBuilder, units: Units) -> None:
    for _ in range(3):
        maker.row(message_packet())
    maker.row(message_packet(id=8))
    maker.row(message_packet(id=0))  # the bus itself
    assert units.asked == [4321, 4321]
    maker.row(tap_packet(fact("disconnect")))
    maker.row(message_packet())
    assert len(units.asked) == 3
    maker.forget_peers()
    maker.row(message_packet())
    assert len(units.asked) == 4


def test_behind_a_credential_prefix_the_last_credentials_count(maker: RowBuilder) -> None:
    made = maker.row(message_packet(cred="!/cred/1/2/3/!/cred/100/1000/4321"))
    assert made is not None
    assert (made.uid, made.gid, made.pid) == (1000, 100, 4321)


@pytest.mark.parametrize(
    "packet",
    [
        b"",
        b"CMSG !/tap\0",
        b"CMSG !/tap\0{}",
        b"CMSG !/tap\0{}\n",
        b"CMSG !/other\0{}\n",
        b"CMSG !/tap\0[]\n",
        b"CMSG !/tap\0" + b"[" * 100_000 + b"\n",
        tap_packet({"kind": "message"}, b"MSG a\0b"),
        tap_packet(fact("message"), b"MSG without an end"),
        tap_packet(fact("message"), b"SUB a"),
        tap_packet(fact("message", time=-1), b"MSG a\0b"),
        tap_packet(fact("message", time=2**63), b"MSG a\0b"),
        tap_packet(fact("message", time=1.5), b"MSG a\0b"),
        tap_packet(fact("colour")),
        tap_packet(fact("subscribe", pattern_base64="%")),
        tap_packet(fact("subscribe", pattern="\ud800")),
    ],
)
def test_unreadable_records_are_counted(maker: RowBuilder, packet: bytes) -> None:
    assert maker.row(packet) is None
    assert maker.unreadable == 1


_JSON = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.lists(st.integers(), max_size=2)
_FACTS = st.fixed_dictionaries(
    {"kind": st.sampled_from([*(kind.value for kind in RowKind), "x"]), "time": st.integers(0, 2**63)},
    optional=dict.fromkeys(
        ("id", "cred", "recipients", "queued", "discarded", "count", "pattern", "key", "key_base64", "packet", "error", "reason"), _JSON
    ),
)


@given(
    _FACTS,
    st.sampled_from([b"", b"rpc/", b"!/conn/7/", b"relay/attempt"]),
    st.binary(max_size=20).filter(lambda key: b"\0" not in key),
    st.binary(),
)
def test_all_tap_records_fit_the_columns(reported: dict[str, object], head: bytes, key: bytes, payload: bytes) -> None:
    maker = RowBuilder(PayloadPolicy(), CallRecognizer("alpha", "boot"), unit_at=lambda *_: None)
    made = maker.row(tap_packet(reported, b"MSG %b%b\0%b" % (head, key, payload)))
    if made is not None:
        batch = batch_of([made])
        batch.validate(full=True)
        assert rows_of(batch) == [made]


PAYLOAD = bytes(range(100))


@pytest.mark.parametrize(
    ("keep", "rules", "key", "kept"),
    [
        ("whole", (), b"a", PAYLOAD),
        ("none", (), b"a", None),
        (10, (), b"a", PAYLOAD[:10]),
        (0, (), b"a", b""),
        ("whole", (), b"!/cred/1/2/3/x", None),
        ("whole", (), b"!/conn/7/x", None),
        ("whole", (("", "whole"),), b"!/cred/1/2/3/x", None),
        ("whole", (("!", "whole"),), b"!/cred/1/2/3/x", None),
        ("whole", (("!/conn/", 5),), b"!/conn/7/x", PAYLOAD[:5]),
        ("whole", (("!/conn/", 5),), b"!/cred/1/2/3/x", None),
        ("none", (("", "whole"),), b"a", PAYLOAD),
        ("whole", (("a/", 1), ("a/b/", 2)), b"a/b/c", PAYLOAD[:2]),
        ("whole", (("a/b/", 2), ("a/", 1)), b"a/b/c", PAYLOAD[:2]),
        ("whole", (("a/", 1), ("a/", 2)), b"a/b", PAYLOAD[:2]),
        ("whole", (("ü/", 1),), "ü/x".encode(), PAYLOAD[:1]),
    ],
)
def test_kept_payloads(keep: Keep, rules: tuple[tuple[str, Keep], ...], key: bytes, kept: bytes | None) -> None:
    policy = PayloadPolicy(keep, [PayloadRule(prefix, much) for prefix, much in rules])
    for _ in range(2):  # the second time from memory
        assert policy.kept(key, PAYLOAD) == kept


def test_the_largest_payload_is_whole() -> None:
    assert PayloadPolicy().kept(b"a", bytes(MAX_PACKET_BYTES)) == bytes(MAX_PACKET_BYTES)


def test_stored_payloads_are_bounded() -> None:
    policy = PayloadPolicy("none", [PayloadRule("k/7", "whole")])
    for number in range(10_000):
        policy.kept(b"k/%d" % number, b"x")
    assert len(policy._known) <= 4_096
    assert policy.kept(b"k/77", b"x") == b"x"
    assert policy.kept(b"k/8", b"x") is None
