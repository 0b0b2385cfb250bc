"""The socket of a client: which address it is connected to, how it is opened, its limits, and its errors.

Spec: sbusd(8), "ADDRESSES"; sbus-protocol(7) §1, unix(7).
"""

from __future__ import annotations

import errno
import mmap
import os
import socket
import struct
from dataclasses import dataclass
from typing import Literal

from sbus.errors import BadAddressError, NoBus, PayloadTooLarge, no_bus
from sbus.protocol.addresses import InheritedDescriptor, RandomAbstract, UnixName, parse_address
from sbus.protocol.packets import MAX_PACKET_BYTES

Scope = Literal["system", "user"]

State = Literal["connected", "reconnecting", "closed"]
"""The state of a client's connection; ``closed`` is final."""

SYSTEM_ADDRESS = "/run/sbus.socket"
"""The address of ``sbus.socket`` of the system."""

ADDRESS_VARIABLE = "SBUS_ADDRESS"
"""The environment variable with the default address; an argument takes precedence."""

RECEIVE_BYTES = MAX_PACKET_BYTES + 16_384
"""Room for the largest packet and any prefix that the bus may add. Untouched pages of it cost nothing."""

_KERNEL_OVERHEAD_BYTES = 32
"""The part of SO_SNDBUF that the kernel reserves: unix_dgram_sendmsg() accepts packets of up to SO_SNDBUF - 32."""

_GONE = frozenset({errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN, errno.ECONNABORTED, errno.ESHUTDOWN})


def bus_address(address: str | os.PathLike[str] | None = None, *, scope: Scope | None = None) -> str:
    """Return the address to connect to: *address*, else the bus of *scope*, else ``$SBUS_ADDRESS``, else the system's.

    An empty ``$SBUS_ADDRESS`` counts as unset. The address is parsed at connect.

    Raises:
        TypeError: *address* is not a str, a path, or None.
        ValueError: *scope* is another word.
        NoBus: *scope* is ``user``, and ``$XDG_RUNTIME_DIR`` is not set or not an absolute path.
    """
    if scope not in (None, "user", "system"):
        raise ValueError(f"invalid scope {scope!r}: must be 'system' or 'user'")
    if address is not None:
        if not isinstance(address, str | os.PathLike):
            raise TypeError(f"address must be str, the path of a socket, not {type(address).__name__}")
        return os.fspath(address)
    if scope == "user":
        return _user_address()
    if scope == "system":
        return SYSTEM_ADDRESS
    return os.environ.get(ADDRESS_VARIABLE) or SYSTEM_ADDRESS


def _user_address() -> str:
    """Return the address of the calling user's bus."""
    folder = os.environ.get("XDG_RUNTIME_DIR", "")
    if not folder.startswith("/"):
        why = "is not set" if not folder else "is not an absolute path"
        raise NoBus("the user's bus", f"$XDG_RUNTIME_DIR {why}; log in through systemd-logind, or give an address")
    return os.path.join(folder, "sbus.socket")


@dataclass(frozen=True, slots=True)
class Target:
    """A parsed address to connect to; ``text`` is its original spelling."""

    text: str
    place: UnixName | InheritedDescriptor

    @property
    def is_connected(self) -> bool:
        """Whether another process has connected it: a descriptor."""
        return isinstance(self.place, InheritedDescriptor)


def parse_target(text: str, *, reconnect: bool) -> Target:
    """Return the parsed address *text*.

    Raises:
        BadAddressError: *text* is malformed, or it is a descriptor, which cannot be connected to again, and *reconnect* is set.
        NoBus: it is ``/dev/unix/abstract``, which only sbusd can use.
    """
    place = parse_address(text)
    if isinstance(place, RandomAbstract):
        raise NoBus(text, "only sbusd can use this form; use the address that it printed")
    if reconnect and isinstance(place, InheritedDescriptor):
        raise BadAddressError(text, "is a file descriptor and cannot be reconnected; leave out reconnect")
    return Target(text, place)


