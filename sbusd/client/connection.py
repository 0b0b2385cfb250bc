"""The socket under a client: opening it, its limits, and how it ends. Spec: sbus-protocol(7) §1, unix(7)."""

from __future__ import annotations

import errno
import os
import socket
import struct
from dataclasses import dataclass

from sbusd.client.errors import BadAddressError, NoBus, PayloadTooLarge, no_bus
from sbusd.protocol.addresses import InheritedDescriptor, RandomAbstract, UnixName, parse_address
from sbusd.protocol.limits import MAX_PACKET_BYTES

RECEIVE_BYTES = MAX_PACKET_BYTES + 16_384
"""Room for the largest packet and whatever the bus may put in front of one. Untouched pages of it cost nothing."""

_KERNEL_OVERHEAD_BYTES = 32
"""What the kernel keeps of SO_SNDBUF: unix_dgram_sendmsg() takes packets of up to SO_SNDBUF - 32."""

_GONE = frozenset({errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN, errno.ECONNABORTED, errno.ESHUTDOWN})


@dataclass(frozen=True, slots=True)
class Target:
    """A parsed address that can be connected to; ``text`` is how it was spelt."""

    text: str
    place: UnixName | InheritedDescriptor


def parse_target(text: str, *, reconnect: bool) -> Target:
    """Return what to connect to.

    Raises:
        BadAddressError: *text* is not an address, or a descriptor, which cannot be connected to again, and *reconnect* is wanted.
        NoBus: it is ``/dev/unix/abstract``, which only a server can use.
    """
    place = parse_address(text)
    if isinstance(place, RandomAbstract):
        raise NoBus(text, "only a server can use this form; connect to the address that the server prints")
    if reconnect and isinstance(place, InheritedDescriptor):
        raise BadAddressError(text, "is a file descriptor and cannot be reconnected; leave out reconnect")
    return Target(text, place)


def open_socket(target: Target, timeout: float | None) -> socket.socket:
    """Return a socket connected to *target*, close-on-exec and blocking: give MSG_DONTWAIT to the calls that must not block.

    *timeout* (seconds, None: for ever, 0: not at all) bounds the wait for a bus with a full backlog, unix(7): accept(2) makes room there.

    Raises:
        NoBus: nobody is there, or no room came in time (``errno`` EAGAIN).
    """
    if isinstance(target.place, InheritedDescriptor):
        return _inherited(target.text, target.place.fd)
    try:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    except OSError as error:
        raise no_bus(target.text, error) from error
    try:
        _connect(sock, target.place.name, timeout)
    except OSError as error:
        sock.close()
        raise no_bus(target.text, error) from error
    except BaseException:
        sock.close()
        raise
    return _with_room(sock)


def packet_limit(sock: socket.socket) -> int:
    """Return the size in bytes of the largest packet that *sock* can send."""
    return min(MAX_PACKET_BYTES, sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) - _KERNEL_OVERHEAD_BYTES)


def is_gone(error: OSError) -> bool:
    """Return whether *error* of send(2) or recv(2) says that the other end is gone."""
    return error.errno in _GONE


def send_failure(sock: socket.socket, packet: bytes, error: OSError) -> Exception:
    """Return what to raise for *error*, which send(2) of *packet* gave and which does not mean that the other end is gone."""
    return PayloadTooLarge(len(packet), packet_limit(sock)) if error.errno == errno.EMSGSIZE else error


def _connect(sock: socket.socket, name: bytes, timeout: float | None) -> None:
    """Connect *sock* to *name*, and leave it blocking."""
    if timeout is not None and timeout > 0:
        # Python's own time-outs make a socket non-blocking, and connect(2) on a non-blocking Unix socket does not wait for room.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(timeout))
    sock.setblocking(timeout != 0)
    while True:
        sock.connect(name)
        try:
            sock.getpeername()
            break
        except OSError as error:
            # After a signal Python takes an interrupted connect(2) for one that goes on by itself; on a Unix socket it does not.
            if error.errno != errno.ENOTCONN:
                raise
    sock.setblocking(True)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", 0, 0))


def _inherited(text: str, fd: int) -> socket.socket:
    """Return a copy of the descriptor *fd*, a connected SEQPACKET Unix socket. Its mode, shared with the caller's, is left alone."""
    try:
        sock = socket.socket(fileno=os.dup(fd))
    except OSError as error:
        raise no_bus(text, error) from error
    try:
        if sock.family != socket.AF_UNIX or sock.type != socket.SOCK_SEQPACKET:
            raise NoBus(text, "the file descriptor is not a Unix socket of type SEQPACKET, so it is not a bus")
        sock.getpeername()
    except OSError as error:
        sock.close()
        if isinstance(error, NoBus):
            raise
        raise no_bus(text, error) from error
    return _with_room(sock)


def _with_room(sock: socket.socket) -> socket.socket:
    """Give *sock* a send buffer for the largest packet, as far as the kernel allows (net.core.wmem_max)."""
    if packet_limit(sock) < MAX_PACKET_BYTES:
        # The kernel doubles what is asked for, socket(7).
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, (MAX_PACKET_BYTES + _KERNEL_OVERHEAD_BYTES) // 2 + 4_096)
    return sock


def _timeval(seconds: float) -> bytes:
    """Return a ``struct timeval``; no less than a microsecond, since 0 means for ever there."""
    microseconds = max(1, int(seconds * 1_000_000))
    return struct.pack("@ll", *divmod(microseconds, 1_000_000))
