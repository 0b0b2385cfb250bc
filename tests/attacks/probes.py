"""What an attack is judged by besides the victim's messages: looked at while the attack is on, before the victim works."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

from sbus.protocol import controls
from tests.attacks.attacker import Attackers
from tests.support.daemons import Daemon
from tests.support.users import FIRST, SECOND, User
from tests.support.wire import RawClient

IDLE_SECONDS = 0.5
IDLE_TURNS = 100
"""What a bus takes in that time that has nothing to do but to answer twice. One that does not sleep takes thousands, however loaded the
machine is."""
REST_SECONDS = 60.0
"""When a bus that takes turns without end is a failure: at first it may still read what the attackers have sent."""
RESTS = 10
ALONE_SECONDS = 0.15
"""A user counts as active for a tenth of a second."""
PACED_SECONDS = 120.0
"""When a paced publisher stands still. The attackers' room is full after 35 MB, and a tenth of the time is theirs."""
PACED_WINDOW = 64
PACED_KEY = b"paced/work"
TAPPED_MESSAGES = 100
TAP_SECONDS = 60.0
"""When a flood that does not come, or a tap without the victim's messages, is a failure."""

_END = b"tap/end"

Probe = Callable[[Daemon, User, Attackers], None]
"""Raises AssertionError with the bound that does not hold: for the daemon, the victim's user, and the attackers, who have begun."""


def rests(bus: Daemon, victim: User, attackers: Attackers) -> None:
    """Check that the bus becomes idle after the attackers have become idle."""
    owner, deadline = bus.client(), time.monotonic() + REST_SECONDS
    while (taken := _turns_taken(owner)) > IDLE_TURNS:
        assert time.monotonic() < deadline, f"the bus takes {taken} turns in {IDLE_SECONDS} s though nothing happens"
    owner.close()


def _turns_taken(owner: RawClient) -> int:
    """Return how many turns the bus takes in IDLE_SECONDS."""
    before = _turns(owner)
    time.sleep(IDLE_SECONDS)  # an interval to count in, and nothing that is waited for
    return _turns(owner) - before


def _turns(owner: RawClient) -> int:
    """Return how many turns the bus has taken."""
    return _counter(owner, "turns")


def _counter(owner: RawClient, name: str) -> int:
    """Return one counter of the bus."""
    count: int = json.loads(owner.ask(controls.STATS))["counters"][name]
    return count


def is_paced(bus: Daemon, victim: User, attackers: Attackers) -> None:
    """Check that a paced publisher reaches its own reader, in order and without a loss, until the attackers have lost messages."""
    owner, reader, speaker = bus.client(), bus.client(victim), bus.client(victim)
    reader.subscribe(PACED_KEY)
    reader.barrier()
    speaker.control(controls.PACE_ON)
    speaker.barrier()
    deadline = time.monotonic() + PACED_SECONDS
    count = 0
    while not _counter(owner, "lost_packets"):
        for number in range(count, count + PACED_WINDOW):
            speaker.publish(PACED_KEY, b"%d %b" % (number, bytes(1_000)))
        for number in range(count, count + PACED_WINDOW):
            assert reader.receive().startswith(b"MSG %b\0%d " % (PACED_KEY, number)), f"paced message {number} did not come in its place"
        count += PACED_WINDOW
        assert time.monotonic() < deadline, f"the attackers hold up a paced publisher: {count} messages in {PACED_SECONDS} s"
    assert _counter(owner, "blocks"), "the paced publisher was never blocked: the attack has failed"
    for client in (owner, reader, speaker):
        client.close()


def keeps_private_key(bus: Daemon, victim: User, attackers: Attackers) -> None:
    """Check that no paced publisher of another user waits for the victim's subscription to a private key, which is full and stopped."""
    owner, reader, other_user = bus.client(), bus.client(victim), bus.client(SECOND if victim == FIRST else FIRST)
    key = b"!/cred//%d//guessed" % victim.uid
    reader.subscribe(key)
    number = int(reader.ask(controls.ADDRESS).split(b"/")[2])
    other_user.control(controls.PACE_ON)
    deadline = time.monotonic() + PACED_SECONDS
    while not _of_connection(owner, "lost_packets", number):
        for _ in range(PACED_WINDOW):
            other_user.publish(key, bytes(100_000))
        other_user.barrier()
        assert time.monotonic() < deadline, "the victim's queue never filled, so nothing was tried"
    assert not _of_connection(owner, "blocked_others_ms", number), "another user's publisher has waited for the subscriber of a private key"
    for client in (owner, reader, other_user):
        client.close()


def is_served_after_rests(bus: Daemon, victim: User, attackers: Attackers) -> None:
    """Let the victim rest so long that the attackers seem to be alone, and send again; the bus measures how long that takes."""
    client = bus.client(victim)
    for _ in range(RESTS):
        time.sleep(ALONE_SECONDS)  # an interval without packets, and nothing that is waited for
        client.barrier()
    client.close()


def _of_connection(owner: RawClient, name: str, number: int) -> int:
    """Return a counter of a connection."""
    (count,) = [int(each[name]) for each in json.loads(owner.ask(controls.CONNECTIONS))["connections"] if each["id"] == number]
    return count


def keeps_rows(acts: int) -> Probe:
    """Return a probe of a tap that is not read during *acts* hostile acts, and that must get the victim's messages all the same."""

    def run(bus: Daemon, victim: User, attackers: Attackers) -> None:
        tap, speaker = bus.client(), bus.client(victim)
        tap.control(controls.TAP_ON, b"")
        tap.barrier()
        deadline = time.monotonic() + TAP_SECONDS
        goal = attackers.acts + acts
        while attackers.acts < goal:
            assert time.monotonic() < deadline, f"{goal - attackers.acts} of {acts} hostile acts are missing after {TAP_SECONDS} s"
            time.sleep(0.01)
        for number in range(TAPPED_MESSAGES):
            speaker.publish(b"tapped/%d" % number)
        speaker.barrier()
        # The flood goes on: what is lost is lost, and room for it comes only as the tap is read.
        seen = _read_until(tap, b"\nMSG tapped/", TAPPED_MESSAGES, deadline)
        tap.close()
        speaker.close()
        assert seen == TAPPED_MESSAGES, f"a tap that was not read got {seen} of {TAPPED_MESSAGES} messages of the victim"

    return run


def _read_until(tap: RawClient, mark: bytes, number: int, deadline: float) -> int:
    """Return how many packets with *mark* came, at most *number*; an owner's message behind them is the end."""
    seen = 0
    tap.publish(_END)
    while seen < number and time.monotonic() < deadline:
        packet = tap.receive()
        seen += mark in packet
        if b"\nMSG " + _END + b"\0" in packet:
            break
    return seen
