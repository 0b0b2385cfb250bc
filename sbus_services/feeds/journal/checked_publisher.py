"""A connection that publishes journal entries only if the rules of the bus protect them. Spec: sbus-feed(8), RULES.

Root and a few groups can read the journal; without a rule, everyone can subscribe to a key. So before each batch the feed asks the bus
whether a user without a rule could subscribe, and whether the feed may publish: the bus may have been reconfigured or replaced. A batch
is delivered when the bus has routed it. If the connection is lost, a batch that may not have been routed is published again on the next
one: a message can arrive twice, but none is lost.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from sbus import AnswerLost, Bus, Disconnected, NoBus, PayloadTooLarge, RemoteRefusal, Scope, Statistics
from sbus.protocol import controls
from sbus.protocol.errors import SbusError
from sbus.reconnection import ReconnectAttempts
from sbus_services.feeds.bus_publisher import LogThrottle
from sbus_services.feeds.journal.entry import PREFIX

Batch = Sequence[tuple[str, bytes]]


class AccessCheckError(SbusError):
    """The configuration of the bus does not protect the journal; retrying would not help."""


class BusConnection(Protocol):
    """A connection to a bus, such as :class:`sbus.Bus`."""

    @property
    def statistics(self) -> Statistics:
        """The current counts."""

    def publish(self, key: str, payload: bytes) -> None:
        """Send one message. Raises Disconnected, PayloadTooLarge."""

    def coalesce(self) -> AbstractContextManager[None]:
        """Send messages together at the end of the block. Raises Disconnected there."""

    def control(self, key: bytes, payload: bytes) -> bytes:
        """Return the response to a control message. Raises Disconnected, RemoteRefusal."""

    def ping(self) -> float:
        """Return when all sent messages have been routed. Raises Disconnected, RemoteRefusal for an earlier publication."""

    def close(self) -> None:
        """Close the connection."""


class CheckedPublisher:
    """A connection that is restored when it is lost. Call :meth:`open` first, :meth:`close` at the end."""

    def __init__(
        self,
        connect: Callable[[], BusConnection],
        log: Callable[[str], None],
        *,
        is_public: bool = False,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """*connect* makes a connection. With *is_public* every user may read the journal. *log* is called with lines."""
        self._connect = connect
        self._log = log
        self._is_public = is_public
        self._sleep = sleep
        self._clock = clock
        self._backoff = ReconnectAttempts(clock())
        self._bus: BusConnection | None = None
        self._refusals = LogThrottle()
        self.reconnects = 0
        """Number of reconnections."""

    @classmethod
    def to_bus(cls, address: str | None, scope: Scope | None, log: Callable[[str], None], *, is_public: bool) -> CheckedPublisher:
        """Return a publisher for the bus at *address*, or for that of *scope*."""
        return cls(lambda: Bus.connect(address, scope=scope, timeout=None), log, is_public=is_public)

    def open(self) -> None:
        """Connect once.

        Raises:
            AccessCheckError: the rules of the bus do not protect the journal, or do not allow the feed to publish.
            SbusError: the bus is not running.
        """
        self._bus = self._connect()
        self._check(self._bus)

    def deliver(self, batch: Batch) -> int:
        """Publish *batch* and return how many messages the bus rejected; block while the bus is unavailable.

        Raises:
            AccessCheckError: as :meth:`open`.
        """
        while True:
            bus = self._bus if self._bus is not None else self._reconnect()
            try:
                self._check(bus)
                return self._publish(bus, batch)
            except (Disconnected, AnswerLost) as lost:
                self._log(f"{lost}; publishing the last batch of entries again")
                self.close()
                self._backoff.lost(self._clock())

    def close(self) -> None:
        """Close the connection."""
        if self._bus is not None:
            self._bus.close()
            self._bus = None

    def _reconnect(self) -> BusConnection:
        """Return a new connection; retry until there is one."""
        while True:
            self._sleep(max(0.0, self._backoff.due - self._clock()))
            try:
                bus = self._connect()
            except NoBus:
                self._backoff.attempt(self._clock())
                continue
            self._backoff.connected(self._clock())
            self._bus = bus
            self.reconnects += 1
            self._log("reconnected to the bus")
            return bus

    def _publish(self, bus: BusConnection, batch: Batch) -> int:
        """Publish *batch*, wait until it is routed, and return how many messages were rejected."""
        refused = 0
        before = bus.statistics.refusals
        with bus.coalesce():
            for key, payload in batch:
                try:
                    bus.publish(key, payload)
                except PayloadTooLarge as wrong:
                    refused += 1
                    self._note_refusal(str(wrong))
        while True:
            try:
                bus.ping()
            except RemoteRefusal as refusal:
                self._note_refusal(str(refusal))
            else:
                return refused + bus.statistics.refusals - before

    def _check(self, bus: BusConnection) -> None:
        """Raise AccessCheckError unless the rules protect the journal and allow the feed to publish."""
        # No rule can name this key, so the result holds for units without a rule too.
        key = f"{PREFIX}{secrets.token_hex(8)}.service/info".encode()
        if not self._is_public and _is_allowed(bus, b"\0subscribe\0" + key):
            raise AccessCheckError(
                f"every user of this bus can subscribe to {PREFIX} and read the journal; "
                "restrict that with the rules of sbus-feed(8), section RULES: copy /usr/share/sbus/50-journal.toml to "
                "/etc/sbus/sbusd.toml.d and reload the bus; or use --public"
            )
        if not _is_allowed(bus, b"%d\0publish\0%b" % (os.geteuid(), key)):
            raise AccessCheckError(f"the rules of this bus do not allow the feed to publish to {PREFIX}; see sbus-feed(8), section RULES")

    def _note_refusal(self, words: str) -> None:
        """Log a rejected publication, with a rate limit, because the line becomes a journal entry."""
        count = self._refusals.count()
        if count is not None:
            self._log(f"{words} ({count} so far)")


def _is_allowed(bus: BusConnection, question: bytes) -> bool:
    """Return the result of *question*. Spec: sbus-protocol(7) §6, !/bus/explain. Raises AccessCheckError if there is none."""
    try:
        answer = json.loads(bus.control(controls.EXPLAIN, question))
    except RemoteRefusal as refusal:
        raise AccessCheckError(f"the bus does not report who can subscribe to {PREFIX}: {refusal.said}; upgrade the bus") from refusal
    except ValueError as wrong:
        raise AccessCheckError("the response of the bus to !/bus/explain is not JSON; check that it is sbusd") from wrong
    allowed = answer.get("allowed") if isinstance(answer, dict) else None
    if not isinstance(allowed, bool):
        raise AccessCheckError(f"the bus does not report who can subscribe to {PREFIX}; upgrade the bus")
    return allowed
