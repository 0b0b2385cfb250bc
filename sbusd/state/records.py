"""What a bus knows, as records in the log that outlives it. Spec: sbusd(8), RESTARTS.

A log begins with an image: one record of the bus, those of each connection, and, where the bus ended in order, those of what waits and
of its users. After that come the changes, one by one. Each record begins with a byte that says its kind. An image that was written
between turns of the bus has changes in it, of connections and patterns that it already had.

Nothing of it is a client's but patterns and packets, which stand as they are at the end of their records: no client can write a
record. Who a client is, the kernel is asked again; what is written of that only names one that did not come back.
"""

from __future__ import annotations

import functools
import json
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Annotated, ClassVar, TypeVar, cast

from sbusd.dataplane.bounds import Latin1, Within
from sbusd.dataplane.connection_state import ConnectionProgress, ConnectionSettings, Count, Queue, SwitchTotals, UserId
from sbusd.protocol.printable import printable
from sbusd.state.log_file import StateError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from pydantic import TypeAdapter

_FORBID_UNKNOWN: dict[str, object] = {"extra": "forbid"}

BUS, CONNECTION, STORED, PACKET, QUEUE, ACCOUNT = b"B", b"C", b"I", b"P", b"Q", b"A"
"""Kinds of records in an image; STORED is of one pattern, with how many instances are stored."""

OPENED, CLOSED, SUBSCRIBED, UNSUBSCRIBED, CHANGED, TAPPED, UNTAPPED = b"C", b"G", b"S", b"U", b"M", b"W", b"V"
"""Kinds of changes: a connection came or went, a pattern was added or removed, its settings changed, it has a tap or none any more."""

RESERVED, TRIED = b"N", b"T"
"""Numbers of connections were set aside; a process has begun to restore what is here."""

_OF_A_NUMBER = (STORED, CLOSED, SUBSCRIBED, UNSUBSCRIBED, CHANGED, TAPPED, UNTAPPED, RESERVED, QUEUE)

_NUMBER = struct.Struct("<Q")
_COUNT = struct.Struct("<I")
_INSTANCES = struct.Struct("<QI")

STORED_BYTES = 4 + 1 + _INSTANCES.size
"""What the record of a pattern takes in a log in addition to the pattern itself."""

Tokens = Annotated[float, Within(0, 1 << 63)]


@dataclass(slots=True)
class BucketState:
    """What a token bucket held at a time of the monotonic clock, which goes on over restarts."""

    __pydantic_config__: ClassVar[dict[str, object]] = _FORBID_UNKNOWN

    tokens: Tokens
    since: Tokens


@dataclass(frozen=True, slots=True)
class HoldingState:
    """What a connection has done that its user's quotas know of."""

    __pydantic_config__: ClassVar[dict[str, object]] = _FORBID_UNKNOWN

    control_packets: Count = 0
    patience: BucketState | None = None


_NO_PROGRESS, _NO_HOLDING = ConnectionProgress(), HoldingState()


@dataclass(slots=True)
class AccountState:
    """What a user has used of its rates, and what was refused to it."""

    __pydantic_config__: ClassVar[dict[str, object]] = _FORBID_UNKNOWN

    uid: UserId
    control: BucketState
    attempts: BucketState
    tells: BucketState
    refused: dict[str, Count] = field(default_factory=dict)
    untold: Count = 0


@dataclass(slots=True)
class ConnectionState:
    """One connection. ``inode`` is its socket's, by which it is found again; ``since`` is Unix time in seconds."""

    __pydantic_config__: ClassVar[dict[str, object]] = _FORBID_UNKNOWN

    number: Count
    inode: Count
    since: float
    settings: ConnectionSettings = field(default_factory=ConnectionSettings)
    patterns: dict[Annotated[bytes, Latin1()], Annotated[int, Within(1, 1 << 32)]] = field(default_factory=dict)
    """Each with how many instances are stored. In JSON only as format 1 has them, like ``tap``."""
    tap: Annotated[bytes, Latin1()] | None = None
    """The pattern of its tap, if it has one."""
    progress: ConnectionProgress = _NO_PROGRESS
    holding: HoldingState = _NO_HOLDING
    who: tuple[Count, Count, Count] | None = None
    """Its process, user and group, to tell of its end if it does not come back."""


