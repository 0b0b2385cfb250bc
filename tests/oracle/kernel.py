"""The model behind real socket pairs: the kernel says how much room each client has, as it does for the compiled switch.

The model itself has no sockets. This adapter alone has: it gives the model what the kernel has received, and offers the kernel what the
model delivers. The two switches that a test compares so meet the same kernel, and no test needs to know the size of its buffers.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import select
import socket
import termios
from dataclasses import dataclass

from sbus.protocol.keys import KeySpace
from sbus.protocol.packets import LENGTH_BYTES, MAX_PACKET_BYTES
from sbus_programs.config.settings import LimitSettings
from sbusd.dataplane.contract import Sink
from tests.oracle.link import Outcome, Ready, Received, Stream
from tests.oracle.model import Model

SEND_BUFFER_BYTES = 212_992
_READABLE = select.EPOLLIN | select.EPOLLRDHUP
_HUNG_UP = select.EPOLLHUP | select.EPOLLERR
_NO_ROOM = frozenset({errno.EAGAIN, errno.ENOBUFS, errno.ENOMEM})


@dataclass(slots=True, eq=False)
class SocketLink:
    """One client at the other end of a socket."""

    socket: socket.socket
    epoll: select.epoll
    interest: int = _READABLE
    is_watched: bool = True
    is_stream: bool = False

    def __post_init__(self) -> None:
        self.is_stream = self.socket.type == socket.SOCK_STREAM

    def register(self, epoll: select.epoll) -> None:
        """Be watched by *epoll*."""
        self.epoll = epoll
        self.epoll.register(self.socket, _READABLE)

    def offer(self, packet: bytes) -> Outcome:
        """Send one packet."""
        try:
            self.socket.send(packet, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except OSError as error:
            if error.errno in _NO_ROOM:
                return Outcome.FULL
            return Outcome.TOO_LONG if error.errno == errno.EMSGSIZE else Outcome.GONE
        return Outcome.TAKEN

    def offer_bytes(self, data: bytes) -> int | None:
        """Send as much of *data* as the socket takes."""
        try:
            return self.socket.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except OSError as error:
            return 0 if error.errno in _NO_ROOM else None

    def read(self) -> Received | Stream:
        """Receive one packet."""
        return self._read_frame() if self.is_stream else self._read_packet()

    def _read_frame(self) -> Received | Stream:
        """Receive the packet of one frame, which the client has sent with one call."""
        try:
            length = self.socket.recv(LENGTH_BYTES, socket.MSG_DONTWAIT)
        except (BlockingIOError, ConnectionResetError):
            return Stream.EMPTY
        return Received(self.socket.recv(int.from_bytes(length, "little"), socket.MSG_DONTWAIT)) if length else self._end()

    def _read_packet(self) -> Received | Stream:
        """Receive one packet of a socket that has packets."""
        try:
            data, _, flags, _ = self.socket.recvmsg(MAX_PACKET_BYTES, 0, socket.MSG_DONTWAIT)
        except (BlockingIOError, ConnectionResetError):
            return Stream.EMPTY  # a client that closes before it has read everything leaves a reset in front of the packets that it sent
        return Received(data, bool(flags & socket.MSG_TRUNC)) if data or not self._hang_up_events() else self._end()

    def _hang_up_events(self) -> int:
        """Return what poll(2) reports of the client's end."""
        poll = select.poll()
        poll.register(self.socket, select.POLLRDHUP)
        return sum(events for _, events in poll.poll(0))

    def _end(self) -> Stream:
        """Return how the client has ended."""
        return Stream.CLOSED if self._hang_up_events() & select.POLLHUP else Stream.SHUT

    def watch(self, *, reads: bool, writes: bool, hang_up: bool) -> None:
        """Set what epoll(7) reports."""
        interest = (_READABLE if reads else 0) | (select.EPOLLOUT if writes else 0)
        if hang_up and not self.is_watched:
            self.epoll.register(self.socket, interest)
        elif self.is_watched and not hang_up:
            self.epoll.unregister(self.socket)
        elif hang_up and interest != self.interest:
            self.epoll.modify(self.socket, interest)
        self.interest, self.is_watched = interest, hang_up

    def unread(self) -> int:
        """Return what the kernel counts as not read by the client."""
        return int.from_bytes(fcntl.ioctl(self.socket, termios.TIOCOUTQ, bytes(4)), "little")

    def has_more(self) -> bool:
        """Return whether bytes of the client wait. The end of its packets has none."""
        return bool(int.from_bytes(fcntl.ioctl(self.socket, termios.FIONREAD, bytes(4)), "little"))

    def close(self) -> None:
        """Close the socket. The client can still read what it was sent: what it has sent itself is read away first."""
        if self.is_watched:
            self.epoll.unregister(self.socket)
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(OSError):
            while self.socket.recv(1, socket.MSG_DONTWAIT):
                pass
        self.socket.close()


class SocketModel(Model):
    """The model with clients on real sockets. It has the methods of :class:`sbusd.dataplane.contract.Switch` that the harness calls."""

    def __init__(self, sink: Sink, keyspace: KeySpace, limits: LimitSettings, refusals: tuple[bytes, ...]) -> None:
        super().__init__(sink, keyspace, limits, refusals)
        self._epoll = select.epoll()
        self._links: dict[int, SocketLink] = {}

    def adopt(self, fd: int, connection: int) -> None:
        """Take over a connected socket."""
        link = SocketLink(socket.socket(fileno=fd), self._epoll)
        link.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        link.register(self._epoll)
        self._links[connection] = link
        self.connect(connection, link)

    def turn(self, timeout_ms: int) -> int:
        """Take one turn with what the kernel reports, in its order."""
        self._links = {number: self._links[number] for number in self.connections()}
        numbers = {link.socket.fileno(): number for number, link in self._links.items()}
        found = self._epoll.poll(timeout_ms / 1000)
        return self.take_turn(
            [Ready(numbers[fd], bool(events & _READABLE), bool(events & select.EPOLLOUT), bool(events & _HUNG_UP)) for fd, events in found]
        )

    def renew(self) -> None:
        """Watch all sockets from scratch, in the order of their numbers, as a switch does that takes them over in a restart."""
        self.groups.served.clear()
        for connection in self._connections.values():
            connection.out.renew()
        self._epoll.close()
        self._epoll = select.epoll()
        links = [self._links[number] for number in self.connections()]
        for link in links:
            link.register(self._epoll)
        for link in links:
            if not link.is_watched:
                self._epoll.unregister(link.socket)
            elif link.interest != _READABLE:
                self._epoll.modify(link.socket, link.interest)
        self.read_all_again()

    def close(self) -> None:
        """Close every connection."""
        for number in self.connections():
            self._links[number].close()
        self._epoll.close()
