"""The connections of the store to its bus: for calls, for ordinary messages, for subscribed workers, and for control messages.

A burst of ordinary messages does not delay calls, because the bus has a queue for each connection. Spec: sbus-store(8), "ON THE BUS".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache

from sbus import operations
from sbus.asyncio.service_bus import ServiceBus
from sbus.errors import SbusError
from sbus.protocol.packets import MAX_PACKET_BYTES, publish_packet
from sbus.rpc.service import Dispatcher
from sbus.vouching import vouched_publication
from sbus_services.store.engine.messages import Sender

ORIGIN_HEAD = b"!/store"
"""The words before the credentials of a publisher in whose name the store publishes."""

_CACHED_SENDERS = 1_024

_PLAIN = publish_packet(b"")


class ServingBus(ServiceBus):
    """A connection that serves calls, however many of them wait; make one with ``ServingBus.connect``."""

    _serving: asyncio.Task[None] | None = None

    async def dispatch(self, dispatcher: Dispatcher, ready: Callable[[], None] | None = None, *, max_concurrent: int | None = None) -> None:
        """Serve the requests that *dispatcher* accepts, until :meth:`respond_to_all`."""
        self._serving = asyncio.current_task()
        await super().dispatch(dispatcher, ready, max_concurrent=max_concurrent)

    async def respond_to_all(self) -> None:
        """Accept no further calls, and return when those that have come are answered."""
        self.stop_serving()
        if self._serving is not None:
            await asyncio.wait([self._serving])

    @property
    def packet_limit(self) -> int:
        """The longest packet that can be sent, in bytes."""
        return self._session.outgoing.packet_limit

    def send(self, packet: bytes) -> bool:
        """Send *packet* if it need not wait for room; return whether it was sent."""
        return self._link.send_now(packet)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Send the packets of the context in as few batches as possible. Raises SbusError if the connection has ended."""
        self._link.begin_gathering()
        try:
            yield
        finally:
            self._link.writer.end_gathering_now()

    async def send_later(self, packet: bytes) -> None:
        """Send *packet* when there is room. Raises SbusError, OSError."""
        if not self._link.send_now(packet):
            await self._link.send_later(packet)

    async def send_counted(self, packet: bytes) -> int:
        """Send *packet* when there is room, and return its number of recipients. Raises RemoteRefusal, SbusError, OSError."""
        return await self._link.run(operations.publish(self._session, packet, b"", self._link.timeout)) or 0


def origin_of(sender: Sender) -> bytes:
    """Return the origin of messages that the store passes on for *sender*."""
    if sender.origin:
        return sender.origin.encode("utf-8", "surrogateescape")
    return b"%b/!/cred/%d/%d/%d" % (ORIGIN_HEAD, sender.gid, sender.uid, sender.pid)


def passed_on(sender: Sender, key: bytes, payload: bytes) -> bytes:
    """Return the packet that publishes a message as *sender*'s; empty if it would be too long, or has no valid sender or key."""
    head = _head_of(sender)
    packet = b"%bMSG %b\0%b" % (head, key, payload)
    return packet if head and len(packet) <= MAX_PACKET_BYTES and b"\0" not in key else b""


@lru_cache(_CACHED_SENDERS)
def _head_of(sender: Sender) -> bytes:
    """Return what precedes the packet of a message of *sender*; empty if the sender is invalid."""
    try:
        return vouched_publication(origin_of(sender), b"").removesuffix(_PLAIN)
    except SbusError:
        return b""
