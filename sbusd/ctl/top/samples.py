"""Samples of the bus, and of the fill levels of the kernel's queues of Unix sockets. Source: sock_diag(7).

Every process may query all sockets in its network namespace. Only the message classes of pyroute2 are used: its socket class reads an
error of this protocol as a message, and would wait forever.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from pyroute2.netlink import nlmsg
from pyroute2.netlink.diag import SOCK_DIAG_BY_FAMILY, SS_ESTABLISHED, UDIAG_SHOW_PEER, UDIAG_SHOW_RQLEN, unix_diag_msg, unix_diag_req

from sbusd.client.bus_documents import JsonObject
from sbusd.ctl.responses import ConnectionInfo, ControlClient, ask, connection_info, connections, users
from sbusd.protocol import controls
from sbusd.protocol.errors import SbusError

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
