"""A store of the connections outside every process: their descriptors are in the queues of socket pairs that others hold open too.

The service manager compares each descriptor that it stores with all that it has, which takes seconds for some thousands. So it stores only
four, the ends of two socket pairs. Each connection costs one packet that contains its descriptor (SCM_RIGHTS). Source: unix(7).

Rules:

1. One pair is in use. When its queue is almost full, all live connections are copied to the other pair, a few hundred per packet, and a
   mark after them says that it is complete. Then the first pair is emptied. The pair with the later mark counts. So a process may be killed
   at any time: one pair has all connections, and the mark says which. A packet is one step, and the bus serves its clients between steps.
   If the queue becomes full meanwhile, new clients are in no pair until the other one is complete.
2. A stored descriptor keeps its connection open. So the bus ends a connection with shutdown(2), which reaches the peer in any case.
3. A user without privileges may have at most RLIMIT_NOFILE descriptors in queues, those of all its processes counted. Connections beyond
   that are counted as failures, and close when this process ends. They are tried again later: another process may have made room.
4. :meth:`ConnectionStore.peek` removes nothing (MSG_PEEK).
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import time
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from sbus_programs.systemd.service_manager import PAIRS
from sbusd.dataplane.socket_closer import hang_up

MAX_IN_PACKET = 250
"""Maximum number of descriptors in one packet; the kernel accepts 253 (SCM_MAX_FD)."""

MOVE_AFTER = 128
"""Connections that are added one by one before all are copied to the other pair: a queue takes about 270 packets."""

RETRY_SECONDS = 5.0
"""Time between two attempts to store connections that could not be stored."""

_SO_PEEK_OFF = 42
"""The offset of the next MSG_PEEK, socket(7); Python does not have it."""

_MARK = struct.Struct("<Q")
_CONNECTION = b"\0"


@dataclass(slots=True)
class _Content:
    """The content of one pair: descriptors, the latest mark (0: none), and whether the process could not receive all descriptors."""

    fds: list[int] = field(default_factory=list)
    mark: int = 0
    is_cut: bool = False


class ConnectionStore:
    """Two socket pairs.

    *live* returns an iterator over the descriptors of all connections to store, oldest first. Connections may come and go while it is in
    use.
    """

    def __init__(self, ends: list[socket.socket], live: Callable[[], Iterable[int]]) -> None:
        """Own the *ends*, input and output of each pair; use :meth:`create` or :meth:`adopt`."""
        self._pairs = [(ends[0], ends[1]), (ends[2], ends[3])]
        self._live = live
        self._mark = 0
        self._singles = 0
        """Connections that were added one by one to the pair in use."""
        self._waiting = 0
        """Connections that are in no pair until the other pair is complete."""
        self._missing: set[int] = set()
        """Descriptors of these, and of those that could not be stored. Some may have been closed since."""
        self._retry_at = 0.0
        self._copying: Iterator[int] | None = None
        """The connections that still have to be copied to the other pair."""
        self._is_emptying = False
        """Whether the other pair still has to be emptied."""
        self.failures = 0
        """How often a connection could not be stored, since the start."""

    @property
    def missing(self) -> int:
        """Number of connections that are not stored now."""
        self._missing &= set(self._live()) if self._missing else set()
        return len(self._missing)

    @classmethod
    def create(cls, live: Callable[[], Iterable[int]]) -> ConnectionStore:
        """Return a new store with the live connections. Raises OSError if descriptors are short."""
        ends: list[socket.socket] = []
        for _ in range(PAIRS):
            ends += socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for each in ends:
            each.setblocking(False)
        store = cls(ends, live)
        if not store.rewrite():
            raise OSError("a new connection store accepts nothing")
        return store

    @classmethod
    def adopt(cls, descriptors: list[int], live: Callable[[], Iterable[int]]) -> ConnectionStore:
        """Return the store of the previous process, with duplicates of its *descriptors*. Raises OSError or ValueError."""
        if len(descriptors) != 2 * PAIRS:
            raise ValueError(f"{len(descriptors)} descriptors instead of {2 * PAIRS}")
        ends: list[socket.socket] = []
        try:
            for fd in descriptors:
                ends.append(_duplicate(fd))
                _check_end(ends[-1])
        except BaseException:
            for end in ends:
                end.close()
            raise
        return cls(ends, live)

    @property
    def descriptors(self) -> list[int]:
        """The four ends. They stay open after this process if another one holds them."""
        return [end.fileno() for pair in self._pairs for end in pair]

    def add(self, fd: int) -> bool:
        """Store the connection *fd*, which must be live already, and return whether that is possible."""
        try:
            _send(self._pairs[0][0], [fd])
        except BlockingIOError:
            # The queue is full. The next steps copy it to the other pair with all live connections.
            self._waiting += 1
            self._missing.add(fd)
            self._singles = MOVE_AFTER
            return True
        except OSError:
            self.failures += 1
            self._missing.add(fd)
            self._retry_at = time.monotonic() + RETRY_SECONDS
            return False
        self._singles += 1
        return True

    def _retry(self) -> None:
        """Store one of the connections that are missing."""
        if not self.missing:
            return
        fd = self._missing.pop()
        try:
            _send(self._pairs[0][0], [fd])
        except OSError as error:
            self._missing.add(fd)
            if isinstance(error, BlockingIOError):
                self._singles = MOVE_AFTER
            self._retry_at = time.monotonic() + RETRY_SECONDS
        else:
            self._singles += 1

    def rewrite(self) -> bool:
        """Store exactly the live connections, and return whether that was possible; if not, the stored ones stay stored."""
        self._copying = None
        _empty(self._pairs[1][1])
        self._is_emptying = False
        before, self._singles = self._mark, 0
        copying = iter(self._live())
        self._copying = copying
        while self._is_copying():
            self._copy(copying)
        if self._mark == before:
            return False
        _empty(self._pairs[1][1])
        self._is_emptying = False
        return True

    @property
    def has_work(self) -> bool:
        """Whether :meth:`step` has work."""
        is_due = bool(self._missing) and time.monotonic() >= self._retry_at
        return self._copying is not None or self._is_emptying or self._singles >= MOVE_AFTER or is_due

    def step(self) -> None:
        """Copy one packet to the other pair, or remove one from it; :attr:`failures` counts connections that could not be stored."""
        if self._copying is not None:
            self._copy(self._copying)
        elif self._is_emptying:
            self._is_emptying = _remove_one(self._pairs[1][1])
        elif self._singles >= MOVE_AFTER:
            # The other pair is empty.
            self._singles = 0
            self._copying = iter(self._live())
        else:
            self._retry()

    def _is_copying(self) -> bool:
        """Return whether connections still have to be copied to the other pair."""
        return self._copying is not None

    def _copy(self, live: Iterator[int]) -> None:
        """Copy some of *live* to the other pair; after the last one, use that pair."""
        input_end, output_end = self._pairs[1]
        packet = list(islice(live, MAX_IN_PACKET))
        try:
            if packet:
                _send(input_end, packet)
            if len(packet) == MAX_IN_PACKET:
                return
            # In the same step: a client that connects between the last packet and the mark would be missing from this pair.
            input_end.send(_MARK.pack(self._mark + 1), socket.MSG_DONTWAIT)
        except OSError:
            self.failures += self._waiting
            self._copying, self._waiting = None, 0
            self._retry_at = time.monotonic() + RETRY_SECONDS
            _empty(output_end)
            return
        self._copying, self._waiting = None, 0
        self._missing.clear()
        self._mark += 1
        self._pairs.reverse()
        self._is_emptying = True

    def peek(self) -> tuple[list[int], bool]:
        """Return the descriptors of all stored connections, each once, and whether some are missing because of RLIMIT_NOFILE.

        Removes nothing; raise RLIMIT_NOFILE before, and call :meth:`rewrite` afterwards. Raises ValueError if no pair is complete.
        """
        contents = [_content_of(output_end) for _, output_end in self._pairs]
        fds = _each_once(fd for content in contents for fd in content.fds)
        self._mark = max(content.mark for content in contents)
        if not self._mark:
            for fd in fds:
                os.close(fd)
            raise ValueError("no part of the connection store is complete")
        if contents[1].mark == self._mark:
            self._pairs.reverse()
        _empty(self._pairs[1][1])
        return fds, any(content.is_cut for content in contents)

    def close(self) -> None:
        """Close the ends of this process."""
        for pair in self._pairs:
            for end in pair:
                end.close()


def _duplicate(fd: int) -> socket.socket:
    """Return a duplicate of a socket. Raises OSError if *fd* is not a socket."""
    duplicate = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    try:
        return socket.socket(fileno=duplicate)
    except OSError:
        os.close(duplicate)
        raise


def _check_end(end: socket.socket) -> None:
    """Make *end* non-blocking. Raises ValueError if it is not an end of such a pair."""
    if (end.family, end.type) != (socket.AF_UNIX, socket.SOCK_SEQPACKET):
        raise ValueError("an end is another kind of socket")
    end.setblocking(False)


def close_stored(end: int) -> int:
    """Close the connections at one end of an unusable store, so that their peers notice, and return their number."""
    closed = 0
    try:
        with _duplicate(end) as output_end:
            while True:
                data, fds, _ = _receive(output_end)
                for fd in fds:
                    hang_up(fd)
                closed += len(fds)
                if not data:
                    return closed
    except OSError:
        # The queue is empty, or the end is not open.
        return closed


def _each_once(fds: Iterable[int]) -> list[int]:
    """Return one descriptor of each socket, and close the others."""
    by_inode: dict[int, int] = {}
    for fd in fds:
        if by_inode.setdefault(os.fstat(fd).st_ino, fd) != fd:
            os.close(fd)
    return list(by_inode.values())


def _content_of(output_end: socket.socket) -> _Content:
    """Return the content of a queue, without removing it."""
    content = _Content()
    output_end.setsockopt(socket.SOL_SOCKET, _SO_PEEK_OFF, 0)
    try:
        while True:
            data, fds, is_cut = _receive(output_end, socket.MSG_PEEK)
            if not data:
                break
            content.fds += fds
            content.is_cut |= is_cut
            if len(data) == _MARK.size:
                (content.mark,) = _MARK.unpack(data)
    except BlockingIOError:
        pass
    finally:
        output_end.setsockopt(socket.SOL_SOCKET, _SO_PEEK_OFF, -1)
    return content


# Not with socket.send_fds and recv_fds: they ignore their flags (Python 3.11).


def _send(input_end: socket.socket, fds: list[int]) -> None:
    """Add descriptors to a queue. Raises OSError."""
    input_end.sendmsg([_CONNECTION], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", fds))], socket.MSG_DONTWAIT)


def _receive(output_end: socket.socket, flags: int = 0) -> tuple[bytes, list[int], bool]:
    """Return the next packet of a queue, its descriptors, and whether some were lost. Raises BlockingIOError if the queue is empty."""
    room = socket.CMSG_LEN(MAX_IN_PACKET * array("i").itemsize)
    data, parts, seen, _ = output_end.recvmsg(_MARK.size, room, flags | socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC)
    fds = array("i")
    for level, kind, part in parts:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(part[: len(part) - len(part) % fds.itemsize])
    return data, fds.tolist(), bool(seen & socket.MSG_CTRUNC)


def _empty(output_end: socket.socket) -> None:
    """Empty a queue."""
    while _remove_one(output_end):
        pass


def _remove_one(output_end: socket.socket) -> bool:
    """Remove one packet from a queue, and return whether there was one.

    The kernel closes the descriptors in it, because the call has no buffer for them; so this works without free descriptors.
    """
    try:
        return bool(output_end.recv(_MARK.size, socket.MSG_DONTWAIT))
    except BlockingIOError:
        return False
