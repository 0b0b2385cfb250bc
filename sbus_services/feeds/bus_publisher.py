"""A feed's connection to the bus: it publishes, receives requests for snapshots, and limits the rate of log lines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from sbus import Bus, Disconnected, Gap, Message, Overflow, RemoteRefusal, Scope, Subscription, TimedOut

_QUEUE_PACKETS = 64
"""All requests are alike, so excess ones are only counted: clients cannot exhaust the feed's memory with requests."""

_TURN_ITEMS = 256
"""Items received at a time, so that requests do not delay the kernel's messages."""


@dataclass(frozen=True, slots=True)
class BusActivity:
    """What was received from the bus since the last call."""

    requests: int = 0
    reconnected: bool = False
    refused: int = 0
    """Publications of the feed that the bus rejected."""
    has_more: bool = False


class BusPublisher:
    """A connection that is restored when the bus returns, with a subscription to the key of requests."""

    def __init__(self, bus: Bus, requests: Subscription, log: Callable[[str], None]) -> None:
        self._bus = bus
        self._requests = requests
        self._log = log
        self._refusals = LogThrottle()
        self._refused = 0
        bus.on_refused = self._note_refusal

    @classmethod
    def connect(cls, address: str | None, scope: Scope | None, request_key: str, log: Callable[[str], None]) -> Self:
        """Connect; *log* is called with lines for the administrator.

        Raises:
            SbusError: the bus is not running, the address is invalid, or the bus rejects the subscription.
        """
        bus = Bus.connect(address, scope=scope, timeout=None, reconnect=True, queue_packets=_QUEUE_PACKETS, overflow=Overflow.DISCARD)
        return cls(bus, bus.subscribe(request_key), log)

    def fileno(self) -> int | None:
        """Return the descriptor to poll, None while the bus is unavailable; then :meth:`activity` waits for the bus."""
        try:
            return self._bus.fileno()
        except Disconnected:
            return None

    def publish(self, key: str, payload: bytes) -> None:
        """Publish one message; block while the bus is unavailable or applies backpressure."""
        self._bus.publish(key, payload)

    def activity(self) -> BusActivity:
        """Return what was received since the last call; block only while the bus is unavailable."""
        requests, before = 0, self._refused
        reconnected = False
        for _ in range(_TURN_ITEMS):
            try:
                item = self._requests.receive(timeout=None if self.fileno() is None else 0)
            except TimedOut:
                if self.fileno() is not None:
                    return BusActivity(requests, reconnected, self._refused - before)
                continue
            match item:
                case Message():
                    requests += 1
                case Gap(lost):
                    # 0 means an unknown number: a request may be among them, and an unnecessary snapshot does no harm.
                    requests += max(1, lost)
                case _:
                    reconnected = True
        return BusActivity(requests, reconnected, self._refused - before, has_more=True)

    def close(self) -> None:
        """Close the connection."""
        self._bus.close()

    def _note_refusal(self, refusal: RemoteRefusal) -> None:
        """Count a rejected publication, and log it with a rate limit."""
        self._refused += 1
        count = self._refusals.count()
        if count is not None:
            self._log(f"{refusal} ({count} so far)")


class LogThrottle:
    """Counts occurrences, of which the 1st, 10th, 100th … is logged."""

    def __init__(self) -> None:
        self._total = 0

    def count(self) -> int | None:
        """Count one occurrence; return the total if it is to be logged, else None."""
        self._total += 1
        return self._total if str(self._total).strip("0") == "1" else None
