"""The bus as a feed sees it: publish, and hear who asks for a snapshot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from sbusd.client import Bus, Disconnected, Gap, Message, Overflow, RemoteRefusal, Scope, Subscription, TimedOut
from sbusd.feeds.rate_limit import LogThrottle

_QUEUE_PACKETS = 64
"""Requests are all alike, so those that do not fit are only counted: nobody fills the feed's memory by asking."""

_TURN_ITEMS = 256
"""Items taken at once: nobody keeps the feed from the kernel's messages by asking."""


@dataclass(frozen=True, slots=True)
class BusActivity:
    """What came from the bus: how many requests, whether the connection was lost and made anew, and whether there is more."""

    requests: int = 0
    reconnected: bool = False
    refused: int = 0
    """Publications of the feed that the bus refused."""
    has_more: bool = False


class BusPublisher:
    """A connection that comes back when the bus does, and a subscription to the key of requests."""

    def __init__(self, bus: Bus, requests: Subscription, log: Callable[[str], None]) -> None:
        self._bus = bus
        self._requests = requests
        self._log = log
        self._refusals = LogThrottle()

    @classmethod
    def connect(cls, address: str | None, scope: Scope | None, request_key: str, log: Callable[[str], None]) -> Self:
        """Connect; *log* takes a line for the person who runs the feed.

        Raises:
            SbusError: there is no bus, the address is none, or the bus refuses the subscription.
        """
        bus = Bus.connect(address, scope=scope, timeout=None, reconnect=True, queue_packets=_QUEUE_PACKETS, overflow=Overflow.DISCARD)
        return cls(bus, bus.subscribe(request_key), log)

    def fileno(self) -> int | None:
        """Return the descriptor to poll, None while the bus is away: then :meth:`activity` waits for it."""
        try:
            return self._bus.fileno()
        except Disconnected:
            return None

    def publish(self, key: str, payload: bytes) -> None:
        """Publish one message; waits while the bus is away, or does not take it."""
        self._bus.publish(key, payload)

    def activity(self) -> BusActivity:
        """Return what came since the last time; waits only while the bus is away."""
        requests = refused = 0
        reconnected = False
        for _ in range(_TURN_ITEMS):
            try:
                item = self._requests.receive(timeout=None if self.fileno() is None else 0)
            except TimedOut:
                if self.fileno() is not None:
                    return BusActivity(requests, reconnected, refused)
                continue
            except RemoteRefusal as refusal:
                refused += 1
                self._note_refusal(refusal)
                continue
            match item:
                case Message():
                    requests += 1
                case Gap(lost):
                    # Nobody knows how many (0): there may have been one, and to answer it is right in any case.
                    requests += max(1, lost)
                case _:
                    reconnected = True
        return BusActivity(requests, reconnected, refused, has_more=True)

    def close(self) -> None:
        """End the connection."""
        self._bus.close()

    def _note_refusal(self, refusal: RemoteRefusal) -> None:
        """Say that the bus refused a publication, rarely, so that the journal does not fill up."""
        count = self._refusals.next()
        if count is not None:
            self._log(f"{refusal} ({count} so far)")