@dataclass(slots=True)
class BusState:
    """The bus itself."""

    __pydantic_config__: ClassVar[dict[str, object]] = _FORBID_UNKNOWN

    next_connection: Count
    """All numbers of connections so far are below."""
    is_orderly: bool = False
    """The bus has ended in order: this is all it knew, down to each packet. Otherwise it was killed."""
    tally: SwitchTotals = field(default_factory=SwitchTotals)
    counts: dict[str, Count] = field(default_factory=dict)
    """The broker's counters."""
    records: dict[str, Count] = field(default_factory=dict)
    """The journal's."""
    forgotten_early: Count = 0
    started: Tokens | None = None
    """When the bus was started first, in seconds of the monotonic clock."""


@dataclass(slots=True)
class State:
    """All of it."""

    bus: BusState
    connections: dict[int, ConnectionState] = field(default_factory=dict)
    packets: list[bytes] = field(default_factory=list)
    queues: dict[int, Queue] = field(default_factory=dict)
    accounts: list[AccountState] = field(default_factory=list)
    tries: int = 0
    """How often a process has begun to restore this."""


_Kind = TypeVar("_Kind")


def image(state: State) -> Iterator[bytes]:
    """Yield the records of an image of *state*."""
    yield begun(state.bus)
    for connection in state.connections.values():
        yield opened(connection)
        for pattern, count in connection.patterns.items():
            yield stored(connection.number, pattern, count)
        if connection.tap is not None:
            yield tapped(connection.number, connection.tap)
    for packet in state.packets:
        yield PACKET + packet
    for number, queue in state.queues.items():
        yield QUEUE + _NUMBER.pack(number) + _dump(queue)
    for account in state.accounts:
        yield ACCOUNT + _dump(account)


def begun(bus: BusState) -> bytes:
    """Return the record that an image begins with."""
    return BUS + _dump(bus)


def opened(connection: ConnectionState) -> bytes:
    """Return the record of a connection that is there from now on, without its patterns and its tap."""
    facts: dict[str, object] = {
        "number": connection.number,
        "inode": connection.inode,
        "since": connection.since,
        "settings": connection.settings,
        "who": connection.who,
    }
    # While the bus works neither is written down, and to write what is not known takes most of the time.
    if connection.progress is not _NO_PROGRESS and connection.progress != _NO_PROGRESS:
        facts["progress"] = connection.progress
    if connection.holding is not _NO_HOLDING and connection.holding != _NO_HOLDING:
        facts["holding"] = connection.holding
    return OPENED + _dump(facts)


def stored(number: int, pattern: bytes, count: int) -> bytes:
    """Return the record of all *count* instances of a pattern that a connection has stored."""
    return STORED + _INSTANCES.pack(number, count) + pattern


def closed(number: int) -> bytes:
    """Return the record of a connection's end."""
    return CLOSED + _NUMBER.pack(number)


def subscribed(number: int, pattern: bytes) -> bytes:
    """Return the record of one more stored instance of a pattern."""
    return SUBSCRIBED + _NUMBER.pack(number) + pattern


def unsubscribed(number: int, pattern: bytes) -> bytes:
    """Return the record of one instance less."""
    return UNSUBSCRIBED + _NUMBER.pack(number) + pattern


def changed(number: int, settings: ConnectionSettings) -> bytes:
    """Return the record of what a connection has asked for itself."""
    return CHANGED + _NUMBER.pack(number) + _dump(settings)


def tapped(number: int, pattern: bytes | None) -> bytes:
    """Return the record of a tap, or with None of its end."""
    return UNTAPPED + _NUMBER.pack(number) if pattern is None else TAPPED + _NUMBER.pack(number) + pattern


def reserved(number: int) -> bytes:
    """Return the record that numbers of connections below *number* may be in use."""
    return RESERVED + _NUMBER.pack(number)


def tried() -> bytes:
    """Return the record of a try to restore."""
    return TRIED


def replay(records: Iterable[bytes]) -> State:
    """Return the state that *records* tell of. Raises StateError where they make no sense; it is never guessed what was meant."""
    each = iter(records)
    first = next(each, b"")
    if first[:1] != BUS:
        raise StateError("it has no beginning")
    state = State(_load(BusState, first[1:]))
    for record in each:
        _apply(state, record[:1], record[1:])
    if len({connection.inode for connection in state.connections.values()}) < len(state.connections):
        raise StateError("it has two connections with the same socket")
    for number, queue in state.queues.items():
        places = [max(place, head or 0) for place, head, _ in (*queue.waiting, *queue.notes)] + [place for place, _ in queue.unread]
        if number not in state.connections or max(places, default=-1) >= len(state.packets):
            raise StateError("it has a queue without its connection or its packets")
    return state


