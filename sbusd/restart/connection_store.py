"""A place for connections outside every process: their descriptors lie in the queue of a socket pair whose ends others hold too.

The service manager compares each descriptor that it is given to keep with all that it has, which takes seconds for some thousand; it
is given four, the ends of two pairs, and each connection costs one packet with its descriptor in it (SCM_RIGHTS). Source: unix(7).

Rules:

1. One pair is in use. When its queue is almost full, all live connections are put into the other, a few hundred in a packet, behind
   them a mark that it is complete, and then the first is emptied. Of two marks the later holds. So a process may be killed at any
   instant: one pair has all connections, and which one is known. A packet is a step: the bus serves its clients between them. If the
   queue becomes full in that time, clients that connect are in no pair until the other one is complete.
2. A descriptor that lies here keeps its connection open: to end it is to shutdown(2) it, which reaches the peer whoever holds what.
3. Of one user's descriptors at most RLIMIT_NOFILE may lie in queues, unless the process has privileges. Who cannot be parked is
   counted: for it, the end of this process is the end.
4. Who looks what is here takes nothing out (MSG_PEEK).
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from sbusd.dataplane.closer import hang_up
from sbusd.systemd.fdstore import PAIRS

MAX_IN_PACKET = 250
"""Descriptors in one packet; the kernel takes 253 (SCM_MAX_FD)."""

MOVE_AFTER = 128
"""Connections that are parked one by one before all are put into the other pair: a queue takes some 270 packets."""

_SO_PEEK_OFF = 42
"""Where the next MSG_PEEK looks, socket(7); not in Python."""

_MARK = struct.Struct("<Q")
_PARKED = b"\0"


@dataclass(slots=True)
class _Sight:
    """What lies in one pair: descriptors, the latest mark (0: none), and whether the kernel had no room for all descriptors."""

    fds: list[int] = field(default_factory=list)
    mark: int = 0
    is_cut: bool = False


class ParkingLot:
    """Two socket pairs.

    *live* returns an iterator over the descriptors of all connections that are to be kept, in the order in which they came. Connections
    may come and go while it is in use.
    """

    def __init__(self, ends: list[socket.socket], live: Callable[[], Iterable[int]]) -> None:
        """Take over the *ends*, in and out of each pair; use :meth:`create` or :meth:`adopt`."""
        self._pairs = [(ends[0], ends[1]), (ends[2], ends[3])]
        self._live = live
        self._mark = 0
        self._singles = 0
        """Connections that were parked one by one in the pair in use."""
        self._waiting = 0
        """Connections that are in no pair until the other one is complete."""
        self._moving: Iterator[int] | None = None
        """What is still to be put into the other pair."""
        self._is_emptying = False
        """Whether the other pair is still to be emptied."""
        self.unparked = 0
        """How many connections could not be parked."""

    @classmethod
    def create(cls, live: Callable[[], Iterable[int]]) -> ParkingLot:
        """Return an empty one. Raises OSError if there are no descriptors."""
        ends: list[socket.socket] = []
        for _ in range(PAIRS):
            ends += socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for each in ends:
            each.setblocking(False)
        lot = cls(ends, live)
        if not lot.park_all():
            raise OSError("a new parking lot takes nothing")
        return lot

    @classmethod
    def adopt(cls, descriptors: list[int], live: Callable[[], Iterable[int]]) -> ParkingLot:
        """Return that of an earlier process, from duplicates of its *descriptors*. Raises OSError or ValueError if they are none."""
        if len(descriptors) != 2 * PAIRS:
            raise ValueError(f"{len(descriptors)} ends, and not {2 * PAIRS}")
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
        """The four ends, which outlive this process where others hold them."""
        return [end.fileno() for pair in self._pairs for end in pair]

    def park(self, fd: int) -> bool:
        """Keep a connection beyond this process, and return whether that is possible. *fd* must be live already."""
        try:
            _send(self._pairs[0][0], [fd])
        except BlockingIOError:
            # The queue is full: it is put into the other pair with all the others, in the next steps.
            self._waiting += 1
            self._singles = MOVE_AFTER
            return True
        except OSError:
            self.unparked += 1
            return False
        self._singles += 1
        return True

    def park_all(self) -> bool:
        """Keep all live connections, and nothing else, and return whether that was possible; if not, what was kept is kept still."""
        self._moving = None
        _empty(self._pairs[1][1])
        self._is_emptying = False
        before, self._singles = self._mark, 0
        moving = iter(self._live())
        self._moving = moving
        while self._is_moving():
            self._move(moving)
        if self._mark == before:
            return False
        _empty(self._pairs[1][1])
        self._is_emptying = False
        return True

    @property
    def has_work(self) -> bool:
        """Whether :meth:`step` has something to do."""
        return self._moving is not None or self._is_emptying or self._singles >= MOVE_AFTER

    def step(self) -> None:
        """Put one packet into the other pair, or take one out of it; ``unparked`` counts those that could not be kept."""
        if self._moving is not None:
            self._move(self._moving)
        elif self._is_emptying:
            self._is_emptying = _take_one(self._pairs[1][1])
        elif self._singles >= MOVE_AFTER:
            # The other pair is empty.
            self._singles = 0
            self._moving = iter(self._live())

    def _is_moving(self) -> bool:
        """Return whether connections are still to be put into the other pair."""
        return self._moving is not None

    def _move(self, live: Iterator[int]) -> None:
        """Put some of *live* into the other pair; behind the last, use that pair."""
        entrance, outlet = self._pairs[1]
        packet = list(islice(live, MAX_IN_PACKET))
        try:
            if packet:
                _send(entrance, packet)
            if len(packet) == MAX_IN_PACKET:
                return
            # At once: a client that connects between the last packet and the mark would be missing from this pair.
            entrance.send(_MARK.pack(self._mark + 1), socket.MSG_DONTWAIT)
        except OSError:
            self.unparked += self._waiting
            self._moving, self._waiting = None, 0
            _empty(outlet)
            return
        self._moving, self._waiting = None, 0
        self._mark += 1
        self._pairs.reverse()
        self._is_emptying = True

    def look(self) -> tuple[list[int], bool]:
        """Return descriptors of all that lies here, each connection once, and whether some are missing for want of descriptors.

        Nothing is taken out; :meth:`park_all` follows. Raise RLIMIT_NOFILE before. Raises ValueError if no pair is complete.
        """
        sights = [_look_into(outlet) for _, outlet in self._pairs]
        fds = _each_once(fd for sight in sights for fd in sight.fds)
        self._mark = max(sight.mark for sight in sights)
        if not self._mark:
            for fd in fds:
                os.close(fd)
            raise ValueError("no part of the parking lot is complete")
        if sights[1].mark == self._mark:
            self._pairs.reverse()
        _empty(self._pairs[1][1])
        return fds, any(sight.is_cut for sight in sights)

    def close(self) -> None:
        """Close this process's ends."""
        for pair in self._pairs:
            for end in pair:
                end.close()