def open_socket(target: Target, timeout: float | None) -> socket.socket:
    """Return a socket connected to *target*, close-on-exec and blocking: give MSG_DONTWAIT to the calls that must not block.

    *timeout* (seconds; None: no limit, 0: do not wait) limits the wait for a bus with a full backlog, unix(7), where accept(2) makes room.

    Raises:
        NoBus: there is no bus, or its backlog stayed full (``errno`` EAGAIN).
    """
    if isinstance(target.place, InheritedDescriptor):
        return _inherited(target.text, target.place.fd)
    try:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    except OSError as error:
        raise no_bus(target.text, error) from None
    try:
        _connect(sock, target.place.name, timeout)
    except OSError as error:
        sock.close()
        raise no_bus(target.text, error) from None
    except BaseException:
        sock.close()
        raise
    return _with_room(sock)


def receive_buffer() -> memoryview:
    """Return memory for one received packet. It is not shared with processes that this one forks.

    A mapping commits only the pages that packets have touched, and it saves an allocation of this size for each packet.
    """
    return memoryview(mmap.mmap(-1, RECEIVE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))


def packet_limit(sock: socket.socket) -> int:
    """Return the size in bytes of the largest packet that *sock* can send."""
    return min(MAX_PACKET_BYTES, sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) - _KERNEL_OVERHEAD_BYTES)


def is_gone(error: OSError) -> bool:
    """Return whether *error* of send(2) or recv(2) means that the other end has closed."""
    return error.errno in _GONE


def send_failure(sock: socket.socket, packet: bytes, error: OSError) -> Exception:
    """Return the exception for *error*, which send(2) of *packet* returned and which does not mean that the other end has closed."""
    return PayloadTooLarge(len(packet), packet_limit(sock)) if error.errno == errno.EMSGSIZE else error


def _connect(sock: socket.socket, name: bytes, timeout: float | None) -> None:
    """Connect *sock* to *name*; it is blocking afterwards."""
    if timeout is not None and timeout > 0:
        # Python's own timeouts make a socket non-blocking, and connect(2) on a non-blocking Unix socket does not wait for room.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(timeout))
    sock.setblocking(timeout != 0)
    while True:
        sock.connect(name)
        try:
            sock.getpeername()
            break
        except OSError as error:
            # After a signal Python assumes that an interrupted connect(2) continues by itself; on a Unix socket it does not.
            if error.errno != errno.ENOTCONN:
                raise
    sock.setblocking(True)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", 0, 0))


def _inherited(text: str, fd: int) -> socket.socket:
    """Return a copy of the descriptor *fd*, a connected SEQPACKET Unix socket. Its flags, shared with the original, are not changed."""
    try:
        sock = socket.socket(fileno=os.dup(fd))
    except OSError as error:
        raise no_bus(text, error) from None
    try:
        if sock.family != socket.AF_UNIX or sock.type != socket.SOCK_SEQPACKET:
            raise NoBus(text, "the file descriptor is not a Unix socket of type SEQPACKET, so it is not a bus")
        sock.getpeername()
    except OSError as error:
        sock.close()
        if isinstance(error, NoBus):
            raise
        raise no_bus(text, error) from None
    return _with_room(sock)


def _with_room(sock: socket.socket) -> socket.socket:
    """Give *sock* a send buffer for the largest packet, as far as the kernel allows (net.core.wmem_max)."""
    if packet_limit(sock) < MAX_PACKET_BYTES:
        # The kernel doubles the requested size, socket(7).
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, (MAX_PACKET_BYTES + _KERNEL_OVERHEAD_BYTES) // 2 + 4_096)
    return sock


def _timeval(seconds: float) -> bytes:
    """Return a ``struct timeval`` of at least a microsecond, because 0 means no limit there."""
    microseconds = max(1, int(seconds * 1_000_000))
    return struct.pack("@ll", *divmod(microseconds, 1_000_000))
