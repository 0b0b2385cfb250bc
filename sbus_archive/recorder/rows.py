"""Converts packets of the tap into rows of the record, with as much of a payload as the rules allow.

Spec: sbus-protocol(7) §6, ``!/tap``; sbus-record(5).
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from sbus.protocol.packets import MAX_PACKET_BYTES
from sbus_archive.record.calls import CallRecognizer
from sbus_archive.record.schema import Row, RowKind, key_text
from sbus_programs.config.recorder import PayloadRule
from sbus_programs.systemd.processes import unit_at

RELAY_ATTEMPT_KEY = b"relay/attempt"
"""The relay publishes each attempt to reach another host to this key. No call has it, because ``relay/<twin>/…`` has a number."""

MAX_TEXT_CHARACTERS = 512
"""Maximum length of a recorded reason, in characters. Reasons of the bus are shorter; those of a relay can quote another host."""

_PEERS = 65_536
"""Size of the cache of peers by connection: more than a bus has descriptors. The oldest are removed first."""

_HEAD = b"CMSG !/tap\0"

_read_json = json.JSONDecoder().raw_decode

_CRED = re.compile(r"!/cred/([0-9]{1,10})/([0-9]{1,10})/([0-9]{1,10})\Z")

_DIGEST = re.compile(r"[0-9a-f]{32}")

_EVENTS = {
    "connect": RowKind.CONNECT,
    "disconnect": RowKind.DISCONNECT,
    "subscribe": RowKind.SUBSCRIBE,
    "unsubscribe": RowKind.UNSUBSCRIBE,
}

_MESSAGE = RowKind.MESSAGE.value
_NO_CALL = (None, None, None, None, None)
_NOT_OF_MESSAGES = (None, None, None, None, None, None, None)
"""The columns from ``code`` to ``packet``."""

_INT32 = 2**31 - 1
_INT64 = 2**63 - 1

TapEvent = dict[str, object]

Keep = int | Literal["whole", "none"]

_RESERVED = b"!/"

_REMEMBERED_KEYS = 4_096
"""Size of the cache of rules by key. Most traffic is on few keys, but clients can invent any number of keys."""


@dataclass(frozen=True, slots=True)
class PeerInfo:
    """Credentials and unit of the process of a connection."""

    uid: int | None = None
    gid: int | None = None
    pid: int | None = None
    unit: str | None = None


_UNKNOWN_PEER = PeerInfo()


class UnreadableError(ValueError):
    """A packet of the tap that this version cannot read."""


class RowBuilder:
    """Converts packets of the tap into rows. ``unreadable`` counts the packets that it could not read."""

    def __init__(
        self,
        payloads: PayloadPolicy,
        calls: CallRecognizer,
        since: Callable[[int, int], int | None] = lambda _conn, ts: ts,
        unit_at: Callable[[int | None, float | None], str | None] = unit_at,
        reported: Callable[[int], str | None] = lambda _conn: None,
    ) -> None:
        """*since* returns when a connection was made, given its number and the time it was first seen, both in nanoseconds since 1970,
        or None if that is unknown. *reported* returns the unit that the bus has listed for a connection. Without one, *unit_at* returns the
        unit of a process at a time in seconds. Both are called once per connection."""
        self.unreadable = 0
        self._payloads = payloads
        self._calls = calls
        self._since = since
        self._unit_at = unit_at
        self._reported = reported
        self._peers: dict[int, PeerInfo] = {}

    def row(self, packet: bytes) -> Row | None:
        """Return the row for *packet*, with ``seq`` 0. If it is not readable, count it and return None."""
        end = packet.find(b"\n")
        try:
            if end < 0 or not packet.startswith(_HEAD):
                raise UnreadableError
            # Decoded here, because json would try five encodings first. The bus writes nothing around the object.
            text = packet[len(_HEAD) : end].decode()
            fact, length = _read_json(text)
            if length != len(text) or not isinstance(fact, dict):
                raise UnreadableError
            return self._row(fact, packet[end + 1 :])
        except (ValueError, RecursionError):
            # A newer bus can send events that this version does not know.
            self.unreadable += 1
            return None

    def subscription_row(self, fact: TapEvent, ts: int) -> Row | None:
        """Return the row for an active subscription at the time *ts*. If *fact* is not readable, count it and return None."""
        conn = _integer(fact.get("id"), _INT64)
        try:
            key = _key_of(fact, "pattern")
        except ValueError:
            key = None
        if conn is None or key is None:
            self.unreadable += 1
            return None
        return _of_peer(Row(ts, 0, RowKind.SNAPSHOT, key=key), conn, self._peer(conn, fact.get("cred"), ts))

    def forget_peers(self) -> None:
        """Forget the peers of all connections: another bus can reuse the numbers."""
        self._peers.clear()

    def _row(self, fact: TapEvent, body: bytes) -> Row | None:
        """Return the row for one event, or None if the record has none for it. Raises ValueError."""
        kind = fact.get("kind")
        ts, conn = _integer(fact.get("time"), _INT64), _integer(fact.get("id"), _INT64)
        if ts is None:
            raise UnreadableError
        peer = self._peer(conn, fact.get("cred"), ts, is_new=kind == "connect", unit=unit_in(fact) if "unit" in fact else None)
        if kind == "message":
            return self._message(fact, ts, conn, peer, body)
        if kind == "unit":
            # The bus has read the unit after the connect. Later rows of the connection have it.
            return None
        count = _integer(fact.get("count"), _INT64)
        if isinstance(kind, str) and (event := _EVENTS.get(kind)) is not None:
            if event is RowKind.DISCONNECT and conn is not None:
                self._peers.pop(conn, None)
            code, reason = (_text(fact.get(name)) for name in ("error", "reason"))
            return _of_peer(Row(ts, 0, event, key=_key_of(fact, "pattern"), lost=count, code=code, reason=reason), conn, peer)
        if kind == "loss":
            return _of_peer(Row(ts, 0, RowKind.LOSS, lost=count), conn, peer)
        if kind == "denial":
            denial = Row(ts, 0, RowKind.DENIAL, key=_key_of(fact, "key"), lost=1 if count is None else count)
            code, reason, packet = (_text(fact.get(name)) for name in ("error", "reason", "packet"))
            return _of_peer(denial._replace(code=code, reason=reason, packet=packet), conn, peer)
        raise UnreadableError

    def _message(self, fact: TapEvent, ts: int, conn: int | None, peer: PeerInfo, packet: bytes) -> Row:
        """Return the row for a message, or for the relay attempt that it reports."""
        nul = packet.find(b"\0")
        if nul < 0 or not packet.startswith(b"MSG "):
            raise UnreadableError
        key, payload = packet[4:nul], packet[nul + 1 :]
        if key == RELAY_ATTEMPT_KEY and (attempt := _relay_attempt(payload, self._calls)) is not None:
            return _of_peer(attempt._replace(ts=ts), conn, peer)
        call_id, role, command, expires, failed = self._calls.part(key, payload, conn) or _NO_CALL
        # All at once: a row is a tuple, which each change would copy.
        return Row(
            ts,
            0,
            _MESSAGE,
            key_text(key),
            conn,
            peer.uid,
            peer.gid,
            peer.pid,
            peer.unit,
            _integer(fact.get("recipients"), _INT32),
            _integer(fact.get("queued"), _INT32),
            _integer(fact.get("discarded"), _INT32),
            self._payloads.kept(key, payload),
            len(payload),
            call_id,
            role,
            command,
            expires,
            failed,
            *_NOT_OF_MESSAGES,
            _numbers(fact["missed"]) if "missed" in fact else None,
            _text(fact["vouched"]) if "vouched" in fact else None,
            _integer(fact.get("to"), _INT64),
        )

    def _peer(self, conn: int | None, cred: object, ts: int, *, is_new: bool = False, unit: str | None = None) -> PeerInfo:
        """Return the peer of connection *conn*. *cred* are its credentials in an event at *ts*; with *is_new* the connection was made
        then. *unit* is its unit in that event, if the bus reports it."""
        if conn is not None and (known := self._peers.get(conn)) is not None:
            if unit is not None and unit != known.unit:
                known = self._peers[conn] = replace(known, unit=unit)
            return known
        match = _CRED.search(cred) if isinstance(cred, str) else None
        if match is None:
            return _UNKNOWN_PEER
        gid, uid, pid = (int(digits) for digits in match.groups())
        since = ts if is_new or not conn else self._since(conn, ts)
        unit = unit or (self._reported(conn) if conn else None)
        if unit is None and conn and since is not None:
            # A bus that does not report units, or not yet.
            unit = self._unit_at(pid, since / 1e9)
        peer = PeerInfo(uid, gid, pid, unit)
        if conn is not None:
            if len(self._peers) >= _PEERS:
                del self._peers[next(iter(self._peers))]
            self._peers[conn] = peer
        return peer


def unit_in(members: TapEvent) -> str | None:
    """Return the unit in *members* of the bus about a connection, with the unit of a user's own service manager after a ``/``."""
    unit, user_unit = _text(members.get("unit")), _text(members.get("user_unit"))
    return f"{unit}/{user_unit}" if unit and user_unit else unit or None


