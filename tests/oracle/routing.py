"""Routing in the model: which connections a key matches, which messages are refused, and what a tap receives. Every pattern is tried."""

from __future__ import annotations

from collections.abc import Callable

from sbus.protocol.keys import SECRET_HEAD, KeySpace
from sbus.protocol.memberships import split_stored
from sbus_programs.config.settings import LimitSettings
from sbusd.dataplane.contract import MISSED, REFUSED_KEY_BYTES, PublishRule, Refusal
from tests.oracle.connection import Connection
from tests.oracle.entries import Packet


class Router:
    """Matches keys with patterns. *connections* are those of the model, by number."""

    def __init__(self, keyspace: KeySpace, limits: LimitSettings, connections: dict[int, Connection]) -> None:
        self._keyspace = keyspace
        self._unguarded = KeySpace(keyspace.separator, is_guarded=False)
        self._limits = limits
        self._connections = connections
        self.rules: tuple[PublishRule, ...] = ()

    def matching(self, key: bytes) -> list[Connection]:
        """Return the connections with a pattern that matches the key."""
        return [each for each in self._connections.values() if any(self._keyspace.matches(pattern, key) for pattern in each.patterns)]

    def taps(self, key: bytes) -> list[Connection]:
        """Return the connections with a tap that matches the key, reserved keys included, the oldest first."""
        live = [each for each in self._connections.values() if not each.is_ending and each.tap is not None]
        return sorted((each for each in live if self._unguarded.matches(each.tap or b"", key)), key=lambda each: each.number)

    def is_secret(self, key: bytes) -> bool:
        """Return whether it is a secret which connections a message with this key reaches."""
        return key.startswith(SECRET_HEAD) and self._keyspace.namespace(key) is not None

    def refusal(self, sender: Connection, key: bytes) -> Refusal | None:
        """Return why a message is refused, or None."""
        if len(key) > self._limits.key_bytes:
            return Refusal.KEY_TOO_LONG
        if not self._keyspace.is_publishable(key):
            return Refusal.RESERVED
        return Refusal.POLICY if self.denying_rule(sender, key) is not None else None

    def error(self, sender: Connection, words: bytes, refusal: Refusal, data: bytes) -> bytes:
        """Return the error for the packet *data*, with its key if it is a message: *words*, or those of the rule that denies it."""
        if not data.startswith(b"MSG "):
            return words
        key = data[4:].partition(b"\0")[0]
        rule = self.denying_rule(sender, key) if refusal is Refusal.POLICY else None
        return ((rule.refusal if rule else b"") or words) + b"\0" + key[:REFUSED_KEY_BYTES]

    def denying_rule(self, sender: Connection, key: bytes) -> PublishRule | None:
        """Return the publish rule that denies the key to the sender, or None."""
        inner = self._keyspace.inner_key(key)
        whole = self._denying_rule(sender, key)
        return whole if whole is not None or inner is None else self._denying_rule(sender, inner)

    def _denying_rule(self, sender: Connection, key: bytes) -> PublishRule | None:
        """Return the first publish rule about the sender and the bytes of the key, if it denies."""
        for number, rule in enumerate(self.rules):
            if sender.rules >> number & 1 and key.startswith(rule.prefix):
                return None if rule.is_allowed else rule
        return None


def can_match(pattern: bytes, separator: bytes = b"/") -> bool:
    """Return whether a pattern can match any key: nothing but stars follows a star in a segment."""
    return not any(segment.partition(b"*")[2].strip(b"*") for segment in pattern.split(separator))


def patterns_of(connection: Connection) -> set[bytes]:
    """Return the patterns of a connection, with those of its memberships."""
    return {split_stored(stored)[0] for stored in connection.patterns}


def sender_prefix(sender: Connection, origin: bytes = b"") -> Packet:
    """Return what goes in front of a message to those who want verified senders."""
    return Packet(b"CMSG !/from/%d/%b%b\0" % (sender.number, sender.cred, b"/" + origin if origin else b""))


def sender_prefixes(sender: Connection, *, is_vouching: bool) -> Callable[[Packet], Packet]:
    """Return what goes in front of each message of a batch: the same for all, unless the sender vouches for any of them."""
    common = sender_prefix(sender)
    own: dict[Packet, Packet] = {}
    return lambda packet: own.setdefault(packet, sender_prefix(sender, packet.origin)) if is_vouching else common


def tap_prefix(sender: Connection, packet: Packet) -> Packet:
    """Return what goes in front of a message to a tap: who sent it and what became of it. The time is not the model's, but as long."""
    line = b'CMSG !/tap\0{"kind":"message","time":1000000000000000000,"id":%d,"cred":"%b"%b,"recipients":%d,"queued":%d,"discarded":%d%b}\n'
    named = b",".join(b"%d" % number for number in sorted(packet.missed)) if len(packet.missed) <= MISSED else b""
    missed = b',"missed":[%b]' % named if packet.missed else b""
    recipients = packet.handed + packet.queued
    marks = b',"vouched":"%b"' % packet.origin if packet.origin else b""
    marks += b',"to":%d' % packet.to if packet.to else b""
    return Packet(line % (sender.number, sender.cred, marks, recipients, packet.queued, packet.discarded, missed))
