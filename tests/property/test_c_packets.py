"""The parser of ``clients/c/sbus.h`` agrees with that of the bus, for any bytes."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sbus.protocol import controls
from sbus.protocol.credentials import parse_sender
from sbus.protocol.errors import ProtocolError
from sbus.protocol.packets import (
    MAX_PACKET_BYTES,
    Control,
    Packet,
    Publish,
    Subscribe,
    is_batch,
    parse_batch,
    parse_error,
    parse_packet,
)
from tests.support.c_programs import Parser, Shown, client_program

pytestmark = pytest.mark.slow

_MOST_DIGITS = 18
"""Of a count in C; no bus reports as many."""


@pytest.fixture(scope="module")
def parser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parser]:
    """The C program, which parses one packet after the other."""
    running = Parser(client_program("parser", tmp_path_factory.mktemp("c")))
    yield running
    running.close()


def _expected(data: bytes) -> list[Shown]:
    """Return what the C program must show of *data*."""
    try:
        packet = parse_packet(data)
    except ProtocolError:
        return [Shown("malformed")]
    if is_batch(data):
        assert isinstance(packet, Control)
        return [Shown("batch", packet.key, packet.payload or b"", has_payload=packet.payload is not None), *_inner(data)]
    return [_shown(packet, data)]


def _inner(data: bytes) -> Iterator[Shown]:
    """Yield what the C program must show of the packets in a batch."""
    if not parse_packet(data).payload:  # type: ignore[union-attr]
        yield Shown("empty")
        return
    try:
        for inner in parse_batch(data):
            yield from _expected(inner)
    except ProtocolError:
        yield Shown("invalid")


def _shown(packet: Packet, data: bytes) -> Shown:
    """Return what the C program must show of one packet that is not a batch."""
    if isinstance(packet, Publish):
        return Shown("message", packet.key, packet.payload, has_payload=True)
    if isinstance(packet, Control):
        plain = Shown("control", packet.key, packet.payload or b"", has_payload=packet.payload is not None)
        return plain if packet.payload is None else _notification(packet.key, packet.payload) or plain
    payload = data.partition(b"\0")[2]
    kind = "subscribe" if isinstance(packet, Subscribe) else "unsubscribe"
    return Shown(kind, packet.pattern, payload, has_payload=b"\0" in data)


def _notification(key: bytes, payload: bytes) -> Shown | None:
    """Return what the C program must show of a notification of the bus; None if it is none, or has another form."""
    if key.startswith(controls.FROM):
        return _sent(key, payload)
    if key.startswith(controls.GROUP):
        return _of_group(key, payload)
    if key == controls.ERROR:
        code = parse_error(payload)[0]
        return Shown("refused", key, payload, error=getattr(errno, code.name) if code else 0, has_payload=True)
    if key == controls.RECEIPT:
        return _receipt(key, payload)
    kinds = {controls.LOST: "lost", controls.REPLACED: "replaced"}
    if key in kinds and _is_count(payload):
        return Shown(kinds[key], key, payload, int(payload), has_payload=True)
    return None


def _receipt(key: bytes, payload: bytes) -> Shown | None:
    """Return what the C program must show of a receipt; None if it has another form."""
    token, nul, rest = payload.partition(b"\0")
    count, has_list, listed = rest.partition(b"\0")
    if not nul or not (_is_count(count) or (count == b"-" and not has_list)):
        return None
    if has_list and not all(each.isdigit() and len(each) <= 20 and int(each) < 1 << 64 for each in listed.split(b",")):
        return None
    return Shown("receipt", key, payload, -1 if count == b"-" else int(count), has_payload=True, token=token, recipients=listed)


def _is_count(digits: bytes) -> bool:
    return digits.isdigit() and len(digits) <= _MOST_DIGITS


def _sent(key: bytes, payload: bytes) -> Shown | None:
    """Return what the C program must show of a message with its sender; None if it has another form."""
    try:
        peer, packet = parse_sender(key), parse_packet(payload)
    except ProtocolError:
        return None
    if not isinstance(packet, Publish) or peer.connection >= 1 << 64:
        return None
    cred = peer.voucher.key_bytes if peer.voucher else peer.key_bytes
    sender = (peer.connection, peer.uid, peer.gid, peer.pid, cred, peer.origin_bytes)
    return Shown("message", packet.key, packet.payload, has_payload=True, sender=sender)


def _of_group(key: bytes, payload: bytes) -> Shown | None:
    """Return what the C program must show of a message for a member of a group; None if it has another form."""
    head, nul, rest = payload.partition(b"\0")
    group = key.removeprefix(controls.GROUP)
    if not nul:
        return None
    if head.startswith(b"MSG "):
        return Shown("message", head.removeprefix(b"MSG "), rest, has_payload=True, group=group)
    found = _sent(head.removeprefix(b"CMSG "), rest) if head.startswith(b"CMSG " + controls.FROM) else None
    return None if found is None else replace(found, group=group)


_TEXT = st.binary(max_size=40) | st.sampled_from(
    [b"a/b", b"", b"!/", b"\xff\0", b"1", b"0", b"-", b"t\x005", b"t\0-", b"EPERM why", b"9" * 19]
)
_LIST = st.lists(st.sampled_from([b"7", b"12", b"18446744073709551615", b"18446744073709551616", b"", b"x"]), max_size=4).map(b",".join)
_LISTED = st.builds(lambda count, ids: b"CMSG %b\0t\0%b\0%b" % (controls.RECEIPT, count, ids), st.sampled_from([b"2", b"-", b""]), _LIST)
_IDS = st.sampled_from([b"0", b"1000", b"4294967295", b"9999999999", b"12345678901", b"", b"x"])
_CRED = st.tuples(_IDS, _IDS, _IDS).map(lambda ids: b"!/cred/%b/%b/%b" % ids)
_ORIGIN = st.sampled_from([b"", b"/", b"/host/alpha/!/cred/1/2/3", b"/!/cred/1/2", b"/\xff", b"x"])
_NUMBER = st.sampled_from([b"0", b"7", b"18446744073709551615", b"18446744073709551616", b"123456789012345678901", b""])
_FROM = st.builds(
    lambda number, creds, origin: controls.FROM + number + b"/" + b"/".join(creds) + origin, _NUMBER, st.lists(_CRED, max_size=3), _ORIGIN
)
_NAMES = st.sampled_from([controls.ERROR, controls.LOST, controls.REPLACED, controls.RECEIPT, controls.BATCH, controls.PING, controls.FROM])
_SIMPLE = st.builds(
    lambda head, text: head + text, st.sampled_from([b"MSG ", b"MSG a/b\0", b"SUB ", b"UNSUB ", b"CMSG ", b"msg ", b"MSG", b""]), _TEXT
)
_CONTROL = st.builds(lambda name, text: b"CMSG %b\0%b" % (name, text), _NAMES | _FROM, _TEXT | _SIMPLE)
_GOOD_CRED = st.sampled_from([b"!/cred/0/0/1", b"!/cred/1000/1001/4294967295"])
_GOOD_FROM = st.builds(
    lambda number, creds, origin: controls.FROM + number + b"/" + b"/".join(creds) + origin,
    _NUMBER,
    st.lists(_GOOD_CRED, min_size=1, max_size=3),
    _ORIGIN,
)
_SENT = st.builds(lambda key, text: b"CMSG %b\0MSG %b" % (key, text), _GOOD_FROM, _TEXT | _TEXT.map(lambda text: b"a\0" + text))
_OF_GROUP = st.builds(
    lambda name, packet: b"CMSG %b%b\0%b" % (controls.GROUP, name, packet),
    st.sampled_from([b"w", b"", b"\xff", b"a b"]),
    _SENT | _SIMPLE | _CONTROL,
)
_ONE = _SENT | _LISTED | _OF_GROUP | _SIMPLE | _CONTROL | st.binary(max_size=60)


def _join(packets: list[bytes], wrong: int, cut: int) -> bytes:
    """Return a batch, in which the length of a packet is *wrong* and *cut* bytes are missing at the end."""
    parts = [(len(packet) + (wrong if place == 1 else 0)) % (1 << 32) for place, packet in enumerate(packets)]
    data = b"CMSG !/batch\0" + b"".join(length.to_bytes(4, "little") + packet for length, packet in zip(parts, packets, strict=True))
    return data[: len(data) - cut]


_BATCH = st.builds(_join, st.lists(_ONE, max_size=5), st.sampled_from([0, 0, 1, -1, 1 << 31]), st.sampled_from([0, 0, 1, 4]))


@given(data=_ONE | _BATCH)
@example(data=b"")
@example(data=b"CMSG !/batch")
@example(data=b"CMSG !/batch\0")
@example(data=_join([_join([b"MSG a\0b"], 0, 0)], 0, 0))
@example(data=b"CMSG !/from/7/!/cred/0/0/1\0MSG a\0b")
@example(data=b"CMSG !/bus/receipt\0t\x002\x007,12")
@example(data=b"CMSG !/bus/receipt\0t\x002\x007,")
@example(data=b"CMSG !/bus/receipt\0t\x002\0")
@example(data=b"CMSG !/from/7/!/cred/0/0/1\0MSG a")
@example(data=b"CMSG !/from/7/!/cred/0/0/1/!/cred/1/2/3/x/!/cred/0/0/1\0MSG \0")
def test_it_agrees_with_the_parser_of_the_bus(parser: Parser, data: bytes) -> None:
    assert parser.parse(data) == _expected(data)


def test_the_longest_packet(parser: Parser) -> None:
    payload = bytes(range(256)) * (MAX_PACKET_BYTES // 256)
    packet = (b"MSG long\0" + payload)[:MAX_PACKET_BYTES]
    (long,) = parser.parse(packet)
    assert (long.kind, long.key, long.payload) == ("message", b"long", packet[9:])