def _duplicate(fd: int) -> socket.socket:
    """Return a duplicate of a socket. Raises OSError if it is none."""
    duplicate = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    try:
        return socket.socket(fileno=duplicate)
    except OSError:
        os.close(duplicate)
        raise


def _check_end(end: socket.socket) -> None:
    """Make an end usable. Raises ValueError if it is none."""
    if (end.family, end.type) != (socket.AF_UNIX, socket.SOCK_SEQPACKET):
        raise ValueError("an end is another kind of socket")
    end.setblocking(False)


def close_parked(end: int) -> int:
    """Close what lies behind one end of a lot that cannot be used, so that peers see the end; return how many connections."""
    closed = 0
    try:
        with _duplicate(end) as outlet:
            while True:
                data, fds, _ = _receive(outlet)
                for fd in fds:
                    hang_up(fd)
                closed += len(fds)
                if not data:
                    return closed
    except OSError:
        # Nothing more, or no such socket: then nothing lies behind it.
        return closed


def _each_once(fds: Iterable[int]) -> list[int]:
    """Return one of the descriptors of each socket, and close the others."""
    by_inode: dict[int, int] = {}
    for fd in fds:
        if by_inode.setdefault(os.fstat(fd).st_ino, fd) != fd:
            os.close(fd)
    return list(by_inode.values())


def _look_into(outlet: socket.socket) -> _Sight:
    """Return what lies in a queue, without taking it out."""
    sight = _Sight()
    outlet.setsockopt(socket.SOL_SOCKET, _SO_PEEK_OFF, 0)
    try:
        while True:
            data, fds, is_cut = _receive(outlet, socket.MSG_PEEK)
            if not data:
                break
            sight.fds += fds
            sight.is_cut |= is_cut
            if len(data) == _MARK.size:
                (sight.mark,) = _MARK.unpack(data)
    except BlockingIOError:
        pass
    finally:
        outlet.setsockopt(socket.SOL_SOCKET, _SO_PEEK_OFF, -1)
    return sight


# Not by socket.send_fds and recv_fds: they ignore their flags (Python 3.11).


def _send(entrance: socket.socket, fds: list[int]) -> None:
    """Put descriptors into a queue. Raises OSError."""
    entrance.sendmsg([_PARKED], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", fds))], socket.MSG_DONTWAIT)


def _receive(outlet: socket.socket, flags: int = 0) -> tuple[bytes, list[int], bool]:
    """Return the next packet of a queue, its descriptors, and whether some were lost. Raises BlockingIOError if there is none."""
    room = socket.CMSG_LEN(MAX_IN_PACKET * array("i").itemsize)
    data, parts, seen, _ = outlet.recvmsg(_MARK.size, room, flags | socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC)
    fds = array("i")
    for level, kind, part in parts:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(part[: len(part) - len(part) % fds.itemsize])
    return data, fds.tolist(), bool(seen & socket.MSG_CTRUNC)


def _empty(outlet: socket.socket) -> None:
    """Throw away what lies in a queue."""
    while _take_one(outlet):
        pass


def _take_one(outlet: socket.socket) -> bool:
    """Throw away one packet of a queue, and return whether there was one.

    Without room for descriptors the kernel drops them, and none are needed to receive them.
    """
    try:
        return bool(outlet.recv(_MARK.size, socket.MSG_DONTWAIT))
    except BlockingIOError:
        return False