def _apply(state: State, kind: bytes, body: bytes) -> None:
    """Do to *state* what a record tells."""
    if kind == OPENED:
        _open(state, _load(ConnectionState, body))
    elif kind == PACKET:
        state.packets.append(body)
    elif kind == ACCOUNT:
        state.accounts.append(_load(AccountState, body))
    elif kind == TRIED:
        state.tries += 1
    elif kind in _OF_A_NUMBER and len(body) >= _NUMBER.size:
        _apply_to(state, kind, _NUMBER.unpack_from(body)[0], body[_NUMBER.size :])
    else:
        raise StateError(f"it has a record of unknown kind {kind!r}")


def _apply_to(state: State, kind: bytes, number: int, rest: bytes) -> None:
    """Do to a connection, or to the numbers of connections, what a record tells."""
    if kind == RESERVED:
        state.bus.next_connection = max(state.bus.next_connection, number)
        return
    connection = state.connections.get(number)
    if connection is None:
        raise StateError(f"it has a record about connection {number}, which it does not contain")
    if kind == CLOSED:
        del state.connections[number]
    elif kind == SUBSCRIBED:
        connection.patterns[rest] = connection.patterns.get(rest, 0) + 1
    elif kind == STORED:
        _store(connection, rest)
    elif kind == CHANGED:
        connection.settings = _load(ConnectionSettings, rest)
    elif kind in (TAPPED, UNTAPPED):
        connection.tap = rest if kind == TAPPED else None
    elif kind == QUEUE:
        state.queues[number] = _load(Queue, rest)
    else:
        _remove(connection, rest)


def _store(connection: ConnectionState, rest: bytes) -> None:
    """Add a pattern with all its instances."""
    if len(rest) < _COUNT.size:
        raise StateError(f"it has a truncated pattern of connection {connection.number}")
    (count,), pattern = _COUNT.unpack_from(rest), rest[_COUNT.size :]
    if not count or pattern in connection.patterns:
        raise StateError(f"it has a duplicate pattern of connection {connection.number}, or one with count 0")
    connection.patterns[pattern] = count


def _open(state: State, connection: ConnectionState) -> None:
    """Add a connection."""
    if connection.number in state.connections:
        raise StateError(f"it has connection {connection.number} twice")
    if not _is_bytes(connection.progress.receipt_token or ""):
        raise StateError(f"it has a receipt of connection {connection.number} whose token has characters above 255")
    state.connections[connection.number] = connection
    state.bus.next_connection = max(state.bus.next_connection, connection.number + 1)


def _is_bytes(text: str) -> bool:
    """Return whether the characters of *text* are the numbers of bytes."""
    try:
        text.encode("latin-1")
    except UnicodeEncodeError:
        return False
    return True


def _remove(connection: ConnectionState, pattern: bytes) -> None:
    """Remove one instance of a pattern."""
    left = connection.patterns.get(pattern, 0) - 1
    if left < 0:
        raise StateError(f"it removes a pattern that connection {connection.number} does not have")
    if left:
        connection.patterns[pattern] = left
    else:
        del connection.patterns[pattern]


def _dump(value: object) -> bytes:
    """Return *value* as JSON."""
    return _ENCODER.encode(value).encode()


def _fields(value: object) -> dict[str, object]:
    """Return what a dataclass holds, by name."""
    return {name: getattr(value, name) for name in _names(type(cast("DataclassInstance", value)))}


@functools.cache
def _names(kind: type[DataclassInstance]) -> tuple[str, ...]:
    """Return the names of a dataclass's fields."""
    return tuple(each.name for each in fields(kind))


_ENCODER = json.JSONEncoder(default=_fields, allow_nan=False, separators=(",", ":"))
"""One for all: json.dumps makes another for each record."""


_ADAPTERS: dict[type, TypeAdapter[object]] = {}


def _adapter(kind: type) -> TypeAdapter[object]:
    """Return what reads a *kind*, made once: that takes longer than to read."""
    # Imported here: pydantic takes longer to import than all else does, and a bus that goes on after no other reads nothing.
    from pydantic import TypeAdapter  # noqa: PLC0415

    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    return _ADAPTERS[kind]


def _load(kind: type[_Kind], data: bytes) -> _Kind:
    """Return the value of *kind* that *data* tells. Raises StateError."""
    from pydantic import ValidationError  # noqa: PLC0415

    try:
        return cast(_Kind, _adapter(kind).validate_json(data))
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        # A pattern can be a part of the place.
        place = printable(".".join(str(part) for part in problem["loc"]))
        raise StateError(f"its {kind.__name__} record is invalid: {place} {problem['msg']}".strip()) from None
