"""The state of a bus, as records in the log that outlives it. Spec: sbusd(8), RESTARTS.

A log starts with an image: one record of the bus, the records of each connection and, after a planned stop, those of pending packets and of
users. The changes follow, one by one. The first byte of a record is its kind. An image that was written while the bus ran also contains
changes of connections and patterns before them.

Clients provide only patterns and packets, which are unmodified at the end of their records; so no client can forge a record. Credentials
are read again from the kernel. The ones in a record only identify a connection that was not restored.
"""

from __future__ import annotations

import functools
import json
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Annotated, ClassVar, TypeVar, cast

from sbus.protocol.credentials import parse_name
from sbus.protocol.errors import ProtocolError
from sbus.protocol.packets import LENGTH_BYTES, MAX_PACKET_BYTES
from sbus.protocol.printable import printable
from sbusd.dataplane.switch_state import ConnectionProgress, ConnectionSettings, Count, Queue, SwitchTotals, UserId, Within
from sbusd.state.log_file import StateError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from pydantic import TypeAdapter

_FORBID_UNKNOWN: dict[str, object] = {"extra": "forbid"}

BUS, CONNECTION, STORED, PACKET, QUEUE, ACCOUNT = b"B", b"C", b"I", b"P", b"Q", b"A"
"""Kinds of records in an image. STORED is one pattern, with the number of its instances."""

OPENED, CLOSED, SUBSCRIBED, UNSUBSCRIBED, CHANGED, TAPPED, UNTAPPED, NAMED = b"C", b"G", b"S", b"U", b"M", b"W", b"V", b"L"
"""Kinds of changes: a connection opened or closed, a pattern was added or removed, settings changed, a tap opened or closed, a connection
got a name."""

RESERVED, TRIED = b"N", b"T"
"""Connection numbers were reserved; a process started to restore this log."""

_OF_A_NUMBER = (STORED, CLOSED, SUBSCRIBED, UNSUBSCRIBED, CHANGED, TAPPED, UNTAPPED, NAMED, RESERVED, QUEUE)

_NUMBER = struct.Struct("<Q")
_COUNT = struct.Struct("<I")
_INSTANCES = struct.Struct("<QI")

STORED_BYTES = 4 + 1 + _INSTANCES.size
"""Size of the record of a pattern, without the pattern itself."""

Tokens = Annotated[float, Within(0, 1 << 63)]


@dataclass(slots=True)
class BucketState:
    """The tokens of a token bucket at a time of the monotonic clock, which continues over restarts."""

    __pydantic_config__: ClassVar[dict[str, object]] = _FORBID_UNKNOWN

    tokens: Tokens
    since: Tokens


@dataclass(frozen=True, slots=True)
class HoldingState:
    """The part of the quota state of a user that belongs to a connection."""

    __pydantic_config__: ClassVar[dict[str, object]] = _FORBID_UNKNOWN

    control_packets: Count = 0
    tolerance: BucketState | None = None


_NO_PROGRESS, _NO_HOLDING = ConnectionProgress(), HoldingState()


@dataclass(slots=True)
class AccountState:
    """The rates of a user, and the requests that were rejected. The names of the fields are part of the format."""

    __pydantic_config__: ClassVar[dict[str, object]] = _FORBID_UNKNOWN

    uid: UserId
    control: BucketState
    attempts: BucketState
    records: BucketState
    refused: dict[str, Count] = field(default_factory=dict)
    unrecorded: Count = 0


@dataclass(slots=True)
class TotalsState:
    """The totals of a user: what its connections that have ended have done, by the names of ``UserTraffic``, and its refusals by quota."""

    __pydantic_config__: ClassVar[dict[str, object]] = _FORBID_UNKNOWN

    uid: UserId | None
    """None for forgotten users."""
    traffic: dict[str, Count] = field(default_factory=dict)
    refused: dict[str, Count] = field(default_factory=dict)


