"""The relay's connection to its host's bus: a service for calls to other hosts, and a caller for them. Spec: sbus-rpc(7) §9."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from sbusd.client.asyncio.bus import AsyncBus
from sbusd.client.asyncio.server import AsyncServer
from sbusd.client.rpc.calls import Answer, Invocation
from sbusd.client.rpc.service import Reception
from sbusd.protocol.envelope import Envelope, relay_key, relayed_key
from sbusd.protocol.peers import Peer


@dataclass(frozen=True, slots=True)
class RelayedInvocation(Invocation):
    """A call of the host *source*, for the services of this one, ``twin``."""

    source: int = 0

    @property
    def key(self) -> bytes:
        """Where those services listen that other hosts may call."""
        return relayed_key(self.command)

    def routed(self, envelope: Envelope) -> Envelope:
        """Return *envelope* with the host that calls, and this one."""
        return replace(envelope, source=self.source, destinations=(self.twin or 0,))


class RelayBus(AsyncBus):
    """A connection of the relay, from ``RelayBus.connect``."""

    async def call_relayed(self, request: RelayedInvocation) -> Answer:
        """Make the call of another host. Raises what ``call`` raises."""
        return await self._invoke(request)

    async def rivals(self, twin: int) -> list[Peer]:
        """Return who else serves calls to other hosts, such as *twin*, here. Raises what ``members`` raises."""
        key, own = relay_key(twin, "any"), await self.address
        there = [peer for peer in await self.members(key) if peer.address != own]
        # Who only listens does not have it at its own address.
        return [peer for peer in there if await self.members(peer.address + key)]

    async def relay(self, reception: Reception, ready: Callable[[], None]) -> None:
        """Serve what *reception* lets in, all at once, until the bus is closed. Raises what ``serve`` raises."""
        await AsyncServer(self._link, reception, at_once=None).run(ready)
