"""Samples of the bus and of the kernel's queues of Unix sockets, and rates between two of them. Source: sock_diag(7).

Every process may query all sockets in its network namespace. Only the message classes of pyroute2 are used: its socket class reads an
error of this protocol as a message, and would wait forever.

A row is a flat object, as printed by ``--json``: counters of the bus, and rates under ``<counter>_per_second``. A rate is None if it is
unknown: in the first sample, and if a counter decreased, as after a restart of the bus.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import NamedTuple

from pyroute2.netlink import nlmsg
from pyroute2.netlink.diag import (
    SOCK_DIAG_BY_FAMILY,
    SS_ESTABLISHED,
    UDIAG_SHOW_PEER,
    UDIAG_SHOW_RQLEN,
    unix_diag_msg,
    unix_diag_req,
)

from sbus.bus_documents import JsonObject
from sbus.protocol import controls
from sbus.protocol.errors import SbusError
from sbusctl.processes import NameCache
from sbusctl.responses import (
    ConnectionInfo,
    ControlClient,
    ask,
    connection_info,
    connections,
    integer,
    mapping,
    number,
    users,
)

_NETLINK_SOCK_DIAG = 4
_REQUEST_DUMP = 0x1 | 0x300
_HEADER = struct.Struct("=IHHII")
_ERROR = struct.Struct("=i")
_NLMSG_ERROR, _NLMSG_DONE = 2, 3

_DATAGRAM_BYTES = 1 << 18
"""Buffer for one datagram; those of the kernel have at most 32 KiB."""

_DUMP_SECONDS = 5.0
"""Time limit for the list of the kernel, which takes 15 microseconds per socket."""

_USERS_FEATURE = "users"


class UnixSocket(NamedTuple):
    """One connected Unix socket."""

    peer: int | None
    """Inode of the other end; None if the kernel does not report it."""
    receive_bytes: int | None
    """Bytes in its receive queue."""
    send_bytes: int | None
    """Memory of packets that the other end has not read yet, including overhead of the kernel."""


class QueueDepths(NamedTuple):
    """The kernel's queues at both ends of a connection; None if unknown."""

    bus_receive_bytes: int | None = None
    bus_send_bytes: int | None = None
    client_receive_bytes: int | None = None
    client_send_bytes: int | None = None