@dataclass(slots=True)
class ConnectionState:
    """One connection. ``inode`` identifies its socket after a restart; ``since`` is Unix time in seconds."""

    __pydantic_config__: ClassVar[dict[str, object]] = _FORBID_UNKNOWN

    number: Count
    inode: Count
    since: float
    settings: ConnectionSettings = field(default_factory=ConnectionSettings)
    patterns: dict[bytes, int] = field(default_factory=dict)
    """The number of instances of each pattern. These, ``tap`` and ``name`` have records of their own."""
    tap: bytes | None = None
    """The pattern of its tap, if any."""
    name: str = ""
    """The label that it has given to itself."""
    progress: ConnectionProgress = _NO_PROGRESS
    holding: HoldingState = _NO_HOLDING
    who: tuple[Count, Count, Count] | None = None
    """Its process, user and group, for the disconnect event if it is not restored."""


@dataclass(slots=True)
class BusState:
    """The bus itself."""

    __pydantic_config__: ClassVar[dict[str, object]] = _FORBID_UNKNOWN

    next_connection: Count
    """Greater than all connection numbers so far."""
    is_orderly: bool = False
    """The bus stopped as planned, and this is its full state, down to each packet. Otherwise it crashed."""
    tally: SwitchTotals = field(default_factory=SwitchTotals)
    counts: dict[str, Count] = field(default_factory=dict)
    """The counters of the broker."""
    records: dict[str, Count] = field(default_factory=dict)
    """The counters of the log."""
    forgotten_early: Count = 0
    started: Tokens | None = None
    """When the bus first started, in seconds of the monotonic clock."""
    counted_since: float | None = None
    """When the counters began, in seconds since 1970."""
    totals: list[TotalsState] = field(default_factory=list)
    """The totals of users, those of forgotten users too."""


@dataclass(slots=True)
class State:
    """The whole state."""

    bus: BusState
    connections: dict[int, ConnectionState] = field(default_factory=dict)
    packets: list[bytes] = field(default_factory=list)
    queues: dict[int, Queue] = field(default_factory=dict)
    accounts: list[AccountState] = field(default_factory=list)
    tries: int = 0
    """Number of processes that started to restore this."""


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
        if connection.name:
            yield named(connection.number, connection.name)
    for packet in state.packets:
        yield PACKET + packet
    for number, queue in state.queues.items():
        yield QUEUE + _NUMBER.pack(number) + _dump(queue)
    for account in state.accounts:
        yield ACCOUNT + _dump(account)


def begun(bus: BusState) -> bytes:
    """Return the first record of an image."""
    return BUS + _dump(bus)


def opened(connection: ConnectionState) -> bytes:
    """Return the record of a new connection, without its patterns, its tap and its name."""
    facts: dict[str, object] = {
        "number": connection.number,
        "inode": connection.inode,
        "since": connection.since,
        "settings": connection.settings,
        "who": connection.who,
    }
    # A running bus writes neither, and encoding default values would take most of the time.
    if connection.progress is not _NO_PROGRESS and connection.progress != _NO_PROGRESS:
        facts["progress"] = connection.progress
    if connection.holding is not _NO_HOLDING and connection.holding != _NO_HOLDING:
        facts["holding"] = connection.holding
    return OPENED + _dump(facts)


def stored(number: int, pattern: bytes, count: int) -> bytes:
    """Return the record of all *count* instances of a pattern of a connection."""
    return STORED + _INSTANCES.pack(number, count) + pattern


def closed(number: int) -> bytes:
    """Return the record of the end of a connection."""
    return CLOSED + _NUMBER.pack(number)


def subscribed(number: int, pattern: bytes) -> bytes:
    """Return the record of one more instance of a pattern."""
    return SUBSCRIBED + _NUMBER.pack(number) + pattern


def unsubscribed(number: int, pattern: bytes) -> bytes:
    """Return the record of one instance of a pattern less."""
    return UNSUBSCRIBED + _NUMBER.pack(number) + pattern


def changed(number: int, settings: ConnectionSettings) -> bytes:
    """Return the record of changed settings of a connection."""
    return CHANGED + _NUMBER.pack(number) + _dump(settings)


