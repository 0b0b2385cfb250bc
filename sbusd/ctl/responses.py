"""What the bus answers to control messages, as typed values. Spec: sbus-protocol(7) §6.

A newer bus may say more, and an older one less: unknown fields are ignored, and a missing one is None or empty. An answer that is
not JSON at all, or has something else where an object must be, is a :class:`BadResponseError`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from sbusd.protocol import controls
from sbusd.protocol.errors import SbusError

JsonObject = Mapping[str, object]


class ControlClient(Protocol):
    """The part of a bus that answers control messages."""

    def control(self, key: bytes, payload: bytes | None = None) -> bytes:
        """Return the payload of the answer to *key*."""


_UNCOUNTED = ("since", "blocked_by", "soft", "hard", "order")
"""Members of a connection that are not whole numbers."""

_LARGEST = 1e300
"""Bound of the numbers taken for numbers; NaN and infinity are not below it."""


class BadResponseError(SbusError):
    """The bus answered a control message with something that is not what the protocol says."""

    def __init__(self, key: bytes, what: str) -> None:
        super().__init__(
            f"invalid response to {key.decode('ascii', 'backslashreplace')}: {what}; check the version of the bus: sbusctl doctor"
        )


@dataclass(frozen=True, slots=True)
class ConnectionInfo:
    """One connection, as ``!/bus/connections`` tells it."""

    id: int | None
    pid: int | None
    uid: int | None
    since: float | None
    inode: int | None
    """Of the bus's own end, by which the kernel's queues are found."""
    subscriptions: int | None
    received_packets: int | None
    received_bytes: int | None
    delivered_packets: int | None
    delivered_bytes: int | None
    queued_packets: int | None
    queued_bytes: int | None
    lost_packets: int | None
    refused_packets: int | None
    blocked_ms: int | None = None
    """For how long it has waited for recipients."""
    blocked_others_ms: int | None = None
    """For how long publishers have waited for it, added up."""
    blocked_by: str | None = None
    """The recipients that it waits for now, in words; None if there are none."""
    soft: str | None = None
    hard: str | None = None
    order: str | None = None
    replaced_packets: int | None = None


@dataclass(frozen=True, slots=True)
class TraceEntry:
    """One connection in the answer to ``!/bus/trace``: ``patterns`` where it gets the message, ``reason`` where it does not."""

    id: int | None
    pid: int | None
    uid: int | None
    gets_it: bool
    patterns: tuple[str, ...]
    reason: str
    when_full: str | None = None
    """What becomes of a message that its queue does not take: the hard mode, as far as it holds for the asker."""
    blocks: str = ""
    """Who waits for it now, in words."""


@dataclass(frozen=True, slots=True)
class Listing:
    """All pages of a listing: the first page's own fields, the items under each name, and how many the caller may not see."""

    head: JsonObject
    items: Mapping[str, list[JsonObject]]
    hidden: int

    def as_json(self) -> JsonObject:
        """Return the listing as one page would have told it."""
        rest = {name: value for name, value in self.head.items() if name not in self.items and name not in ("next", "hidden")}
        return {**rest, **self.items, "hidden": self.hidden}


def ask(bus: ControlClient, key: bytes, payload: bytes | None = None) -> JsonObject:
    """Return the JSON object that the bus answers *key* with.

    Raises:
        BadResponseError: it answers with something else.
        SbusError: it refuses, or is gone.
    """
    answer = bus.control(key, payload)
    try:
        value = json.loads(answer)
    except (ValueError, RecursionError):
        raise BadResponseError(key, "not JSON") from None
    if not isinstance(value, dict):
        raise BadResponseError(key, "not a JSON object")
    return value


def ask_pages(bus: ControlClient, key: bytes, payload: bytes | None, *names: str) -> Listing:
    """Return all pages of the listing *key*, whose items stand under *names*.

    *payload* is what stands before the id to go on from, if anything.

    ``hidden`` is the largest that a page says, since each counts the same connections. Raises what :func:`ask` raises.
    """
    head: JsonObject = {}
    items: dict[str, list[JsonObject]] = {name: [] for name in names}
    hidden = 0
    for page in _pages(bus, key, payload):
        head = head or page
        for name in names:
            items[name].extend(objects(page, name))
        hidden = max(hidden, integer(page, "hidden") or 0)
    return Listing(head, items, hidden)


