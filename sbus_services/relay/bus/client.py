"""The relay's client of its host's bus: it serves calls to remote hosts and makes calls for them, up to a limit. Spec: sbus-rpc(7) §9."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, replace

from sbus.asyncio.service_bus import ServiceBus
from sbus.protocol.credentials import Peer
from sbus.protocol.envelope import Envelope, relay_key, relayed_key
from sbus.rpc.calls import Answer, Invocation


@dataclass(frozen=True, slots=True)
class RelayedInvocation(Invocation):
    """A call from the host *source* to a service of this host, ``twin``."""

    source: int = 0

    @property
    def key(self) -> bytes:
        """The key of services that remote hosts may call."""
        return relayed_key(self.command)

    def routed(self, envelope: Envelope) -> Envelope:
        """Return *envelope* with the calling host and this one."""
        return replace(envelope, source=self.source, destinations=(self.twin or 0,))


class RelayBus(ServiceBus):
    """A connection of the relay; make one with ``RelayBus.connect``."""

    async def call_relayed(self, request: RelayedInvocation) -> Answer:
        """Make the call of a remote host. Raises what ``call`` raises."""
        return await self._link.run(self._begin_calls().call(request))

    async def rivals(self, twin: int) -> list[Peer]:
        """Return the other clients that serve calls to remote hosts, such as *twin*, on this bus. Raises what ``members`` raises."""
        key, own = relay_key(twin, "any"), await self.address
        there = [peer for peer in await self.members(key) if peer.address != own]
        # A mere subscriber does not subscribe to the key at its own address.
        return [peer for peer in there if await self.members(peer.address_bytes + key)]


class ConcurrencyLimit:
    """At most *calls* concurrent calls and *size* bytes for each owner, such as a user."""

    def __init__(self, calls: int, size: int) -> None:
        self.calls = calls
        self.size = size
        self._calls: Counter[Hashable] = Counter()
        self._size: Counter[Hashable] = Counter()

    def problem(self, owner: Hashable, size: int) -> str:
        """Return why *owner* may not start another call of *size* bytes; empty if it may."""
        if self._calls[owner] >= self.calls:
            return f"{self.calls} calls are already in progress"
        if self._size[owner] + size > self.size:
            return f"calls in progress hold {self._size[owner]} bytes and this one {size}; the limit is {self.size} bytes"
        return ""

    def acquire(self, owner: Hashable, size: int) -> None:
        """Record the start of a call. Duty: :meth:`release` it with the same arguments."""
        self._calls[owner] += 1
        self._size[owner] += size

    def release(self, owner: Hashable, size: int) -> None:
        """Record the end of a call."""
        self._calls[owner] -= 1
        self._size[owner] -= size
        if not self._calls[owner]:
            del self._calls[owner], self._size[owner]

    def __len__(self) -> int:
        """Return the number of concurrent calls of all owners."""
        return self._calls.total()