def _of_peer(row: Row, conn: int | None, peer: PeerInfo) -> Row:
    """Return *row* with the connection and its peer."""
    return row._replace(conn=conn, uid=peer.uid, gid=peer.gid, pid=peer.pid, unit=peer.unit)


def _key_of(fact: TapEvent, name: str) -> str | None:
    """Return the key or pattern under *name* as text of the record, None if there is none. Raises ValueError if it is malformed."""
    encoded = fact.get(f"{name}_base64")
    if isinstance(encoded, str):
        return key_text(base64.b64decode(encoded, validate=True))
    text = fact.get(name)
    return key_text(text.encode("utf-8")) if isinstance(text, str) else None


def _relay_attempt(payload: bytes, calls: CallRecognizer) -> Row | None:
    """Return the row for a relay attempt, without time and peer; None if the payload is invalid."""
    try:
        value = json.loads(payload)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or (twin := _integer(value.get("twin"), _INT64)) is None:
        return None
    digest = value.get("call")
    return Row(
        0,
        0,
        RowKind.RELAY,
        key=key_text(RELAY_ATTEMPT_KEY),
        call_id=calls.number(digest) if isinstance(digest, str) and _DIGEST.fullmatch(digest) else None,
        call_cmd=_text(value.get("cmd")),
        code=_text(value.get("code")),
        reason=_text(value.get("reason")),
        duration=_integer(value.get("duration"), _INT64),
        twin=twin,
        attempt=_integer(value.get("attempt"), _INT32),
    )


