"""Events about connections and subscriptions, and the JSON lines that taps receive besides messages. Spec: sbus-protocol(7) §5 and §6.

An event is published directly after the change that it reports. So events have the order of the changes, and later replies of the bus
agree with them. The caller checks first whether there is a listener or a tap: see :mod:`sbusd.broker.fast_path`. The switch itself reports
messages to taps; without a tap, each method of :class:`TapEvents` only asks the switch whether there is one.

JSON of the bus is made here too: objects, and connections, keys and patterns in them.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Mapping

from sbus.protocol import controls
from sbus.protocol.credentials import Credentials
from sbus.protocol.errors import ErrorCode
from sbus.protocol.keys import EVENT_HEAD, SECRET_HEAD, KeySpace
from sbus.protocol.memberships import split_stored
from sbus.protocol.packets import publish_packet
from sbusd.broker.roster import Client, EventListeners
from sbusd.broker.switch_errors import END_ERRORS
from sbusd.dataplane.contract import End, Sight, Switch

MAX_DENIED_KEY_BYTES = 1_024
"""Longest part of a refused key in a line, as in the journal. The key itself can be as long as a packet."""

LOSS_UID = 0xFFFF_FFFE
"""The uid that is charged for lines about losses. It is the last uid that a process can have; its user shares the charge."""

_PACKETS = frozenset({b"MSG", b"SUB", b"UNSUB", b"CMSG"})


class TapEvents:
    """The JSON lines of one bus with the credential prefix *prefix*. *charged* returns the user that is charged for a uid; *clock* returns
    nanoseconds since 1970, for tests."""

    def __init__(self, switch: Switch, prefix: bytes, charged: Callable[[int], int] = int, clock: Callable[[], int] = time.time_ns) -> None:
        self.charged = charged
        self._switch = switch
        self._prefix = prefix
        self._clock = clock

    def event(self, kind: str, key: bytes, uid: int, facts: Mapping[str, object]) -> None:
        """Report an event with this *key*, caused by *uid*. Its *facts* include its time and connection."""
        if self._switch.is_tapped():
            self._switch.report(key, _line({"kind": kind, **facts}), uid=self.charged(uid))

    def loss(self, connection: int, credentials: Credentials, count: int) -> None:
        """Report that *count* packets for a connection were lost."""
        # Other users cause a client's losses, so the client is not charged for these lines.
        self._report(controls.LOST, "loss", connection, credentials, {"count": count}, payer=LOSS_UID)

    def rejection(self, connection: int, credentials: Credentials, code: ErrorCode, reason: str) -> None:
        """Report that a connection was rejected."""
        self._report(b"", "denial", connection, credentials, {"packet": "CONNECT", "error": code.name, "reason": reason, "count": 1})

    def denial(self, connection: int, credentials: Credentials, packet: bytes, code: ErrorCode, reason: str, *, count: int = 1) -> None:
        """Report that *count* packets like *packet* were refused. The beginning of the packet is sufficient."""
        word, _, rest = packet[: MAX_DENIED_KEY_BYTES + 8].partition(b" ")
        is_known = word in _PACKETS
        key = rest.partition(b"\0")[0][:MAX_DENIED_KEY_BYTES] if is_known else b""
        facts = {"packet": word.decode() if is_known else "", "error": code.name, "reason": reason, "count": count}
        self._report(key, "denial", connection, credentials, facts | (key_members("key", key) if is_known else {}))

    def _report(
        self, key: bytes, kind: str, connection: int, credentials: Credentials, facts: Mapping[str, object], *, payer: int | None = None
    ) -> None:
        """Send a line to the taps whose pattern matches *key*. The uid *payer* is charged, or with None the connection's user."""
        if self._switch.is_tapped():
            origin = {"kind": kind, "time": self._clock(), "id": connection, "cred": credentials.key(self._prefix).decode()}
            self._switch.report(key, _line({**origin, **facts}), uid=self.charged(credentials.uid) if payer is None else payer)