class SocketsUnseenError(SbusError):
    """The kernel does not report sockets."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"cannot read the kernel queues: {reason}")


def read_sockets() -> dict[int, UnixSocket]:
    """Return all connected Unix sockets of this network namespace, by inode.

    Raises:
        SocketsUnseenError: the kernel has no sock_diag, refuses it, or did not finish within 5 seconds.
    """
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG) as kernel:
            kernel.settimeout(_DUMP_SECONDS)
            kernel.send(_request())
            return {message["udiag_ino"]: _unix_socket(message) for message in _messages(kernel)}
    except TimeoutError:
        raise SocketsUnseenError(f"the kernel did not list all sockets within {_DUMP_SECONDS:g} s") from None
    except OSError as error:
        raise SocketsUnseenError(error.strerror or str(error)) from None


def depths(sockets: Mapping[int, UnixSocket], inode: int | None) -> QueueDepths:
    """Return the queues of the connection whose socket at the bus is *inode*.

    The queues of the client are unknown if it is in another network namespace.
    """
    bus = None if inode is None else sockets.get(inode)
    if bus is None:
        return QueueDepths()
    client = None if bus.peer is None else sockets.get(bus.peer)
    if client is None:
        return QueueDepths(bus.receive_bytes, bus.send_bytes)
    return QueueDepths(bus.receive_bytes, bus.send_bytes, client.receive_bytes, client.send_bytes)


def _request() -> bytes:
    """Return the request for all connected Unix sockets, with peers and queues."""
    request = unix_diag_req()
    request["sdiag_family"] = socket.AF_UNIX
    request["udiag_states"] = 1 << SS_ESTABLISHED
    request["udiag_show"] = UDIAG_SHOW_PEER | UDIAG_SHOW_RQLEN
    request["header"]["type"] = SOCK_DIAG_BY_FAMILY
    request["header"]["flags"] = _REQUEST_DUMP
    request.encode()
    return bytes(request.data)


def _messages(kernel: socket.socket) -> Iterator[nlmsg]:
    """Yield the messages of the reply. Raises OSError with the error of the kernel."""
    end = time.monotonic() + _DUMP_SECONDS
    while True:
        datagram = kernel.recv(_DATAGRAM_BYTES)
        if time.monotonic() > end:
            raise TimeoutError
        offset = 0
        while offset + _HEADER.size <= len(datagram):
            length, kind, _, _, _ = _HEADER.unpack_from(datagram, offset)
            if kind == _NLMSG_DONE:
                return
            if kind == _NLMSG_ERROR:
                code = -_ERROR.unpack_from(datagram, offset + _HEADER.size)[0]
                raise OSError(code, os.strerror(code))
            message = unix_diag_msg(datagram[offset : offset + length])
            message.decode()
            yield message
            offset += max(_HEADER.size, length + 3 & ~3)


def _unix_socket(message: nlmsg) -> UnixSocket:
    """Return the socket in a message."""
    queues = message.get_attr("UNIX_DIAG_RQLEN") or {}
    return UnixSocket(message.get_attr("UNIX_DIAG_PEER"), queues.get("udiag_rqueue"), queues.get("udiag_wqueue"))


@dataclass(frozen=True, slots=True)
class Sample:
    """The state of the bus at one moment."""

    moment: float
    """Monotonic time in seconds, for rates."""
    clock: float
    """Seconds since 1970, for display."""
    stats: JsonObject
    """The response to ``!/bus/stats``."""
    connections: Mapping[int, ConnectionInfo]
    """By connection number."""
    hidden: int
    """Number of connections of other users."""
    depths: Mapping[int, QueueDepths]
    """The queues of the kernel, by connection number."""
    unseen: str
    """The reason if the queues of the kernel are unknown, else empty."""
    users: tuple[JsonObject, ...] = ()
    """The items of ``!/bus/users``, if requested and supported."""


class Sampler:
    """Takes samples of one bus."""

    def __init__(self, bus: ControlClient, *, with_users: bool, sockets: Callable[[], Mapping[int, UnixSocket]] = read_sockets) -> None:
        """Query the features of *bus*, if users are wanted. Raises SbusError if it refuses or is gone."""
        self._bus = bus
        self._sockets = sockets
        self._with_users = with_users and _USERS_FEATURE in bus.control(controls.FEATURES).decode("ascii", "replace").split("\n")

    def sample(self) -> Sample:
        """Return a sample.

        Raises:
            SbusError: the bus refused a request, or is gone.
        """
        moment, clock = time.monotonic(), time.time()
        stats = ask(self._bus, controls.STATS)
        pages = connections(self._bus)
        found = {each.id: each for each in map(connection_info, pages.items["connections"]) if each.id is not None}
        reported = tuple(users(self._bus).items["users"]) if self._with_users else ()
        sockets, unseen = self._read_sockets()
        queues = {number: depths(sockets, each.inode) for number, each in found.items()}
        return Sample(moment, clock, stats, found, pages.hidden, queues, unseen, reported)

    def _read_sockets(self) -> tuple[Mapping[int, UnixSocket], str]:
        """Return the sockets of the kernel, or none and the reason."""
        try:
            return self._sockets(), ""
        except SocketsUnseenError as error:
            return {}, str(error)


Row = dict[str, object]

RATED = (
    "received_packets",
    "received_bytes",
    "delivered_packets",
    "delivered_bytes",
    "lost_packets",
    "refused_packets",
    "blocked_ms",
    "blocked_others_ms",
)
"""The counters with rates; ``received`` is what the bus read, ``delivered`` what it delivered."""

HELD = ("queued_packets", "queued_bytes")
"""The current queues."""


def per_second(before: int | None, after: int | None, seconds: float) -> float | None:
    """Return the growth of a counter per second, None if it is unknown."""
    if before is None or after is None or after < before or seconds <= 0:
        return None
    return (after - before) / seconds


def connection_rows(earlier: Sample | None, later: Sample, names: NameCache) -> list[Row]:
    """Return a row for each connection of *later*. The counters of a connection that is not in *earlier* grew since then."""
    seconds = 0.0 if earlier is None else later.moment - earlier.moment
    rows: list[Row] = []
    for key, each in later.connections.items():
        row: Row = {**asdict(each), "mode": _mode(each), **names.of(each), **later.depths.get(key, QueueDepths())._asdict()}
        before = None if earlier is None else earlier.connections.get(key)
        for counter in RATED:
            value: int | None = getattr(each, counter)
            first: int | None = 0 if before is None else getattr(before, counter)
            row[f"{counter}_per_second"] = None if earlier is None else per_second(first, value, seconds)
        rows.append(row)
    return rows


def user_rows(connections: Iterable[Row], reported: Iterable[JsonObject], names: NameCache) -> list[Row]:
    """Return a row for each user: the sums of its *connections*, overridden by the fields in *reported*, the response of the bus.

    The response also includes users whose connections have ended, limits, and refusals.
    """
    by_uid: dict[int, list[Row]] = {}
    for each in connections:
        uid = each["uid"]
        if isinstance(uid, int):
            by_uid.setdefault(uid, []).append(each)
    items = {key: item for item in reported if (key := integer(item, "uid")) is not None}
    rows: list[Row] = []
    for key in sorted({*by_uid, *items}):
        own = by_uid.get(key, [])
        row: Row = {"uid": key, "user": names.user(key), "connections": len(own)}
        row |= {name: _sum(own, name) for name in ("subscriptions", "replaced_packets", *HELD, *QueueDepths._fields, *RATED)}
        row |= {f"{name}_per_second": _sum(own, f"{name}_per_second") for name in RATED}
        item = items.get(key, {})
        row |= {name: integer(item, name) if isinstance(item[name], int) else item[name] for name in item}
        rows.append(row | _quotas(item))
    return rows


def _mode(connection: ConnectionInfo) -> str | None:
    """Return the modes of a connection in one word: soft, hard, order; None if the bus does not report them all."""
    modes = (connection.soft, connection.hard, connection.order)
    return "/".join(mode for mode in modes if mode is not None) if None not in modes else None


def _quotas(item: JsonObject) -> Row:
    """Return the usage of the most used quota as a fraction of 1, the name of the quota, and the refusals by all quotas."""
    limits, refused = mapping(item, "limits"), mapping(item, "refused")
    shares = []
    for name in limits:
        used, limit = integer(item, name), integer(limits, name)
        if used is not None and limit:
            shares.append((used / limit, name))
    share, nearest = max(shares, default=(None, None))
    refusals = [count for name in refused if (count := integer(refused, name)) is not None]
    return {"quota_share": share, "quota_nearest": nearest, "quota_refusals": sum(refusals) if "refused" in item else None}


def totals(earlier: Sample | None, later: Sample, rows: list[Row]) -> Row:
    """Return the totals of the bus.

    They are the counters of the bus if the bus reports them, which it does to its owner only: these include connections that came and went
    between the samples. Otherwise they are sums over *rows*, the connections of *later*.
    """
    now = mapping(later.stats, "counters")
    before = mapping(earlier.stats, "counters") if earlier is not None else {}
    seconds = 0.0 if earlier is None else later.moment - earlier.moment
    found: Row = {"connections": len(rows), "hidden": later.hidden}
    for name in (*HELD, *RATED):
        value = integer(now, name)
        found[name] = _sum(rows, name) if value is None else value
    for name in RATED:
        value = integer(now, name)
        rate = f"{name}_per_second"
        found[rate] = _sum(rows, rate) if value is None else per_second(integer(before, name), value, seconds)
    found["uptime_seconds"] = number(later.stats, "uptime_seconds")
    return found


def ordered(rows: list[Row], field: str) -> list[Row]:
    """Return *rows* sorted by *field*: highest numbers first, text in alphabetical order, None last; then by packets, then by age."""

    def place(row: Row) -> tuple[object, ...]:
        return (*_rank(row.get(field)), -_busy(row), row.get("id") or row.get("uid") or 0)

    return sorted(rows, key=place)


def _rank(value: object) -> tuple[int, float, str]:
    """Return a sort key for numbers, text and None."""
    if isinstance(value, int | float):
        return (0, -value, "")
    return (1, 0, value) if isinstance(value, str) else (2, 0, "")


def _busy(row: Row) -> float:
    """Return the packets per second in both directions."""
    return _number(row.get("received_packets_per_second")) + _number(row.get("delivered_packets_per_second"))


def _number(value: object) -> float:
    """Return a number, 0 if it is something else."""
    return value if isinstance(value, int | float) else 0.0


def _sum(rows: Iterable[Row], name: str) -> int | float | None:
    """Return the sum of a column over the rows that have it; None if none has."""
    values = [value for row in rows if isinstance(value := row.get(name), int | float)]
    return sum(values) if values else None
