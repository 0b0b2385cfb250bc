"""Two hosts with one name, such as a cloned machine: the run that started first is ignored, and both are reported.

Each run has an epoch. Late frames of an earlier run come all at once, when a server resumes; heartbeats that go on are of another host.
"""

from __future__ import annotations

from collections.abc import Callable

from sbusd.link.counters import LinkCounters
from sbusd.link.frames import Data, FrameError, Head, Heartbeat, parse_head, parse_heartbeat
from sbusd.link.peers import MAX_INTERVAL, MIN_INTERVAL, OtherRun, Peer

NoteNamesake = Callable[[str, str, str], None]
"""Gets the name that two hosts have, the address of the one that is ignored or not this one, and that of the other; "" is unknown."""


def ignore_namesake(_name: str, _other: str, _used: str) -> None:
    """Do not note that two hosts have one name."""


class Namesakes:
    """Notes frames of hosts whose name another host has, or this one, *host* with *epoch*. *clock* is that of `Peers`."""

    def __init__(self, host: str, epoch: int, counters: LinkCounters, note: NoteNamesake) -> None:
        self._host = host
        self._epoch = epoch
        self._counters = counters
        self._note = note
        self._own = OtherRun()

    def earlier_run_came(self, peer: Peer, head: Head, body: bytes, clock: float) -> None:
        """Count a frame of an earlier run of *peer*, or of one that began too soon, which is ignored. Raises FrameError."""
        peer.counters.stale += 1
        if isinstance(head, Data):
            peer.counters.ignored += head.messages
            peer.other_run.messages += head.messages
        if not isinstance(head, Heartbeat) or not peer.is_alive:
            return
        address, _, _ = parse_heartbeat(head, body)
        if peer.other_run.beats(head.epoch, beat_interval(head), clock):
            peer.counters.namesakes += 1
            if peer.other_run.messages and peer.incoming.report_served():
                peer.other_run.messages = 0
            self._note(peer.name, address, peer.address)

    def own_name_came(self, line: bytes, body: bytes, address: str, clock: float) -> None:
        """Handle a heartbeat with the name of this host, which is at *address*."""
        try:
            head, _ = parse_head(line)
            if isinstance(head, Heartbeat) and head.epoch != self._epoch:
                other, _, _ = parse_heartbeat(head, body)
                if self._own.beats(head.epoch, beat_interval(head), clock):
                    self._counters.namesakes += 1
                    self._note(self._host, other, address)
        except FrameError:
            return


def beat_interval(head: Heartbeat) -> float:
    """Return the seconds until the next heartbeat."""
    return min(MAX_INTERVAL, max(MIN_INTERVAL, head.interval / 1_000))