class PresenceEvents:
    """The events of one bus. *own* are the credentials of the bus itself; *clock* returns nanoseconds since 1970, for tests."""

    def __init__(
        self, switch: Switch, keyspace: KeySpace, tap_events: TapEvents, own: Credentials, clock: Callable[[], int] = time.time_ns
    ) -> None:
        self._switch = switch
        self._tap_events = tap_events
        self._prefix = keyspace.prefix
        self._own = own.key(keyspace.prefix)
        self._has_reserved_keys = bool(keyspace.namespaces)
        self._clock = clock
        self.listeners = EventListeners()

    def connected(self, client: Client) -> None:
        """Publish that a client has connected."""
        self._publish("connect", client, Sight.OWN)

    def placed(self, client: Client) -> None:
        """Report to taps the unit of a client that was not known when it connected. Clients get it with its next event."""
        if self._switch.is_tapped():
            key = b"%bunit/%d" % (EVENT_HEAD, client.connection)
            self._tap_events.event("unit", key, client.credentials.uid, self._facts(client))

    def disconnected(self, client: Client, abandoned: int = 0, end: End = End.HANGUP) -> None:
        """Publish that a client has disconnected; the switch has forgotten it. Only taps learn that *abandoned* packets were pending, and
        with which error the bus disconnected the client: its own one, or that of the switch for *end*."""
        self.listeners.remove(client.connection)
        code, _, reason = client.end_reason.partition(" ")
        if not code and end in END_ERRORS:
            code, reason = END_ERRORS[end][0].name, END_ERRORS[end][1]
        error = {"error": code, "reason": reason} if code else {}
        self._publish("disconnect", client, Sight.OWN, for_taps={"count": abandoned, **error})

    def subscribed(self, client: Client, pattern: bytes) -> None:
        """Publish that an instance of *pattern* was stored, if it is the first."""
        if self._is_for_events(pattern):
            self.listeners.add(client.connection, 1)
        if self._instances(client.connection, pattern) == 1:
            self._publish("subscribe", client, _required_sight(pattern), pattern)

    def resume(self, connection: int, pattern: bytes, count: int) -> None:
        """Count restored instances of *pattern*, without an event."""
        if self._is_for_events(pattern):
            self.listeners.add(connection, count)

    def unsubscribed(self, client: Client, pattern: bytes) -> None:
        """Publish that an instance of *pattern* was removed, if it was the last."""
        if self._is_for_events(pattern):
            self.listeners.add(client.connection, -1)
        if not self._instances(client.connection, pattern):
            self._publish("unsubscribe", client, _required_sight(pattern), pattern)

    def not_restored(self, client: Client, pattern: bytes) -> None:
        """Publish that no instance of *pattern* was restored after a restart, unless it has others in groups, or without one."""
        if not self._instances(client.connection, pattern):
            self._publish("unsubscribe", client, _required_sight(pattern), pattern)

    def _instances(self, connection: int, stored: bytes) -> int:
        """Return the number of instances of a pattern, with those of memberships, or 2 if there are more. Events do not tell them apart."""
        pattern, _ = split_stored(stored)
        found = self._switch.instances(connection, pattern)
        last = pattern
        while found < 2:
            # Those of memberships are the next ones in the order of bytes.
            following = self._switch.patterns_after(connection, last, 1)
            if not following or split_stored(following[0])[0] != pattern:
                break
            last = following[0]
            found += self._switch.instances(connection, last)
        return min(found, 2)

    def _is_for_events(self, pattern: bytes) -> bool:
        """Return whether a pattern matches events."""
        return self._has_reserved_keys and pattern.startswith(EVENT_HEAD)

    def _facts(self, client: Client) -> dict[str, object]:
        """Return the members of an event about a client: its name and its unit only if they are known."""
        facts = connection_members(client.connection, client.credentials, self._prefix, self._clock())
        if client.name:
            facts["name"] = client.name
        if client.placement is not None:
            facts |= {name: value for name, value in client.placement.members().items() if value is not None}
        return facts

    def _publish(
        self, kind: str, client: Client, sight: Sight, pattern: bytes | None = None, for_taps: dict[str, object] | None = None
    ) -> None:
        """Publish an event to clients with at least *sight*, and to taps."""
        key = b"%b%b/%d" % (EVENT_HEAD, kind.encode(), client.connection)
        uid, facts = client.credentials.uid, self._facts(client)
        if pattern is not None:
            pattern, _ = split_stored(pattern)
            key += b"/" + pattern
            facts |= key_members("pattern", pattern)
        if self.listeners:
            payer = self._tap_events.charged(uid)
            self._switch.announce(publish_packet(key, encode_json(facts)), sight=sight, uid=uid, payer=payer, cred=self._own)
        self._tap_events.event(kind, key, uid, facts | (for_taps or {}))


def _required_sight(pattern: bytes) -> Sight:
    """Return the sight that shows another user's subscription. Secret patterns are visible to their user and to owners only."""
    return Sight.ALL if pattern.startswith(SECRET_HEAD) else Sight.PRESENCE


def _line(facts: Mapping[str, object]) -> bytes:
    """Return the packet of one line."""
    return b"CMSG %b\0%b\n" % (controls.TAP, encode_json(facts))


def encode_json(value: Mapping[str, object]) -> bytes:
    """Return one JSON object without blanks."""
    return json.dumps(value, separators=(",", ":")).encode()


def key_text(data: bytes) -> str:
    """Return a key or pattern as text, with escapes for bytes that are not UTF-8."""
    return data.decode("utf-8", "backslashreplace")


def key_members(name: str, data: bytes) -> dict[str, object]:
    """Return a key or pattern as members of a JSON object: as text, and if it is not UTF-8, in base64 too."""
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {name: key_text(data), f"{name}_base64": base64.b64encode(data).decode()}


def stored_members(stored: bytes) -> dict[str, object]:
    """Return a stored pattern as members of a JSON object: ``group`` is only there for a pattern of a member."""
    pattern, group = split_stored(stored)
    return key_members("pattern", pattern) | ({"group": group.decode()} if group else {})


def connection_members(connection: int, credentials: Credentials, prefix: bytes, now: int) -> dict[str, object]:
    """Return a connection and the time *now*, in nanoseconds since 1970, as members of an event. *prefix* is the credential prefix."""
    return {"id": connection, "cred": credentials.key(prefix).decode(), "time": now}