def _pages(bus: ControlClient, key: bytes, payload: bytes | None) -> Iterator[JsonObject]:
    """Yield each page. Raises BadResponseError if a page does not lead further than the one before it, which would never end."""
    after: int | None = None
    prefix = b"" if payload is None else payload + b"\0"
    while True:
        question = payload if after is None else prefix + b"%d" % after
        page = ask(bus, key, question)
        yield page
        following = integer(page, "next")
        if following is None:
            return
        if after is not None and following <= after:
            raise BadResponseError(key, "the pages repeat")
        after = following


def connections(bus: ControlClient) -> Listing:
    """Return every connection that the caller may see. Raises what :func:`ask` raises."""
    return ask_pages(bus, controls.CONNECTIONS, None, "connections")


def trace(bus: ControlClient, key: bytes) -> Listing:
    """Return who would get a message with *key*, and who not and why. Raises what :func:`ask` raises."""
    return ask_pages(bus, controls.TRACE, key, "recipients", "others")


def users(bus: ControlClient) -> Listing:
    """Return what each user that the caller may see makes the bus hold. Raises what :func:`ask` raises."""
    return ask_pages(bus, controls.USERS, None, "users")


def connection_info(value: JsonObject) -> ConnectionInfo:
    """Return one item of ``!/bus/connections``."""
    counted = {name: integer(value, name) for name in ConnectionInfo.__slots__ if name not in _UNCOUNTED}
    soft, hard, order = (text(value, name) for name in ("soft", "hard", "order"))
    blocked_by = waits_text(objects(value, "blocked_by"), integer(value, "blocked_by_count"))
    return ConnectionInfo(since=number(value, "since"), blocked_by=blocked_by or None, soft=soft, hard=hard, order=order, **counted)


def waits_text(named: list[JsonObject], count: int | None) -> str:
    """Return the other sides of *named* waits, of *count* in all, in words: their numbers, and how many are not named."""
    numbers = [str(number) for each in named if (number := integer(each, "id")) is not None]
    unnamed = max(count or 0, len(named)) - len(numbers)
    return " ".join(numbers + ([f"+{unnamed}"] if unnamed else []))


def trace_entry(value: JsonObject, *, gets_it: bool) -> TraceEntry:
    """Return one item of ``!/bus/trace``."""
    patterns = value.get("patterns")
    return TraceEntry(
        integer(value, "id"),
        integer(value, "pid"),
        integer(value, "uid"),
        gets_it,
        tuple(pattern for pattern in patterns if isinstance(pattern, str)) if isinstance(patterns, list) else (),
        text(value, "reason") or "",
        text(value, "when_full"),
        waits_text(objects(value, "blocks"), integer(value, "blocks_count")),
    )


def integer(value: JsonObject, name: str) -> int | None:
    """Return the whole number under *name*, or None if there is none; what no counter of 64 bits can hold is none."""
    found = value.get(name)
    if isinstance(found, bool) or not isinstance(found, int) or not -(1 << 63) <= found < 1 << 64:
        return None
    return found


def number(value: JsonObject, name: str) -> float | None:
    """Return the number under *name*, or None if there is none; what JSON allows and a float cannot hold is none."""
    found = value.get(name)
    if isinstance(found, bool) or not isinstance(found, int | float) or not -_LARGEST < found < _LARGEST:
        return None
    return float(found)


def text(value: JsonObject, name: str) -> str | None:
    """Return the text under *name*, or None if there is none."""
    found = value.get(name)
    return found if isinstance(found, str) else None


def mapping(value: JsonObject, name: str) -> JsonObject:
    """Return the object under *name*, or an empty one."""
    found = value.get(name)
    return found if isinstance(found, dict) else {}


def objects(value: JsonObject, name: str) -> list[JsonObject]:
    """Return the objects in the list under *name*."""
    found = value.get(name)
    return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []
