"""The other hosts as a link reports them."""

from __future__ import annotations

from dataclasses import dataclass

from sbusd.link.counters import HostCounters
from sbusd.link.peers import Peers
from sbusd.link.remote_interest import RemoteInterest


@dataclass(frozen=True, slots=True)
class HostState:
    """One other host. ``silent_seconds``: since its last heartbeat. ``address``: where it says that it is.

    ``patterns_there`` is the number of lines that it wants of this host, ``patterns_here`` of those that it has confirmed for this host.
    """

    name: str
    is_alive: bool
    silent_seconds: float
    patterns_there: int
    patterns_here: int
    address: str
    counters: HostCounters


def host_states(peers: Peers, interest: RemoteInterest, *, is_connected: bool) -> list[HostState]:
    """Return the known hosts, sorted by name. None is alive while the network is unavailable."""
    return [
        HostState(
            peer.name,
            peer.is_alive and is_connected,
            peers.clock - peer.last_heartbeat,
            interest.count(peer.name),
            len(peer.incoming.served),
            peer.address,
            peer.counters,
        )
        for peer in sorted(peers, key=lambda peer: peer.name)
    ]
