"""Connections: the listening socket, passed by systemd or created, and each client's packets in and responses out. Nothing here waits."""

from __future__ import annotations

import array
import ctypes
import errno
import fcntl
import os
import socket
import stat
import struct
import termios
from typing import NamedTuple

from systemd import daemon

from sbus.errors import systemctl
from sbus.protocol.blobs import MAX_DESCRIPTORS, MAX_REQUEST_BYTES
from sbus.protocol.credentials import Credentials
from sbus.protocol.errors import SbusError
from sbus.protocol.printable import printable
from sbus_services.blob.requests import Cause, Refusal

MODE = 0o666
"""Mode of a socket that the program creates: the service decides by peer credentials."""


class ListenError(SbusError, OSError):
    """The service cannot listen; the text is one line."""


def listening_socket(path: str | None, default: str) -> tuple[socket.socket, str]:
    """Return a listening socket of type SEQPACKET and its address: a new one at *path*, or else that of systemd, or one at *default*.

    Raises:
        ListenError: systemd passed another socket, or the socket cannot be created.
    """
    if path is None and (passed := _passed()) is not None:
        name = passed.getsockname()
        return passed, os.fsdecode(name)
    try:
        return _created(path or default), path or default
    except ListenError as error:
        if path is not None or not os.environ.get("NOTIFY_SOCKET"):
            raise
        # The socket unit does not hold the socket any more, as after mask and unmask.
        raise ListenError(f"systemd passed no socket: run: {systemctl(default)} restart sbus-blob.socket ({error})") from None


def _passed() -> socket.socket | None:
    """Return the socket that systemd passed, or None."""
    try:
        fds = list(dict(daemon.listen_fds_with_names(unset_environment=True)))
    except OSError as error:
        raise ListenError(f"cannot use the sockets of systemd: {error.strerror}") from None
    if not fds:
        return None
    remedy = "use one ListenSequentialPacket= and Accept=no in the .socket unit"
    if len(fds) > 1:
        raise ListenError(f"systemd passed {len(fds)} sockets; {remedy}")
    try:
        passed = socket.socket(fileno=fds[0])
    except OSError:
        raise ListenError(f"systemd passed a descriptor that is not a socket; {remedy}") from None
    is_listening = passed.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    if (passed.family, passed.type) != (socket.AF_UNIX, socket.SOCK_SEQPACKET) or not is_listening:
        raise ListenError(f"systemd passed a socket of another type; {remedy}")
    return passed


def _created(path: str) -> socket.socket:
    """Return a new socket at *path*; a socket there that no process uses is replaced."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        os.fchmod(made.fileno(), MODE)
        umask = os.umask(0)
        try:
            _bind(made, path)
        finally:
            os.umask(umask)
        made.listen(socket.SOMAXCONN)
    except OSError as error:
        made.close()
        reason = error.strerror or str(error)  # a path that is too long has no strerror
        raise ListenError(f"cannot listen on {printable(path)}: {reason}; choose another path with --listen") from None
    return made


def _bind(made: socket.socket, path: str) -> None:
    """Bind *made* to *path*. Raises OSError."""
    try:
        made.bind(path)
    except OSError:
        if not _is_abandoned(path):
            raise
        os.unlink(path)
        made.bind(path)


def _is_abandoned(path: str) -> bool:
    """Return whether there is a socket at *path* that no process uses."""
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            return False
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
            probe.setblocking(False)
            return probe.connect_ex(path) == errno.ECONNREFUSED
    except OSError:
        return False


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
