"""A hostile user's sockets: never waiting for longer than an attack may, and surviving whatever the bus answers."""

from __future__ import annotations

import itertools
import select
import socket
from collections.abc import Iterator, Sequence

from sbus.protocol import controls
from sbus.protocol.packets import MAX_PACKET_BYTES
from tests.support.frames import FrameEnd, frame

TIMEOUT_SECONDS = 15.0
SEND_BUFFER_BYTES = 4 << 20
"""Asked for; the kernel gives what net.core.wmem_max allows."""


def connect(path: str, *packets: bytes) -> socket.socket:
    """Return a connection that has sent *packets* and knows that the bus has handled them.

    Raises:
        ConnectionError: the bus has closed it.
        TimeoutError: no answer in time.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.settimeout(TIMEOUT_SECONDS)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
    try:
        sock.connect(path)
        for packet in packets:
            sock.send(packet)
        barrier(sock)
    except BaseException:
        sock.close()
        raise
    return sock


def stream_address(path: str) -> str:
    """Return the address of the stream socket of the bus whose other socket has the address *path*."""
    return path + "-stream"


def connect_stream(path: str, *packets: bytes) -> FrameEnd:
    """Return a connection to the stream socket of the bus at *path*, which does not block. It has sent *packets*, and has got the response
    to the ping after them.

    Raises:
        ConnectionError: the bus has closed it.
        TimeoutError: no response in time.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(TIMEOUT_SECONDS)
    try:
        sock.connect(stream_address(path))
        sock.sendall(b"".join(map(frame, (*packets, b"CMSG " + controls.PING + b"\0hostile"))))
        received = b""
        while b"hostile" not in received:
            received += _received(sock)
    except BaseException:
        sock.close()
        raise
    sock.setblocking(False)
    return FrameEnd(sock)


def _received(sock: socket.socket) -> bytes:
    """Return the next bytes of a stream. Raises ConnectionError at its end."""
    part = sock.recv(MAX_PACKET_BYTES)
    if not part:
        raise ConnectionResetError("the bus has closed the connection")
    return part


def barrier(sock: socket.socket) -> None:
    """Wait until the bus has handled all that was sent, or refuses to answer. Raises ConnectionError at its end."""
    answers = (b"CMSG !/bus/ping\0hostile", b"CMSG !/bus/error\0EDQUOT")
    sock.send(b"CMSG " + controls.PING + b"\0hostile")
    while not (packet := sock.recv(MAX_PACKET_BYTES)).startswith(answers):
        if not packet:
            raise ConnectionResetError("the bus has closed the connection")


def send_many(socks: Sequence[socket.socket], packets: Iterator[bytes]) -> Iterator[int]:
    """Send *packets* on *socks*, as fast as their buffers take them; yield how many were sent since the last time."""
    for sock in socks:
        sock.setblocking(False)
    poller = select.poll()
    by_fd = {sock.fileno(): sock for sock in socks}
    for fd in by_fd:
        poller.register(fd, select.POLLOUT)
    packet = next(packets, None)
    while by_fd and packet is not None:
        for fd, events in poller.poll(TIMEOUT_SECONDS * 1000):
            sent = 0
            try:
                if events & (select.POLLHUP | select.POLLERR):
                    raise ConnectionResetError
                while packet is not None and sent < 256:
                    by_fd[fd].send(packet)
                    sent += 1
                    packet = next(packets, None)
            except BlockingIOError:
                pass
            except ConnectionError:
                poller.unregister(fd)
                by_fd.pop(fd).close()
            yield sent


def numbered(head: bytes, tail: bytes = b"") -> Iterator[bytes]:
    """Return packets without end: *head*, a number, *tail*."""
    return (b"%b%d%b" % (head, number, tail) for number in itertools.count())


def until_refused(path: str, limit: int) -> Iterator[socket.socket]:
    """Yield connections until the bus or the kernel refuses one, or there are *limit*."""
    for _ in range(limit):
        try:
            yield connect(path)
        except OSError:
            return
