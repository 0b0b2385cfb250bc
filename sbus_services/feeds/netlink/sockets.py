"""The netlink sockets: a monitor of changes, and dumps of tables. Source: netlink(7), rtnetlink(7).

pyroute2 provides only messages and namespaces here: its sockets read into an unbounded queue and are unusable after an overrun. The feed
must know exactly when a message was lost.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
from collections.abc import Iterable, Iterator

from pyroute2 import netns
from pyroute2.netlink import nlmsg_base, rtnl
from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg
from pyroute2.netlink.rtnl.ndmsg import ndmsg
from pyroute2.netlink.rtnl.rtmsg import rtmsg

from sbus.protocol.errors import SbusError
from sbus_services.feeds.netlink.entries import Entry
from sbus_services.feeds.netlink.notices import parse_notices

_GROUPS = (1, 3, 5, 7, 9, 11, 32)
"""RTNLGRP_LINK, _NEIGH, _IPV4_IFADDR, _IPV4_ROUTE, _IPV6_IFADDR, _IPV6_ROUTE, _NEXTHOP."""

_NEXTHOPS = frozenset({104, 105, 116, 117})
"""RTM_NEWNEXTHOP, RTM_DELNEXTHOP, and those of the buckets of a group."""
_SOL_NETLINK, _ADD_MEMBERSHIP = 270, 1

_TABLES: tuple[tuple[type[nlmsg_base], int], ...] = (
    (ifinfmsg, rtnl.RTM_GETLINK),
    (ifaddrmsg, rtnl.RTM_GETADDR),
    (rtmsg, rtnl.RTM_GETROUTE),
    (ndmsg, rtnl.RTM_GETNEIGH),
)
"""The request for each table. Links come first, because the others refer to them."""

_REQUEST_DUMP = 0x1 | 0x300
_DUMP_INTERRUPTED = 0x10
_HEADER = struct.Struct("=IHHII")
_ERROR = struct.Struct("=i")
_NLMSG_ERROR, _NLMSG_DONE = 2, 3

_SO_RCVBUFFORCE = 33
RECEIVE_BYTES = 4 << 20
"""Receive buffer of the monitor: some thousand messages, as during the boot of a machine with many containers."""

_DATAGRAM_BYTES = 1 << 18
"""Room for one datagram: the kernel's have at most 32 KiB, except for a link with hundreds of virtual functions."""

_DUMP_ATTEMPTS = 5
_DUMP_SECONDS = 10.0


class OverrunError(SbusError):
    """Messages of the kernel were lost: ENOBUFS, or one that did not fit. The monitor must be replaced."""


class KernelError(SbusError, OSError):
    """The kernel rejects an operation of the feed."""


class NetworkNamespace:
    """The network namespace in which sockets are created: a named one, or the process's own.

    A socket stays in its namespace, so the process enters only to create one, and reaches the bus outside. The descriptor is kept open: it
    refers to the same namespace even if the name is deleted.
    """

    def __init__(self, name: str | None = None) -> None:
        self._fd: int | None = None
        if name is None:
            return
        if not name or "/" in name or name.startswith("."):
            raise KernelError(f"network namespace {name!r}: invalid name; list the namespaces with: ip netns list")
        try:
            self._fd = os.open(os.path.join(netns.NETNS_RUN_DIR, name), os.O_RDONLY | os.O_CLOEXEC)
        except (OSError, ValueError) as wrong:
            reason = wrong.strerror if isinstance(wrong, OSError) else wrong
            raise KernelError(f"network namespace {name!r}: {reason}; list the namespaces with: ip netns list") from wrong

    def route_socket(self) -> socket.socket:
        """Return a bound netlink socket for routing messages.

        Raises:
            KernelError: the process may not enter the namespace.
        """
        with self._inside():
            channel = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)
        channel.bind((0, 0))
        return channel

    @contextlib.contextmanager
    def _inside(self) -> Iterator[None]:
        """Enter the namespace."""
        if self._fd is None:
            yield
            return
        netns.pushns()
        try:
            netns.setns(self._fd)
        except OSError as wrong:
            netns.dropns()
            raise KernelError(f"cannot enter the network namespace: {os.strerror(wrong.errno or 0)}; run as root") from wrong
        try:
            yield
        finally:
            netns.popns()

    def close(self) -> None:
        """Close the descriptor; sockets created in the namespace remain."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


class Monitor:
    """The kernel's messages about changes, from its creation on."""

    def __init__(self, namespace: NetworkNamespace, receive_bytes: int = RECEIVE_BYTES) -> None:
        self._channel = namespace.route_socket()
        try:
            # Exceeds net.core.rmem_max if permitted.
            self._channel.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, receive_bytes)
        except PermissionError:
            self._channel.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        # The kernel limits the value silently and doubles it for its own overhead.
        self.receive_bytes = self._channel.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // 2
        self._channel.setblocking(False)
        for group in _GROUPS:
            self._channel.setsockopt(_SOL_NETLINK, _ADD_MEMBERSHIP, group)
        self._buffer = bytearray(_DATAGRAM_BYTES)
        self.forged = 0
        """Datagrams that a process sent to the socket, not the kernel."""

    def fileno(self) -> int:
        """Return the descriptor to poll for reading."""
        return self._channel.fileno()

    def read(self, most: int) -> Iterator[bytes]:
        """Yield up to *most* waiting datagrams.

        Raises:
            OverrunError: the kernel dropped messages, or one was too long.
        """
        for _ in range(most):
            try:
                size, _, flags, sender = self._channel.recvmsg_into([self._buffer])
            except BlockingIOError:
                return
            except OSError as wrong:
                if wrong.errno == errno.ENOBUFS:
                    raise OverrunError("the kernel dropped messages (ENOBUFS)") from wrong
                raise
            if sender[0] != 0:
                self.forged += 1
            elif flags & socket.MSG_TRUNC:
                raise OverrunError(f"message exceeds {_DATAGRAM_BYTES} bytes")
            else:
                yield bytes(self._buffer[:size])

    def close(self) -> None:
        """Close the socket."""
        self._channel.close()


