"""One connection of a client: packets with descriptors in, responses with at most one descriptor out. Nothing here blocks."""

from __future__ import annotations

import array
import ctypes
import errno
import fcntl
import os
import socket
import struct
import termios
from typing import NamedTuple

from sbusd.blob.refusals import Cause, Refusal
from sbusd.protocol.blobs import MAX_DESCRIPTORS, MAX_REQUEST_BYTES
from sbusd.protocol.credentials import Credentials

_PEERCRED = struct.Struct("iII")

_SO_PEERGROUPS = 59
"""The supplementary groups of a peer, unix(7)."""

_MAX_GROUPS = 65_536
"""NGROUPS_MAX of the kernel."""

_MOST_OF_PYTHON = 1_024
"""The largest buffer that socket.getsockopt accepts."""

_INT = struct.Struct("i")

# Room for as many descriptors as the kernel lets a client send. The kernel would close those without room in the receiving thread.
_ROOM = socket.CMSG_SPACE(MAX_DESCRIPTORS * _INT.size)


class Packet(NamedTuple):
    """A packet with its descriptors. ``is_cut``: a part of them is missing."""

    data: bytes
    fds: tuple[int, ...]
    is_cut: bool

    def one_descriptor(self) -> int | None:
        """Return the descriptor of the packet, or None. Raises Refusal if there are more, or one is missing."""
        if self.is_cut or len(self.fds) > 1:
            raise Refusal(Cause.DESCRIPTORS, "a request may have one descriptor")
        return self.fds[0] if self.fds else None


def credentials_of(sock: socket.socket) -> Credentials:
    """Return the credentials of the peer, from the kernel."""
    pid, uid, gid = _PEERCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEERCRED.size))
    return Credentials(pid, uid, gid, _groups_of(sock))


def _groups_of(sock: socket.socket) -> frozenset[int]:
    """Return the supplementary groups of the peer."""
    try:
        packed = sock.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _MOST_OF_PYTHON)
    except OSError as error:
        if error.errno != errno.ERANGE:
            raise
        packed = _many_groups_of(sock)
    return frozenset(struct.unpack(f"{len(packed) // 4}I", packed))


def _many_groups_of(sock: socket.socket) -> bytes:
    """Return the groups of a peer that has too many for socket.getsockopt."""
    room = ctypes.create_string_buffer(_MAX_GROUPS * 4)
    size = ctypes.c_uint32(len(room.raw))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.getsockopt(sock.fileno(), socket.SOL_SOCKET, _SO_PEERGROUPS, room, ctypes.byref(size)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return room.raw[: size.value]


def receive(sock: socket.socket) -> Packet | None:
    """Return the next packet, or None at the end of the connection. Raises BlockingIOError without a packet, and OSError."""
    data, control, flags, _ = sock.recvmsg(MAX_REQUEST_BYTES + 1, _ROOM, socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC)
    fds = array.array("i")
    for level, kind, content in control:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
    is_cut = bool(flags & socket.MSG_CTRUNC)
    return Packet(data, tuple(fds), is_cut) if data or fds or is_cut else None


def has_unread(sock: socket.socket) -> bool:
    """Return whether the peer has not read all that was sent to it: only then a descriptor can be on its way."""
    count: int = _INT.unpack(fcntl.ioctl(sock, termios.TIOCOUTQ, bytes(_INT.size)))[0]
    return count > 0


def send(sock: socket.socket, data: bytes, fd: int | None = None) -> None:
    """Send a response. Raises OSError, also if the socket is full."""
    ancillary = [] if fd is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
    sock.sendmsg([data], ancillary, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
