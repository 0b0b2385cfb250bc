"""Messages of this host for others: a flood of one user does not take what others need."""

from __future__ import annotations

import pytest

from sbus_services.link.frames import Changes, Data, Heartbeat, Line, encode_line, message_head, parse_head
from sbus_services.link.ports import LINK
from sbus_services.link.rules import Export, Import, Rules
from sbus_services.link.session import LinkSession
from tests.support.link_bodies import run_of
from tests.support.link_recorders import RecordedBus, RecordedNetwork, receive

QUIET = b"!/cred/100/1000/7"
FLOODERS = (b"!/cred/100/1001/7", b"!/cred/100/100003/8", b"!/cred/100/100004/9", b"!/cred/990/990/7/!/store/!/cred/100/1001/9")
"""One user: itself, by two subordinate ids, and by a service."""
PRIVATE = b"!/cred//990//b/!/cred//1000//mail"


def _wanted(rate: int | None, spool: int) -> tuple[LinkSession, RecordedNetwork]:
    """Return a connected session, of which the host b wants everything below net/."""
    rules = Rules("R", "a", (Export(b"net/", rate=rate),), (Import(b""),), frozenset({"b"}), b"!/cred//990//", spool)
    network, bus = RecordedNetwork(), RecordedBus()
    session = LinkSession(rules, 7, network, bus, 0.0, charged=lambda uid: 1001 if uid >= 100_000 else uid)
    session.restarted()
    session.acknowledged(1)
    session.connected()
    session.barrier_passed(0)
    receive(session, "s.R.h.b", Heartbeat(1, 1, 2_000, 0, 0, 0, 1), b"")
    receive(session, "s.R.i.b", Changes(1, 1), encode_line(Line(b"a", b"net/"), wanted=True))
    session.tick(0.1)
    session.acknowledged(bus.acknowledgements[-1])
    network.taken("D")
    return session, network


def _arrived(network: RecordedNetwork, key: bytes, payload: bytes, sender: bytes) -> int:
    """Return in how many frames the message has left the host."""
    packet = message_head(key.removeprefix(b"!/cred//990//b/"), sender) + payload
    return sum(packet in body for _, _, body in network.taken("D"))


@pytest.mark.parametrize("key", [b"net/x", PRIVATE])
@pytest.mark.parametrize("ticks", [True, False])
def test_the_spool(key: bytes, *, ticks: bool) -> None:
    """The message is the oldest; it can be in one frame with others before the link spools it."""
    session, network = _wanted(None, 1 << 20)
    if ticks:
        session.disconnected("cable")
    session.messages(run_of(b"net/x", b"flood", credentials=FLOODERS[0]))
    session.messages(run_of(key, b"quiet", credentials=QUIET))
    session.messages(run_of(b"net/x", b"flood", credentials=FLOODERS[0]))
    if not ticks:
        session.disconnected("cable")
    for number in range(64):
        session.messages(run_of(b"net/x", bytes(32_000), credentials=FLOODERS[number % len(FLOODERS)]))
        session.tick(1.0 + number)
    assert session.counters.spool_dropped > 30
    assert session.counters.spooled == 67
    session.connected()
    assert _arrived(network, key, b"quiet", QUIET) == 1


@pytest.mark.parametrize("seconds", [1, 20])
def test_the_rate(seconds: int) -> None:
    """A tenth of the rate is needed, each time right after the flood."""
    session, network = _wanted(10, 8 << 20)
    arrived = 0
    for second in range(1, seconds + 1):
        receive(session, "s.R.h.b", Heartbeat(1, 1 + second, 2_000, 0, 0, 0, 1), b"")
        for sender in FLOODERS:
            session.messages(run_of(b"net/x", *[b"flood"] * 250, credentials=sender))
        session.messages(run_of(b"net/x", b"quiet", credentials=QUIET))
        session.tick(float(second))
        arrived += _arrived(network, b"net/x", b"quiet", QUIET)
    counters = session.counters
    assert (arrived, counters.messages + counters.over_rate) == (seconds, 1_001 * seconds)
    assert counters.messages <= 10 * seconds + 10


def test_a_frame_has_messages_of_one_user() -> None:
    """So the network can drop those of one user. Frames of the link itself are not those of a user."""
    session, network = _wanted(None, 0)
    for sender in (QUIET, QUIET, *FLOODERS, QUIET):
        session.messages(run_of(b"net/x", b"1", b"2", credentials=sender))
    session.tick(10.0)
    heads = [parse_head(b"2/%b/1" % head)[0] for _, head, _ in network.frames]
    frames = [
        (owner, head.number, head.messages)
        for owner, head in zip(network.owners[-len(heads) :], heads, strict=True)
        if isinstance(head, Data)
    ]
    assert frames == [(1000, 1, 4), (1001, 5, 8), (1000, 13, 2)]
    assert LINK in network.owners