def _text(value: object) -> str | None:
    """Return *value* as valid UTF-8 of at most MAX_TEXT_CHARACTERS; None if it is not text."""
    return value[:MAX_TEXT_CHARACTERS].encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else None


def _numbers(value: object) -> list[int] | None:
    """Return a list of connections, or None if there is none. Raises UnreadableError if it is invalid."""
    if value is None:
        return None
    if not isinstance(value, list) or any(_integer(each, _INT64) is None for each in value):
        raise UnreadableError
    return value


def _integer(value: object, most: int) -> int | None:
    """Return an integer from 0 to *most*, or None."""
    return value if type(value) is int and 0 <= value <= most else None


class PayloadPolicy:
    """The payload rules of recorder.toml.

    Payloads of reserved keys (private keys and keys of connections) are omitted, unless a rule whose prefix begins with ``!/`` includes
    them:
    a rule for all keys must not record private messages by accident.
    """

    def __init__(self, keep: Keep = "whole", rules: Sequence[PayloadRule] = ()) -> None:
        """Use *keep* for keys that no rule matches."""
        base = [(b"", _limit(keep)), (_RESERVED, None)]
        # A prefix shorter than "!/" never matches a reserved key: the rule for reserved keys is longer, so it has precedence.
        ordered = [*base, *((rule.keys.encode("utf-8", "surrogatepass"), _limit(rule.keep)) for rule in rules)]
        places = sorted(range(len(ordered)), key=lambda place: (len(ordered[place][0]), place), reverse=True)
        self._rules = [ordered[place] for place in places]
        self._known: dict[bytes, int | None] = {}

    def kept(self, key: bytes, payload: bytes) -> bytes | None:
        """Return the part of *payload* to record for *key*: all of it, its beginning, or None."""
        try:
            limit = self._known[key]
        except KeyError:
            limit = self._look_up(key)
        if limit is None:
            return None
        return payload if len(payload) <= limit else payload[:limit]

    def _look_up(self, key: bytes) -> int | None:
        """Return the maximum number of bytes for *key*, None if the payload is omitted, and cache it."""
        limit = next(limit for prefix, limit in self._rules if key.startswith(prefix))
        if len(self._known) >= _REMEMBERED_KEYS:
            self._known.clear()
        self._known[key] = limit
        return limit


def _limit(keep: Keep) -> int | None:
    """Return the maximum number of bytes, None if the payload is omitted."""
    return MAX_PACKET_BYTES if keep == "whole" else None if keep == "none" else keep