def tapped(number: int, pattern: bytes | None) -> bytes:
    """Return the record of a tap, or of its end for None."""
    return UNTAPPED + _NUMBER.pack(number) if pattern is None else TAPPED + _NUMBER.pack(number) + pattern


def named(number: int, name: str) -> bytes:
    """Return the record of the name of a connection; empty if it has none any more."""
    return NAMED + _NUMBER.pack(number) + name.encode()


def reserved(number: int) -> bytes:
    """Return the record that reserves the connection numbers below *number*."""
    return RESERVED + _NUMBER.pack(number)


def tried() -> bytes:
    """Return the record of an attempt to restore."""
    return TRIED


def replay(records: Iterable[bytes]) -> State:
    """Return the state in *records*. Raises StateError if they are inconsistent; the bus never guesses."""
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
        if number not in state.connections or max(queue.places(), default=-1) >= len(state.packets):
            raise StateError("it has a queue without its connection or its packets")
        if queue.half_read is not None and not _begins_frame(state.packets[queue.half_read]):
            raise StateError("it has the beginning of a frame that is not one")
        if not _is_rest_possible(queue, state.packets):
            raise StateError("it has the rest of a frame that is not one")
    return state


def _begins_frame(data: bytes) -> bool:
    """Return whether *data* is the beginning of a frame: not all of it, and nothing after a wrong length."""
    if len(data) < LENGTH_BYTES:
        return bool(data)
    length = int.from_bytes(data[:LENGTH_BYTES], "little")
    return len(data) < LENGTH_BYTES + length if 0 < length <= MAX_PACKET_BYTES else len(data) == LENGTH_BYTES


def _is_rest_possible(queue: Queue, packets: list[bytes]) -> bool:
    """Return whether the frame that was sent in part has as many bytes as are left of it."""
    if queue.part_sent is None:
        return True
    (place, head, _), left, _ = queue.part_sent
    return left <= LENGTH_BYTES + len(packets[place]) + (0 if head is None else len(packets[head]))


def _apply(state: State, kind: bytes, body: bytes) -> None:
    """Apply a record to *state*."""
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
    """Apply a record of a connection, or of connection numbers."""
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
    elif kind == NAMED:
        connection.name = _name(rest)
    elif kind == QUEUE:
        state.queues[number] = _load(Queue, rest)
    else:
        _remove(connection, rest)


def _name(rest: bytes) -> str:
    """Return the name of a connection."""
    try:
        return parse_name(rest)
    except ProtocolError as error:
        raise StateError(f"it has an invalid name: {error.words}") from None


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
    """Return whether each character of *text* can be a byte."""
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
    """Return the fields of a dataclass, by name."""
    return {name: getattr(value, name) for name in _names(type(cast("DataclassInstance", value)))}


@functools.cache
def _names(kind: type[DataclassInstance]) -> tuple[str, ...]:
    """Return the names of the fields of a dataclass."""
    return tuple(each.name for each in fields(kind))


_ENCODER = json.JSONEncoder(default=_fields, allow_nan=False, separators=(",", ":"))
"""Shared, because json.dumps creates an encoder for each call."""


_ADAPTERS: dict[type, TypeAdapter[object]] = {}


def _adapter(kind: type) -> TypeAdapter[object]:
    """Return the validator of a *kind*. It is cached, because creating it takes longer than using it."""
    # Imported here because pydantic is slow to import, and a bus without inherited state does not need it.
    from pydantic import TypeAdapter  # noqa: PLC0415

    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    return _ADAPTERS[kind]


def _load(kind: type[_Kind], data: bytes) -> _Kind:
    """Return the value of *kind* in the JSON *data*. Raises StateError."""
    from pydantic import ValidationError  # noqa: PLC0415

    try:
        return cast(_Kind, _adapter(kind).validate_json(data))
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        # The location can contain a pattern, which a client chose.
        place = printable(".".join(str(part) for part in problem["loc"]))
        raise StateError(f"its {kind.__name__} record is invalid: {place} {problem['msg']}".strip()) from None
