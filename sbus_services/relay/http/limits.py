"""Limits for remote hosts: the number of their connections, and the bytes of bodies of unverified senders, by address group.

An excess connection is closed at once. A connection that has never carried a message of a verified sender is closed to make room for a
new one of its address group; so is the oldest body of a group that has no room for a new one. Otherwise a user without a key on a peer's
host could keep the peer out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from sbus_programs.config.hosts import AddressGroup, AddressGroups
from sbus_programs.config.relay import RelaySettings
from sbus_programs.systemd.log_records import LogMessage
from sbus_services.relay.log_messages import TOO_MANY, TOO_SLOW

RejectionReporter = Callable[[LogMessage, str, str, str], None]
"""Called with event, address, reason and name of the counter."""

PARTS = 8
"""One group may have this fraction of the bytes."""


def _nothing() -> None:
    """Do nothing."""


@dataclass(eq=False, slots=True)
class ConnectionSlot:
    """The slot of a connection. Duty: :meth:`ConnectionLimiter.release` it once."""

    address: str
    group: str
    is_reserved: bool
    """Whether it is one of the slots for configured peers."""
    close: Callable[[], None] = _nothing
    """Closes the connection."""
    is_left: bool = False
    """Whether the connection is closed, or its slot belongs to another one."""


class ConnectionLimiter:
    """Limits the connections of one listening socket."""

    def __init__(self, settings: RelaySettings, groups: AddressGroups, report_rejection: RejectionReporter) -> None:
        """*settings* contain the limits and timeouts."""
        self.idle_seconds = settings.idle_timeout
        self.header_seconds = settings.body_timeout
        self.asks_kernel = not settings.is_authenticated
        """Whether to ask the kernel for the local user of a connection."""
        self.report_rejection = report_rejection
        self._settings = settings
        self._groups = groups
        self._of: Counter[str] = Counter()
        self._total: Counter[bool] = Counter()
        self._unverified: dict[str, dict[ConnectionSlot, None]] = {}
        """Unverified connections of each group, oldest first."""
        self._is_closed = False

    def close(self) -> None:
        """Admit no further connections: one accepted just before the listening socket closed comes after all others are closed."""
        self._is_closed = True

    def admit(self, address: str) -> ConnectionSlot | None:
        """Return a slot for a connection from *address*, None if there is none."""
        if self._is_closed:
            return None
        settings = self._settings
        group = self._groups.group(address)
        if self._of[group.name] >= settings.address_connections:
            self._evict(group.name)
        is_reserved = group.is_peer and self._total[True] < settings.peer_connections
        if self._of[group.name] >= settings.address_connections:
            reason = f"{group.name} already has {settings.address_connections}, the limit of address_connections in relay.toml"
        elif not is_reserved and self._total[False] >= settings.connections:
            reason = f"{settings.connections} are already open, the limit of connections in relay.toml"
        else:
            self._of[group.name] += 1
            self._total[is_reserved] += 1
            slot = ConnectionSlot(address, group.name, is_reserved)
            self._unverified.setdefault(group.name, {})[slot] = None
            return slot
        self.report_rejection(TOO_MANY, address, reason, "connections-refused")
        return None

    def release(self, slot: ConnectionSlot) -> None:
        """Release the slot of a closed connection; repeated calls have no effect."""
        if slot.is_left:
            return
        slot.is_left = True
        self.mark_verified(slot)
        self._total[slot.is_reserved] -= 1
        self._of[slot.group] -= 1
        if not self._of[slot.group]:
            del self._of[slot.group]

    def mark_verified(self, slot: ConnectionSlot) -> None:
        """Record that the sender is verified, so that the connection is not closed to make room."""
        unverified = self._unverified.get(slot.group, {})
        unverified.pop(slot, None)
        if not unverified:
            self._unverified.pop(slot.group, None)

    def _evict(self, group: str) -> None:
        """Close the oldest unverified connection of *group*, if there is one."""
        if oldest := next(iter(self._unverified.get(group, ())), None):
            self.release(oldest)
            oldest.close()
            most = self._settings.address_connections
            reason = f"{group} already has {most}, the limit of address_connections in relay.toml; closed its oldest unverified one"
            self.report_rejection(TOO_MANY, oldest.address, reason, "connections-evicted")

    def report_slow(self, address: str) -> None:
        """Report a connection that is closed because its first request did not arrive in time."""
        self.report_rejection(TOO_SLOW, address, "no complete request header in time", "connections-slow")


class UnverifiedBytes:
    """All bodies that are being received. Configured peers have a limit of their own, which other addresses cannot exhaust."""

    def __init__(self, groups: AddressGroups, most: int, body_bytes: int) -> None:
        """*most* bytes each for configured peers and for other addresses; a group always has room for *body_bytes*."""
        self._groups = groups
        self._most = most
        self._most_of_party = max(most // PARTS, body_bytes)
        self._of: Counter[AddressGroup] = Counter()
        self._total: Counter[bool] = Counter()
        self._bodies: dict[AddressGroup, dict[UnverifiedBody, None]] = {}
        """Bodies with bytes of each group, oldest first."""

    def body(self, address: str) -> UnverifiedBody:
        """Return a context for a body from *address*; leave it when the sender is verified or rejected."""
        return UnverifiedBody(self, self._groups.group(address))

    def acquire(self, body: UnverifiedBody, size: int) -> bool:
        """Reserve *size* more bytes for *body*, if necessary by evicting older bodies of its group; return whether it succeeded."""
        group = body.group
        while self._total[group.is_peer] + size > self._most or self._of[group] + size > self._most_of_party:
            oldest = next((each for each in self._bodies.get(group, ()) if each is not body), None)
            if oldest is None:
                return False
            oldest.evict()
        self._bodies.setdefault(group, {})[body] = None
        self._total[group.is_peer] += size
        self._of[group] += size
        return True

    def release(self, body: UnverifiedBody, size: int) -> None:
        """Release the *size* bytes of *body*, which are all that it has."""
        group = body.group
        bodies = self._bodies.get(group, {})
        bodies.pop(body, None)
        if not bodies:
            self._bodies.pop(group, None)
        self._total[group.is_peer] -= size
        self._of[group] -= size
        if not self._of[group]:
            del self._of[group]  # keeps the counter small


class UnverifiedBody:
    """One body: a context within which its bytes count."""

    end: Callable[[], None] | None = None
    """Called once if another body needs the room: must stop the reader."""
    is_evicted = False
    """Whether another body has taken the room."""

    def __init__(self, unverified: UnverifiedBytes, group: AddressGroup) -> None:
        self._unverified_bytes = unverified
        self.group = group
        self._size = 0

    def __enter__(self) -> UnverifiedBody:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._leave()

    def evict(self) -> None:
        """Give up the room for another body."""
        self.is_evicted = True
        self._leave()
        if self.end is not None:
            self.end()

    def _leave(self) -> None:
        """Release all bytes."""
        self._unverified_bytes.release(self, self._size)
        self._size = 0

    def grow(self, size: int) -> bool:
        """Reserve *size* more bytes; return whether it succeeded."""
        if self.is_evicted or not self._unverified_bytes.acquire(self, size):
            return False
        self._size += size
        return True
