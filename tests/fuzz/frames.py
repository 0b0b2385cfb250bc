"""Fuzz target: whatever another host sends, a link counts it, delivers only what is valid, and encodes it to the same bytes.

Input: frames, each a byte for the kind of subject, a head up to a newline, and a body up to two newlines or the end.
"""

from __future__ import annotations

from sbus.protocol.keys import KeySpace
from sbus_services.link.frames import (
    Changes,
    Data,
    FrameError,
    Head,
    Heartbeat,
    Snapshot,
    Tails,
    add_serial,
    encode_head,
    encode_line,
    encode_tail,
    message_head,
    parse_head,
    parse_heartbeat,
    parse_lines,
    parse_messages,
    parse_tails,
)
from sbus_services.link.message_runs import RunReader
from sbus_services.link.rules import Export, Import, Rules
from sbus_services.link.session import LinkSession
from tests.support.link_recorders import RecordedBus, RecordedNetwork

RULES = Rules("R", "a", (Export(b"net/"),), (Import(b"in/"), Import(b"cluster/", shared=True)), frozenset({"b"}), b"!/cred//990//")
SUBJECTS = ("s.R.m.b.x", "s.R.i.b", "s.R.h.b", "s.R.x.a.b")
MOST_FRAMES = 16
_KEYS = KeySpace()


def check(data: bytes) -> None:
    """No frame raises, and each packet that a frame causes on the bus is one that the rules permit."""
    network, bus = RecordedNetwork(), RecordedBus()
    session = LinkSession(RULES, 7, network, bus, 0.0)
    session.restarted()
    session.acknowledged(1)
    session.connected()
    session.barrier_passed(0)
    session.subscribed(1, 1000, b"host/*/in/")
    for number in range(MOST_FRAMES):
        if not data:
            break
        subject, (frame, _, data) = SUBJECTS[data[0] % len(SUBJECTS)], data[1:].partition(b"\n\n")
        head, _, body = frame.partition(b"\n")
        session.received(subject, head, body)
        session.tick(float(number))
        for barrier in network.barriers:
            session.barrier_passed(barrier)
        for acknowledgement in bus.acknowledgements:
            session.acknowledged(acknowledgement)
        _check_encoding(head, body)
    for packet in bus.packets:
        _check_packet(packet)
    assert set(session.counters.hosts) <= {"b"}


def _check_packet(packet: bytes) -> None:
    """Fail unless *packet* is a message under the keys that come from b, with its origin."""
    assert packet.startswith(b"CMSG !/from/!/host/b/")
    packet = packet.partition(b"\0")[2]
    assert packet.startswith(b"MSG ")
    key = packet[4:].partition(b"\0")[0]
    assert key.startswith((b"host/b/in/", b"cluster/", b"!/cred/"))
    assert _KEYS.is_publishable(key) or not key.startswith(b"!/")


def _check_encoding(line: bytes, body: bytes) -> None:
    """Fail unless what is parsed encodes to the same bytes."""
    try:
        head, serial = parse_head(line)
    except FrameError:
        return
    assert add_serial(encode_head(head), serial) == line
    try:
        again = _encoded_again(head, body)
    except FrameError:
        return
    assert again in {None, body}


def _encoded_again(head: Head, body: bytes) -> bytes | None:
    """Return *body*, parsed and encoded; None if frames with this head have none. Raises FrameError."""
    match head:
        case Data() if head.messages <= len(body):
            runs = parse_messages(body, head)
            tails = b"".join(encode_tail(each) for each in parse_tails(body[: head.tails]))
            return tails + b"".join(RunReader(each, message_head(each.key, each.sender)).take(len(body), is_first=True)[0] for each in runs)
        case Changes() | Snapshot():
            return b"".join(encode_line(each, wanted) for each, wanted in parse_lines(body))
        case Heartbeat():
            _, _, tails = parse_heartbeat(head, body)
            return body[: len(body) - len(tails)] + b"".join(encode_tail(each) for each in parse_tails(tails))
        case Tails():
            return b"".join(encode_tail(each) for each in parse_tails(body))
        case _:
            return None
