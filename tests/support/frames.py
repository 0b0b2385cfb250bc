"""The frames of a stream socket, as a client sends and receives them. Spec: sbus-protocol(7) §1."""

from __future__ import annotations

import socket
import struct

from sbus.protocol.packets import LENGTH_BYTES
from tests.support.wire import RawClient

LENGTH = struct.Struct("<I")
RECEIVE_BYTES = 1 << 16


def frame(packet: bytes) -> bytes:
    """Return a packet as a frame."""
    return LENGTH.pack(len(packet)) + packet


class FrameEnd:
    """A client's end of a non-blocking stream socket, whose owner closes it."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self._received = bytearray()
        self._unsent = b""

    def send(self, packet: bytes) -> None:
        """Send a packet; what the socket does not take is sent before the next one. Raises BlockingIOError if it takes nothing."""
        self._unsent = self._unsent[self.socket.send(self._unsent) :] if self._unsent else b""
        if self._unsent:
            raise BlockingIOError
        data = frame(packet)
        self._unsent = data[self.socket.send(data) :]

    def receive(self, at_most: int = 1 << 30) -> list[bytes]:
        """Return the packets that have arrived, at most *at_most*; b"" means the end of the stream."""
        packets: list[bytes] = []
        while len(packets) < at_most:
            packet = self._next()
            if packet is not None:
                packets.append(packet)
                continue
            try:
                data = self.socket.recv(RECEIVE_BYTES)
            except BlockingIOError:
                break
            except ConnectionResetError:
                packets.append(b"reset")
                continue
            if not data:
                packets.append(b"")
                break
            self._received += data
        return packets

    def receive_part(self, size: int) -> list[bytes]:
        """Receive at most *size* bytes, and return the packets that are complete now. Raises what recv(2) fails with."""
        self._received += self.socket.recv(size)
        packets = []
        while (packet := self._next()) is not None:
            packets.append(packet)
        return packets

    @property
    def partial(self) -> bytes:
        """The beginning of a frame whose end has not arrived."""
        return bytes(self._received)

    def _next(self) -> bytes | None:
        """Return the next packet whose frame is complete, or None."""
        if len(self._received) < LENGTH_BYTES:
            return None
        end = LENGTH_BYTES + LENGTH.unpack_from(self._received)[0]
        if len(self._received) < end:
            return None
        packet = bytes(self._received[LENGTH_BYTES:end])
        del self._received[:end]
        return packet


class StreamClient(RawClient):
    """A client whose socket is a stream. Every wait ends by TimeoutError."""

    @classmethod
    def connect(cls, address: str | bytes) -> StreamClient:
        """Return a client that is connected to *address*."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.connect(address)
        return cls(sock)

    def send(self, packet: bytes) -> None:
        """Send one packet as a frame."""
        self.socket.sendall(frame(packet))

    def receive(self) -> bytes:
        """Return the packet of the next frame, or no bytes when the bus has closed the connection."""
        (length,) = LENGTH.unpack(head) if len(head := self._receive(LENGTH_BYTES)) == LENGTH_BYTES else (0,)
        return self._receive(length)

    def _receive(self, length: int) -> bytes:
        """Return the next bytes, fewer than *length* at the end of the stream."""
        data = b""
        while len(data) < length:
            try:
                part = self.socket.recv(length - len(data))
            except ConnectionResetError:
                continue  # closed by the bus with bytes of ours unread; what it has sent comes next
            if not part:
                break
            data += part
        return data
