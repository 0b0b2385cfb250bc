"""The listening sockets, passed by systemd or created, and Unix sockets for a loop that never expects descriptors.

A loop that receives a descriptor without room for it, or closes a socket with an unread one, closes that descriptor, and this can block as
long as its sender likes. Linux 6.16 and later refuses them, but not those that were sent before the program has started. So a look at the
next bytes comes first, and a thread of the sender (:mod:`sbus_programs.owner_threads`) closes a socket that has some: that of the
charged user, because a user with thousands of ids could otherwise keep all threads busy.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import socket
import struct

from systemd import daemon

from sbus.protocol.errors import SbusError
from sbus.protocol.printable import printable
from sbus_programs.config.users import ChargedUsers
from sbus_programs.owner_threads import OwnerThreads
from sbus_programs.passed_descriptors import let_send_descriptors, unread_descriptors

THREADS = 8
"""Users whose sockets are closed at the same time: with others of the program below TasksMax= of the unit."""

MAX_CLOSES = 256
"""While this number of sockets waits to be closed, no connection is accepted: an accepted one can have descriptors."""

_PEER = struct.Struct("=iII")


class CheckedSocket(socket.socket):
    """An accepted connection. ``recv`` never receives a descriptor, and ``close`` never blocks."""

    closes: OwnerThreads
    charged: ChargedUsers

    def recv(self, size: int, flags: int = 0, /) -> bytes:
        """Receive at most *size* bytes. Raises ConnectionAbortedError if some of them were sent with descriptors, and OSError."""
        seen, _, result, _ = self.recvmsg(size, 0, flags | socket.MSG_PEEK)
        if result & socket.MSG_CTRUNC:
            raise ConnectionAbortedError("the client sent a descriptor")
        return super().recv(len(seen), flags)  # what follows these bytes can have some

    def close(self) -> None:
        """Close the socket, or let a thread close it."""
        if self.fileno() >= 0:
            with contextlib.suppress(OSError):
                self.shutdown(socket.SHUT_RDWR)
            # The peer cannot send any more, so the answer stays true.
            if unread_descriptors(self):
                _, user, _ = _PEER.unpack(self.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
                self.closes.add(self.charged.of(user), self.detach())
                return
        super().close()


class CheckedListener(socket.socket):
    """A listening socket that accepts connections as :class:`CheckedSocket`."""

    def __init__(self, listening: socket.socket, charged: ChargedUsers) -> None:
        """Take over *listening*. *charged* says whose thread closes a socket."""
        super().__init__(fileno=listening.detach())
        self.setblocking(False)
        self._charged = charged
        self._closes = OwnerThreads(_close, lambda _user, _fd: None, THREADS)

    def accept(self) -> tuple[socket.socket, object]:
        """Accept a connection. Raises OSError, also if too many wait to be closed: the loop then tries again after a second."""
        if self._closes.total >= MAX_CLOSES:
            raise OSError(errno.ENOBUFS, "too many sockets wait to be closed")
        accepted, address = super().accept()
        checked = CheckedSocket(fileno=accepted.detach())
        checked.closes, checked.charged = self._closes, self._charged
        return checked, address


def without_descriptors(listening: socket.socket, charged: ChargedUsers) -> socket.socket:
    """Return *listening*, or what takes it over: a socket whose connections receive no descriptors.

    A thread of the user that is *charged* closes a connection with unread ones.
    """
    if listening.family != socket.AF_UNIX:
        return listening
    let_send_descriptors(listening, is_allowed=False)
    return CheckedListener(listening, charged)


def _close(fd: int) -> None:
    """Close *fd*; it is closed even if a signal interrupts that."""
    with contextlib.suppress(OSError):
        os.close(fd)


MODE = 0o666
"""Mode of a Unix socket that the program creates: it decides by peer credentials."""

_REMEDY = "use ListenStream= with Accept=no in the .socket unit"


class ListenError(SbusError, OSError):
    """The program cannot listen; the text is one line."""


def passed_sockets() -> list[socket.socket]:
    """Return the listening sockets that systemd has passed, none without systemd. Raises ListenError if they are of another type."""
    try:
        fds = list(dict(daemon.listen_fds_with_names(unset_environment=True)))
    except OSError as error:
        raise ListenError(f"cannot use the sockets of systemd: {error.strerror}") from None
    found = []
    for fd in fds:
        try:
            passed = socket.socket(fileno=fd)
        except OSError:
            raise ListenError(f"systemd passed a descriptor that is not a socket; {_REMEDY}") from None
        is_listening = passed.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        if passed.type != socket.SOCK_STREAM or passed.family not in (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6) or not is_listening:
            raise ListenError(f"systemd passed a socket of another type; {_REMEDY}")
        passed.setblocking(False)
        found.append(passed)
    return found


def created_socket(place: str) -> socket.socket:
    """Return a new listening socket at *place*: the path of a Unix socket, or the numeric loopback address ``HOST:PORT``.

    Raises:
        ListenError: that is not possible.
    """
    is_path = os.path.isabs(place)
    host, _, port = place.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    if not is_path and not (_is_loopback(bare) and port.isascii() and port.isdecimal()):
        raise ListenError(f"cannot listen on {printable(place)}: neither an absolute path nor a loopback address such as 127.0.0.1:19722")
    family = socket.AF_UNIX if is_path else socket.AF_INET6 if ":" in bare else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(place if is_path else (bare, int(port)))
        if is_path:
            os.chmod(place, MODE)
        made.listen(socket.SOMAXCONN)
    except (OSError, OverflowError) as error:
        made.close()
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise ListenError(f"cannot listen on {printable(place)}: {reason}") from None
    made.setblocking(False)
    return made


def address_of(listening: socket.socket) -> str:
    """Return the address of a listening socket, for people."""
    name = listening.getsockname()
    if listening.family == socket.AF_UNIX:
        return printable(os.fsdecode(name))
    return f"[{name[0]}]:{name[1]}" if listening.family == socket.AF_INET6 else f"{name[0]}:{name[1]}"


def remove_created(listening: socket.socket, place: str) -> None:
    """Close a socket that :func:`created_socket` has made at *place*, and remove its file."""
    listening.close()
    if os.path.isabs(place):
        with contextlib.suppress(OSError):
            os.unlink(place)


def _is_loopback(host: str) -> bool:
    """Return whether *host* is a numeric loopback address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
