"""A record in which one key has half of all messages, and one user half of all connections."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sbus_archive.record.layout import HOUR_NS
from sbus_archive.record.schema import Role, Row, RowKind
from tests.support.records import NOON

HOT_KEY = "hot/key"
HOT_USER = 1000

_CONNECTIONS = 120
_MESSAGES = 1_200
_CALLS = 200
_STEP = HOUR_NS // (_CONNECTIONS + _MESSAGES + _CALLS + 1)


def skewed_record(hosts: int, hours: int) -> dict[str, list[Row]]:
    """Return the record of each host."""
    return {f"host{number}": list(_numbered(number, hours)) for number in range(hosts)}


def _numbered(host: int, hours: int) -> Iterator[Row]:
    """Yield the rows of one host, in order of time, which differs: equal segments would count as copies."""
    seq = 0
    for hour in range(hours):
        for place, (kind, values) in enumerate(_events(host, hour)):
            seq += 1
            yield Row(NOON + hour * HOUR_NS + place * _STEP + host, seq, kind.value)._replace(**values)


def _events(host: int, hour: int) -> Iterator[tuple[RowKind, dict[str, Any]]]:
    """Yield kinds and columns of one hour: clients that come, messages and calls, and clients that go."""
    first = 1 + hour * _CONNECTIONS
    clients = [
        {"conn": first + number, "uid": HOT_USER if number % 2 else 2_000 + number, "unit": f"{number % 7}.service"}
        for number in range(_CONNECTIONS)
    ]
    for number, client in enumerate(clients[: _CONNECTIONS // 2]):
        yield RowKind.SUBSCRIBE, {"key": HOT_KEY if number % 4 == 0 else f"key{number}/", **client}
    for number in range(_MESSAGES):
        key, sender = HOT_KEY if number % 2 else f"key{number % 97}/{number}", clients[number % _CONNECTIONS]
        subscribers = _CONNECTIONS // 8 if key == HOT_KEY else int(0 < number % 97 < _CONNECTIONS // 2 and (number % 97) % 4 != 0)
        yield RowKind.MESSAGE, {"key": key, "payload_bytes": number, "recipients": subscribers, "queued": 0, "discarded": 0, **sender}
    for number in range(_CALLS // 2):
        call = {"call_id": (host << 40) + (hour << 32) + number, "call_cmd": "echo", "payload_bytes": 1, "queued": 0, "discarded": 0}
        yield RowKind.MESSAGE, {"key": "rpc/echo", "call_role": Role.REQUEST.value, "recipients": 1, **call, **clients[number % 9]}
        yield RowKind.MESSAGE, {"key": "!/conn/1/r", "call_role": Role.REPLY.value, "recipients": 1, **call, **clients[9]}
    for client in clients[: _CONNECTIONS // 2]:
        yield RowKind.DISCONNECT, {"lost": 0, **client}
