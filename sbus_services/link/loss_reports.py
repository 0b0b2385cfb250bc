"""Loss notices for the local clients, at a bounded rate for each host.

The bus disconnects a link that sends too many control packets, and then the clients lose the messages of all hosts. Another host causes
control packets of these kinds, and each has a bound for each host:

=================================  =====================================================================================
``lost/for``                       here: PACKETS_PER_SECOND, PACKETS_AT_ONCE, and once a second the merged notice
``SUB`` and ``UNSUB``              `sbus_services.link.peers`: LINES_PER_SECOND, LINES_AT_ONCE; what is withdrawn when a host is
                                   forgotten was added at that rate
``ping``                           `sbus_services.link.interest_receiver`: one at a time, after a change that counts for that rate
=================================  =====================================================================================

The bus does not count messages for this, nor the calls about blobs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from sbus.protocol.vouching import MAX_LOST_PATTERNS
from sbus_services.link.ports import LocalBus, NoteLoss
from sbus_services.link.rates import Rate
from sbus_services.link.remote_interest import MAX_PATTERNS

MAX_COUNT = 0xFFFF_FFFF
"""Largest number of lost messages that is believed. Beyond it the number is unknown."""

PACKETS_PER_SECOND = 32
PACKETS_AT_ONCE = 256
"""Packets with notices about one host that are sent at once. Later ones are merged."""

ALL_PACKETS_PER_SECOND = 2_000
ALL_PACKETS_AT_ONCE = 8_192
"""Such packets about all hosts: a fifth and a quarter of what the bus takes from a user by default."""

MAX_ORIGINS = 10_000
"""Hosts whose rates are remembered."""

MERGE_SECONDS = 1.0
"""How long notices wait to be merged."""

MAX_EXACT = 16
"""Notices with a number that wait for one host. Those of further patterns become a notice of an unknown number."""

MAX_HELD_PATTERNS = 2 * MAX_PATTERNS
"""Patterns of a notice of an unknown number. More than the clients have at once wait only if clients change theirs as fast."""


@dataclass(slots=True)
class _Origin:
    """The notices about one host: their rate, and those that wait: numbers by patterns, and patterns with an unknown number."""

    rate: Rate = field(default_factory=lambda: Rate(PACKETS_PER_SECOND, PACKETS_AT_ONCE))
    exact: dict[tuple[bytes, ...], int] = field(default_factory=dict)
    unknown: set[bytes] = field(default_factory=set)
    due: float = 0.0


class LossReports:
    """Sends each notice at once, or merged with others of the same host: none is dropped. *note* gets each when it is sent."""

    def __init__(self, bus: LocalBus, note: NoteLoss) -> None:
        self._bus = bus
        self._note = note
        self._rate = Rate(ALL_PACKETS_PER_SECOND, ALL_PACKETS_AT_ONCE)
        self._origins: dict[str, _Origin] = {}
        self._waiting: dict[str, _Origin] = {}
        """Those of which notices wait, the next one first."""

    @property
    def next_due(self) -> float | None:
        """When `send_due` has something to do, in seconds."""
        return next((host.due for host in self._waiting.values()), None)

    def report(self, origin: str, patterns: Iterable[bytes], count: int, now: float) -> None:
        """Report *count* lost messages of *origin* for *patterns*; 0 is an unknown number, and an empty *origin* an unknown host."""
        unique = tuple(sorted(set(patterns)))
        if not unique:
            return
        host = self._waiting.get(origin)
        if host is None:
            host = self._find(origin)
            packets = -(-len(unique) // MAX_LOST_PATTERNS)
            if host.rate.take(now, packets) and self._rate.take(now, packets):
                self._send(origin, unique, count)
                return
            host.due = now + MERGE_SECONDS
            self._waiting[origin] = host
        _merge(host, unique, count)
        if len(host.unknown) > MAX_HELD_PATTERNS:
            self._send_held(origin)

    def send_due(self, now: float) -> None:
        """Send the merged notices that have waited long enough."""
        while self._waiting:
            origin, host = next(iter(self._waiting.items()))
            if host.due > now:
                break
            if not self._rate.take(now, len(host.exact) + len(host.unknown) // MAX_LOST_PATTERNS + 1):
                host.due = now + MERGE_SECONDS  # it stays the first one
                break
            self._send_held(origin)

    def _find(self, origin: str) -> _Origin:
        host = self._origins.get(origin)
        if host is None:
            if len(self._origins) >= MAX_ORIGINS:
                self._origins = dict(self._waiting)
            host = self._origins[origin] = _Origin()
        return host

    def _send_held(self, origin: str) -> None:
        host = self._waiting.pop(origin)
        exact, host.exact = host.exact, {}
        unknown, host.unknown = host.unknown, set()
        for patterns, count in exact.items():
            self._send(origin, patterns, count)
        if unknown:
            self._send(origin, tuple(sorted(unknown)), 0)

    def _send(self, origin: str, patterns: tuple[bytes, ...], count: int) -> None:
        self._bus.report_lost(patterns, count)
        self._note(origin, patterns, count)


def _merge(host: _Origin, patterns: tuple[bytes, ...], count: int) -> None:
    """Add a notice to those that wait."""
    total = host.exact.get(patterns, 0) + count
    if count and total <= MAX_COUNT and len(patterns) <= MAX_LOST_PATTERNS and (patterns in host.exact or len(host.exact) < MAX_EXACT):
        host.exact[patterns] = total
    else:
        host.unknown.update(patterns)
