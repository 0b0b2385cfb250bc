"""Responses of the bus to control messages, as typed values. Spec: sbus-protocol(7) §6.

Unknown fields of a newer bus are ignored, and missing fields of an older one are None or empty. A response that is not JSON, or does not
have an object where one is required, is a :class:`BadResponseError`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from sbus.bus_documents import BadResponseError, JsonObject, parse_document
from sbus.protocol import controls


class ControlClient(Protocol):
    """The part of a bus that responds to control messages."""

    def control(self, key: bytes, payload: bytes | None = None) -> bytes:
        """Return the payload of the response to *key*."""


_UNCOUNTED = ("since", "blocked_by", "soft", "hard", "order", "name", "unit", "slice", "user_unit")
"""Members of a connection that are not integers."""

_LARGEST = 1e300
"""Limit of valid numbers; NaN and infinity exceed it."""


@dataclass(frozen=True, slots=True)
class ConnectionInfo:
    """One connection in ``!/bus/connections``."""

    id: int | None
    pid: int | None
    uid: int | None
    since: float | None
    inode: int | None
    """Inode of the socket of the bus, which identifies the queues of the kernel."""
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
    """Time for which it waited for recipients."""
    blocked_others_ms: int | None = None
    """Total time for which publishers waited for it."""
    blocked_by: str | None = None
    """The recipients that it waits for at present, as text; None if there are none."""
    soft: str | None = None
    hard: str | None = None
    order: str | None = None
    name: str | None = None
    """The label that it has given to itself."""
    replaced_packets: int | None = None
    unit: str | None = None
    """The unit that its process was in when it connected; None if the bus does not know or report it."""
    slice: str | None = None
    user_unit: str | None = None
    """The unit of the user's own service manager, within ``unit``."""

    @property
    def unit_path(self) -> str | None:
        """The unit, and after a ``/`` the unit of the user's own service manager."""
        return f"{self.unit}/{self.user_unit}" if self.unit and self.user_unit else self.unit


@dataclass(frozen=True, slots=True)
class TraceEntry:
    """One connection in ``!/bus/trace``: ``patterns`` if it receives the message, ``reason`` if not."""

    id: int | None
    pid: int | None
    uid: int | None
    gets_it: bool
    patterns: tuple[str, ...]
    reason: str
    when_full: str | None = None
    """What happens to a message if its queue is full: the hard mode, as far as it applies to the caller."""
    blocks: str = ""
    """The publishers that wait for it at present, as text."""


@dataclass(frozen=True, slots=True)
class Listing:
    """All pages of a listing: other fields of the first page, items by name, and the number of items that the caller may not see."""

    head: JsonObject
    items: Mapping[str, list[JsonObject]]
    hidden: int

    def as_json(self) -> JsonObject:
        """Return the listing as one page."""
        rest = {name: value for name, value in self.head.items() if name not in self.items and name not in ("next", "hidden")}
        return {**rest, **self.items, "hidden": self.hidden}


def ask(bus: ControlClient, key: bytes, payload: bytes | None = None) -> JsonObject:
    """Return the JSON object in the response to *key*.

    Raises:
        BadResponseError: the response is something else.
        SbusError: the bus refused the request, or is gone.
    """
    return parse_document(key, bus.control(key, payload))


def ask_pages(bus: ControlClient, key: bytes, payload: bytes | None, *names: str) -> Listing:
    """Return all pages of the listing *key*, with the items under *names*.

    *payload* precedes the id at which a page begins. ``hidden`` is the maximum of all pages, because each counts the same connections.

    Raises what :func:`ask` raises.
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
    """Yield each page. Raises BadResponseError if a page does not lead to a later one, which would be endless."""
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
    """Return the connections that would receive a message with *key*, and others with the reason. Raises what :func:`ask` raises."""
    return ask_pages(bus, controls.TRACE, key, "recipients", "others")


def users(bus: ControlClient) -> Listing:
    """Return the usage of each user that the caller may see. Raises what :func:`ask` raises."""
    return ask_pages(bus, controls.USERS, None, "users")


def connection_info(value: JsonObject) -> ConnectionInfo:
    """Return one item of ``!/bus/connections``."""
    counted = {name: integer(value, name) for name in ConnectionInfo.__slots__ if name not in _UNCOUNTED}
    soft, hard, order = (text(value, name) for name in ("soft", "hard", "order"))
    blocked_by = waits_text(objects(value, "blocked_by"), integer(value, "blocked_by_count"))
    waits = blocked_by or None
    name, unit, slice_, user_unit = (text(value, each) or None for each in ("name", "unit", "slice", "user_unit"))
    return ConnectionInfo(
        since=number(value, "since"),
        blocked_by=waits,
        soft=soft,
        hard=hard,
        order=order,
        name=name,
        unit=unit,
        slice=slice_,
        user_unit=user_unit,
        **counted,
    )


def waits_text(named: list[JsonObject], count: int | None) -> str:
    """Return the other sides of *named* waits, of *count* in total, as text: their numbers, and how many are not named."""
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
    """Return the integer under *name*, None if there is none or it exceeds 64 bits."""
    found = value.get(name)
    if isinstance(found, bool) or not isinstance(found, int) or not -(1 << 63) <= found < 1 << 64:
        return None
    return found


def number(value: JsonObject, name: str) -> float | None:
    """Return the number under *name*, None if there is none or a float cannot hold it."""
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
