"""What an adapter counts. Everything that it does not send or deliver has a counter."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NetworkState:
    """The present connection to the network. ``server`` is the URL of a NATS server, empty without one."""

    connected: bool
    encrypted: bool
    authenticated: bool
    server: str = ""
    server_version: str = ""


@dataclass(slots=True)
class NetworkCounters:
    """Counters since the start of the process; JSON-able by dataclasses.asdict."""

    connects: int = 0
    """Connections that became usable; all but the first are reconnects."""
    connect_failures: int = 0
    messages_in: int = 0
    messages_out: int = 0
    """Messages that were given to the socket; over direct connections, once for each host."""
    bytes_in: int = 0
    """Of heads and bodies of messages, without what the transport adds."""
    bytes_out: int = 0
    stalls: int = 0
    """How often the network was not read because the local bus was full."""
    stalled_seconds: float = 0.0
    rejected: int = 0
    """Errors that the server, or a peer, returned for something that was sent."""
    oversize: int = 0
    """Messages that were not sent because they exceed a limit of the network."""
    dropped: int = 0
    """Messages that were not sent because more than the pending limit waited, or because the connection had just ended."""
    forged: int = 0
    """Messages that were not delivered because their sender may not publish to their subject."""
    unwanted: int = 0
    """Messages that were not delivered because this host has not subscribed to them, or no longer."""
    refused_connections: int = 0
    """Connections that were closed because the host at the other end was not verified, or not in time."""
    ended_handshakes: int = 0
    """Connections that were closed for newer ones, before the host at the other end was verified."""
    last_error: str = ""
    """Why the last connection ended, or could not be made."""
