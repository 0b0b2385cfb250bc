"""The bus as the journal feed sees it: publishes nothing there that the public could read. Spec: sbus-feed(8), RULES.

The journal is for root and a few groups; a key of the bus is for everyone unless a rule says otherwise. So before each batch the gate
asks the bus itself whether somebody whom no rule names could subscribe, and whether the feed may publish: a bus may have been
configured anew meanwhile, or be another one. A batch is delivered when the bus has routed it. When the bus goes away, the batch
that it may not have routed is published again on the next one: a message can come twice, but none is missing.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from sbusd.client import AnswerLost, Bus, Disconnected, NoBus, PayloadTooLarge, RemoteRefusal, Scope, Statistics
from sbusd.client.backoff import Backoff
from sbusd.feeds.journal.entry import PREFIX
from sbusd.feeds.rate_limit import LogThrottle
from sbusd.protocol import controls
from sbusd.protocol.errors import SbusError

Batch = Sequence[tuple[str, bytes]]


class AccessCheckError(SbusError):
    """The bus must not have the journal as it is configured now: trying again would not help."""


class BusConnection(Protocol):
    """A connection to a bus, as :class:`sbusd.client.Bus` is one."""

    @property
    def statistics(self) -> Statistics:
        """The counts up to now."""

    def publish(self, key: str, payload: bytes) -> None:
        """Send one message. Raises Disconnected, PayloadTooLarge."""

    def coalesce(self) -> AbstractContextManager[None]:
        """Let messages leave together until the end of the block. Raises Disconnected there."""

    def control(self, key: bytes, payload: bytes) -> bytes:
        """Return the answer to a control message. Raises Disconnected, RemoteRefusal."""

    def ping(self) -> float:
        """Return when all that was sent has been routed. Raises Disconnected, RemoteRefusal for an earlier publication."""

    def close(self) -> None:
        """End the connection."""


class CheckedPublisher:
    """A connection to a bus that is made anew when it is lost. Call :meth:`open` first, :meth:`close` at the end."""

    def __init__(
        self,
        connect: Callable[[], BusConnection],
        log: Callable[[str], None],
        *,
        is_public: bool = False,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Make a gate to the bus of *connect*. With *is_public* anybody may read the journal there. *log* takes a line."""
        self._connect = connect
        self._log = log
        self._is_public = is_public
        self._sleep = sleep
        self._clock = clock
        self._backoff = Backoff(clock())
        self._bus: BusConnection | None = None
        self._refusals = LogThrottle()
        self.reconnects = 0
        """Times that the bus was lost and found again."""

    @classmethod
    def to_bus(cls, address: str | None, scope: Scope | None, log: Callable[[str], None], *, is_public: bool) -> CheckedPublisher:
        """Return a gate to the bus at *address*, or to that of *scope*."""
        return cls(lambda: Bus.connect(address, scope=scope, timeout=None), log, is_public=is_public)

    def open(self) -> None:
        """Connect, once.

        Raises:
            GateError: the bus does not keep the journal from the public, or does not let the feed publish.
            SbusError: there is no bus.
        """
        self._bus = self._connect()
        self._check(self._bus)

    def deliver(self, batch: Batch) -> int:
        """Publish *batch*, and return how many of it the bus refused; waits while the bus is away.

        Raises:
            GateError: as :meth:`open`.
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
        """End the connection."""
        if self._bus is not None:
            self._bus.close()
            self._bus = None

    def _reconnect(self) -> BusConnection:
        """Return a new connection, after as many tries as it takes."""
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
        """Publish *batch*, wait until it is routed, and return how many of it were refused."""
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
        """Raise GateError unless the public is kept out, and the feed is not."""
        # A key that no rule can name; what is true of it is true of units that nobody has thought of.
        key = f"{PREFIX}{secrets.token_hex(8)}.service/info".encode()
        if not self._is_public and _is_allowed(bus, b"\0subscribe\0" + key):
            raise AccessCheckError(
                f"every user of this bus can subscribe to {PREFIX} and read the journal; "
                "install the rules of sbus-feed(8), section RULES, or use --public"
            )
        if not _is_allowed(bus, b"%d\0publish\0%b" % (os.geteuid(), key)):
            raise AccessCheckError(f"the rules of this bus do not allow the feed to publish to {PREFIX}; see sbus-feed(8), section RULES")

    def _note_refusal(self, words: str) -> None:
        """Say that a publication was refused, rarely: the line comes back as an entry of the journal."""
        count = self._refusals.next()
        if count is not None:
            self._log(f"{words} ({count} so far)")


def _is_allowed(bus: BusConnection, question: bytes) -> bool:
    """Return the bus's answer to *question*. Spec: sbus-protocol(7) §6, !/bus/explain. Raises GateError if it has none."""
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
