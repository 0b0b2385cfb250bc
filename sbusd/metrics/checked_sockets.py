"""Unix sockets for a loop that never expects descriptors.

A loop that receives a descriptor without room for it, or closes a socket with an unread one, closes that descriptor, and this can block as
long as its sender likes. Linux 6.16 and later refuses them, but not those that were sent before the program has started. So a look at the
next bytes comes first, and a thread of the sender closes a socket that has some (:mod:`sbusd.owner_threads`): that of the user who is
charged, because a user with thousands of ids could otherwise keep all threads busy.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct

from sbusd.config.users import ChargedUsers
from sbusd.owner_threads import OwnerThreads
from sbusd.passed_descriptors import let_send_descriptors, unread_descriptors

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