class KernelTables:
    """Reads the kernel's tables of links, addresses, routes and neighbours."""

    def __init__(self, namespace: NetworkNamespace) -> None:
        self._channel = namespace.route_socket()
        self._channel.settimeout(_DUMP_SECONDS)
        self._sequence = 0
        self.interrupted = 0
        """Number of tables that changed while they were read, and were read again."""

    def read(self) -> list[Entry]:
        """Return all entries, links first.

        Raises:
            KernelError: the kernel rejects the request, or does not respond within 10 seconds.
        """
        return [entry for message, request in _TABLES for entry in self._table(message, request)]

    def _table(self, message: type[nlmsg_base], request: int) -> list[Entry]:
        """Return one table. Read it again if it changed meanwhile: an entry that existed all the time could be missing."""
        for _ in range(_DUMP_ATTEMPTS):
            entries, is_whole = self._dump(message, request)
            if is_whole:
                break
            self.interrupted += 1
        return entries

    def _dump(self, message: type[nlmsg_base], request: int) -> tuple[list[Entry], bool]:
        """Return one table, and whether it did not change while it was read."""
        self._sequence += 1
        query = message()
        query["header"]["type"] = request
        query["header"]["flags"] = _REQUEST_DUMP
        query["header"]["sequence_number"] = self._sequence
        query.encode()
        entries: list[Entry] = []
        is_whole = True
        try:
            self._channel.sendto(bytes(query.data), (0, 0))
            for datagram in self._answers():
                is_whole = is_whole and not _is_interrupted(datagram)
                entries.extend(notice.entry for notice in parse_notices(datagram) if not notice.gone)
        except TimeoutError as wrong:
            raise KernelError(f"netlink dump timed out after {_DUMP_SECONDS:.0f} seconds") from wrong
        return entries, is_whole

    def _answers(self) -> Iterator[bytes]:
        """Yield the datagrams of a response, without the final message."""
        while True:
            datagram, _, flags, sender = self._channel.recvmsg(_DATAGRAM_BYTES)
            if sender[0] != 0 or _HEADER.unpack_from(datagram)[3] != self._sequence:
                continue
            if flags & socket.MSG_TRUNC:
                raise KernelError(f"netlink dump message exceeds {_DATAGRAM_BYTES} bytes")
            end = next((place for place, kind, _ in _headers(datagram) if kind in (_NLMSG_ERROR, _NLMSG_DONE)), None)
            if end is None:
                yield datagram
                continue
            (error,) = _ERROR.unpack_from(datagram, end + _HEADER.size)
            if error < 0:
                raise KernelError(f"netlink dump rejected by the kernel: {errno.errorcode.get(-error, error)}")
            yield datagram[:end]
            return

    def close(self) -> None:
        """Close the socket."""
        self._channel.close()


class Kernel:
    """One network namespace: its tables, and their changes."""

    def __init__(self, namespace: str | None = None, receive_bytes: int = RECEIVE_BYTES) -> None:
        """Open the namespace with this name, None for the process's own.

        Raises:
            KernelError: it does not exist, or the process may not enter it.
        """
        self._namespace = NetworkNamespace(namespace)
        self._receive_bytes = receive_bytes
        self._tables = KernelTables(self._namespace)

    @property
    def interrupted(self) -> int:
        """Number of tables that changed while they were read, and were read again."""
        return self._tables.interrupted

    def listen(self) -> Monitor:
        """Return a new monitor; the caller closes it."""
        return Monitor(self._namespace, self._receive_bytes)

    def read_tables(self) -> list[Entry]:
        """Return all current entries, links first. Raises what :meth:`KernelTables.read` raises."""
        return self._tables.read()

    def close(self) -> None:
        """Close the sockets; callers close their monitors."""
        self._tables.close()
        self._namespace.close()


def has_nexthop(datagram: bytes) -> bool:
    """Return whether a nexthop object has changed: the kernel changes or drops the routes that use it without a message about each."""
    return any(kind in _NEXTHOPS for _, kind, _ in _headers(datagram))


def _headers(datagram: bytes) -> Iterable[tuple[int, int, int]]:
    """Yield the offset, type and flags of each message in *datagram*. Source: netlink(7)."""
    place = 0
    while place + _HEADER.size <= len(datagram):
        length, kind, flags, _, _ = _HEADER.unpack_from(datagram, place)
        yield place, kind, flags
        place += max((length + 3) & ~3, _HEADER.size)


def _is_interrupted(datagram: bytes) -> bool:
    """Return whether the kernel reports that a table changed during its dump."""
    return any(flags & _DUMP_INTERRUPTED for _, _, flags in _headers(datagram))
