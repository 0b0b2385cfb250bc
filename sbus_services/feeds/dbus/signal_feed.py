"""The feed of D-Bus signals that the configuration names. Spec: sbus-feed(8), feed-dbus.toml(5).

Signals are events, so none replaces another: those that the bus does not accept yet wait in a queue. Signals for which the queue has no
room are dropped, counted, and reported in the place where they are missing.

A value never adds a segment, is never empty, and is never longer than :data:`MAX_PART_BYTES`: the sender chooses it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sbus_programs.config.feed_dbus import KEY_FIELD, PREFIX, DBusFeedSettings, SignalRule
from sbus_services.feeds.dbus.bus_output import PAYLOAD_BYTES, BusOutput
from sbus_services.feeds.dbus.connection import DRIVER, DBusConnection, DBusSignal, NameOwner, end_of, run_together, stay_connected
from sbus_services.feeds.dbus.json_values import JsonValues, TooLargeError, basic_text
from sbus_services.feeds.netlink.entries import Attributes, escape
from sbus_services.feeds.rate_limit import Pace

MAX_PART_BYTES = 255
"""Longest part of a key that a value becomes."""

_DIGEST_CHARACTERS = 32
"""Characters of the digest that ends a longer value: 128 bits, so that a sender cannot find two values with one key."""

EMPTY = "-"
"""The part of a key for an empty, missing or compound value; the text ``-`` becomes ``%2D``."""


def key_part(value: Any) -> str:
    """Return a value as one segment of a key."""
    try:
        text = basic_text(value)
    except TypeError:
        return EMPTY
    if text == EMPTY:
        return "%2D"
    escaped = escape(text)
    if len(escaped) > MAX_PART_BYTES:
        head = escaped[: MAX_PART_BYTES - _DIGEST_CHARACTERS - 1]
        # No half of an escaped byte.
        head = head[: head.rfind("%")] if "%" in head[-2:] else head
        return f"{head}~{hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_CHARACTERS]}"
    return escaped or EMPTY


def key_maker(template: str) -> Callable[[str, DBusSignal], str]:
    """Return a function that makes the key of a signal of the sender with a well-known name."""
    pieces = KEY_FIELD.split(template)

    def key(sender: str, signal: DBusSignal) -> str:
        # Every second piece is the name of a field.
        return "".join(key_part(_field(piece, sender, signal)) if number % 2 else piece for number, piece in enumerate(pieces))

    return key


def _field(name: str, sender: str, signal: DBusSignal) -> Any:
    """Return the value of a field; None for an argument that is missing."""
    match name:
        case "sender":
            return sender
        case "path":
            return signal.path
        case "object":
            return signal.path.rpartition("/")[2]
        case "interface":
            return signal.interface
        case "member":
            return signal.member
    return _argument(signal.body, int(name.removeprefix("arg")))


def _argument(body: Sequence[Any], number: int) -> Any:
    """Return the argument with this number, or in a variant; None if it is missing."""
    value = body[number] if number < len(body) else None
    return getattr(value, "value", value)


REQUEST = f"{PREFIX}request"
STATE = f"{PREFIX}state"
LOST = f"{PREFIX}lost"

QUEUE_MESSAGES = 4096
"""Maximum number of signals that wait for the bus."""

QUEUE_BYTES = 16 << 20
"""Maximum size of their payloads."""

_STATE_SECONDS = 1.0
"""Shortest interval between two messages with the state."""

_ROOM = PAYLOAD_BYTES - (8 << 10)
"""Room for the arguments, next to the other fields."""


@dataclass(slots=True)
class SignalCounters:
    """Counters, published with the state and with each report of lost signals."""

    published: int = 0
    """Signals passed to the bus."""
    dropped: int = 0
    """Signals for which the queue had no room."""
    omitted: int = 0
    """Signals whose arguments were too large for a message."""
    forged: int = 0
    """Signals that another connection than the owner of the name has sent."""
    disconnects: int = 0
    """Times that the connection to the D-Bus bus was lost."""


class _Rule:
    """A table of the configuration, with what it has matched."""

    def __init__(self, rule: SignalRule, number: int) -> None:
        self.rule = rule
        self.number = number
        self.signals = 0
        self.key = key_maker(rule.key)

    def match_rule(self) -> str:
        """Return the match rule for the D-Bus bus."""
        rule = self.rule
        parts = {"sender": rule.sender, "interface": rule.interface, "member": rule.member}
        parts |= {"path": rule.path, "path_namespace": rule.path_namespace}
        text = ",".join(f"{name}='{value}'" for name, value in parts.items() if value)
        if rule.arg0 is not None:
            quoted = rule.arg0.replace("'", r"'\''")
            text += f",arg0='{quoted}'"
        return f"type='signal',{text}"

    def matches(self, signal: DBusSignal) -> bool:
        """Return whether *signal* matches, apart from its sender."""
        rule, path = self.rule, signal.path
        if signal.interface != rule.interface or rule.member not in ("", signal.member) or rule.path not in ("", path):
            return False
        below = rule.path_namespace.rstrip("/")
        if below and path != below and not path.startswith(f"{below}/"):
            return False
        return rule.arg0 is None or (signal.signature.startswith("s") and signal.body[0] == rule.arg0)


class SignalFeed:
    """A feed from the D-Bus bus at *address*; the caller owns *output*.

    *log* is called with lines for the administrator, *ready* with a status line when the feed is connected.
    """

    def __init__(
        self, settings: DBusFeedSettings, output: BusOutput, address: str, log: Callable[[str], None], ready: Callable[[str], None]
    ) -> None:
        self.counters = SignalCounters()
        self._output = output
        self._address = address
        self._log = log
        self._ready = ready
        self._rules = [_Rule(rule, number) for number, rule in enumerate(settings.signals, 1)]
        self._owners = {name: NameOwner(name) for name in {rule.sender for rule in settings.signals} - {DRIVER}}
        self._pace = Pace(settings.rate)
        self._queue: deque[tuple[str, bytes]] = deque()
        self._queued_bytes = 0
        self._dropped = 0
        """Dropped signals that are not reported yet."""
        self._wants_state = True
        self._state_time = float("-inf")
        self._is_connected = False
        self._wake = asyncio.Event()

    async def run(self) -> None:
        """Feed until cancelled.

        Raises:
            SbusError: the D-Bus bus cannot be reached at the start, or the bus is permanently unavailable.
        """
        following = stay_connected(self._address, self._handle, self._follow_on, self._note_disconnect, self._log)
        await run_together(following, self._publish(), self._receive())

    async def _follow_on(self, connection: DBusConnection) -> None:
        """Receive signals until *connection* ends."""
        async with end_of(connection) as closed:
            for owner in self._owners.values():
                await owner.follow(connection)
            for rule in self._rules:
                await connection.add_match(rule.match_rule())
            self._is_connected = True
            self._ready(f"{len(self._rules)} kinds of signals, {self.counters.disconnects} disconnects")
            await closed

    def _note_disconnect(self) -> None:
        """Note that the connection to the D-Bus bus has ended; signals may be lost until the next one."""
        self._is_connected = False
        for owner in self._owners.values():
            owner.lost()
        self.counters.disconnects += 1
        self._append(LOST, self._lost("disconnected", None))

    def _handle(self, signal: DBusSignal) -> None:
        """Queue a signal for each table that it matches."""
        if signal.sender == DRIVER and any(owner.handle(signal) for owner in self._owners.values()):
            # It may match a table too: fall through.
            self._wake.set()
        is_forged = False
        for rule in self._rules:
            if rule.matches(signal):
                owner = DRIVER if rule.rule.sender == DRIVER else self._owners[rule.rule.sender].owner
                if signal.sender == owner:
                    self._queue_signal(rule, signal)
                else:
                    is_forged = True
        self.counters.forged += is_forged

    def _queue_signal(self, rule: _Rule, signal: DBusSignal) -> None:
        """Queue the message about *signal*."""
        rule.signals += 1
        payload = self._payload(rule, signal)
        if len(self._queue) >= QUEUE_MESSAGES or self._queued_bytes + len(payload) > QUEUE_BYTES:
            self.counters.dropped += 1
            self._dropped += 1
            return
        if self._dropped:
            self._append(LOST, self._lost("backlog", self._dropped))
            self._dropped = 0
        self._append(rule.key(rule.rule.sender, signal), payload)

    def _payload(self, rule: _Rule, signal: DBusSignal) -> bytes:
        """Return the payload for *signal*; without the arguments if they are too large."""
        head: Attributes = {
            "event": "signal",
            "time": round(time.time(), 6),
            "sender": rule.rule.sender,
            "unique": signal.sender,
            "path": signal.path if len(signal.path) <= _ROOM // 16 else None,
            "interface": signal.interface,
            "member": signal.member,
            "signature": signal.signature,
        }
        try:
            payload = _json({**head, "args": JsonValues(_ROOM).of(list(signal.body)), "omitted": False})
        except TooLargeError:
            payload = b""
        # Characters outside ASCII take up to twelve bytes.
        if not 0 < len(payload) <= PAYLOAD_BYTES:
            self.counters.omitted += 1
            payload = _json({**head, "args": None, "omitted": True})
        return payload

    def _append(self, key: str, payload: bytes) -> None:
        """Queue one message."""
        self._queue.append((key, payload))
        self._queued_bytes += len(payload)
        self._wake.set()

    async def _publish(self) -> None:
        """Publish the queue and the state as they are due."""
        while True:
            self._wake.clear()
            now = time.monotonic()
            if self._wants_state and now >= self._state_time + _STATE_SECONDS:
                self._wants_state, self._state_time = False, now
                await self._output.send(STATE, self._state())
            elif self._queue:
                key, payload = self._queue.popleft()
                self._queued_bytes -= len(payload)
                await self._output.send(key, payload)
                self.counters.published += key != LOST
                await self._pace.keep()
            elif self._dropped:
                count, self._dropped = self._dropped, 0
                await self._output.send(LOST, self._lost("backlog", count))
            else:
                await self._wait(max(0.0, self._state_time + _STATE_SECONDS - now) if self._wants_state else None)

    async def _wait(self, timeout: float | None) -> None:
        """Wait until there may be something to publish."""
        try:
            async with asyncio.timeout(timeout):
                await self._wake.wait()
        except TimeoutError:
            return

    async def _receive(self) -> None:
        """Receive requests and reconnections: both are answered by the state."""
        while True:
            if await self._output.receive() == "reconnect":
                # Signals that were sent before may be lost with the connection.
                self._append(LOST, self._lost("reconnect", None))
            self._wants_state = True
            self._wake.set()

    def _state(self) -> bytes:
        """Return the state of the feed."""
        rules: list[Attributes] = [
            {
                "number": rule.number,
                "key": rule.rule.key,
                "sender": rule.rule.sender,
                "is_owned": rule.rule.sender == DRIVER or bool(self._owners[rule.rule.sender].owner),
                "signals": rule.signals,
            }
            for rule in self._rules
        ]
        return _json(
            {"event": "state", "time": round(time.time(), 6), "connected": self._is_connected, **self._counters(), "rules": [*rules]}
        )

    def _lost(self, reason: str, count: int | None) -> bytes:
        """Return a report of lost signals."""
        return _json({"event": "lost", "time": round(time.time(), 6), "reason": reason, "count": count, **self._counters()})

    def _counters(self) -> Attributes:
        """Return the counters of the process."""
        output = self._output
        return {**asdict(self.counters), "requests": output.requests, "refused": output.refused, "reconnects": output.reconnects}


def _json(attributes: Attributes) -> bytes:
    """Return *attributes* as JSON in ASCII."""
    return json.dumps(attributes, separators=(",", ":")).encode()
