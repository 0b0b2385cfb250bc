"""A client that is only a socket, like a C program or socat."""

from __future__ import annotations

import itertools
import socket

from sbus.protocol import controls
from sbus.protocol.packets import MAX_PACKET_BYTES

TIMEOUT_SECONDS = 60.0
"""The timeout of every receive; a test that passes takes far less."""

_tokens = itertools.count(1)


class RawClient:
    """A connected SEQPACKET socket with names for what is sent. Every wait ends by TimeoutError."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        sock.settimeout(TIMEOUT_SECONDS)

    def close(self) -> None:
        """Close the socket; more than once is allowed."""
        self.socket.close()

    def send(self, packet: bytes) -> None:
        """Send one packet as it is."""
        sent = self.socket.send(packet)
        assert sent == len(packet)

    def receive(self) -> bytes:
        """Return the next packet, or no bytes when the bus has closed the connection."""
        try:
            return self.socket.recv(MAX_PACKET_BYTES + 1)
        except ConnectionResetError:  # closed by the bus with packets of ours unread
            return b""

    def subscribe(self, pattern: bytes) -> None:
        """Send SUB; call :meth:`barrier` to know that it has been handled."""
        self.send(b"SUB " + pattern)

    def unsubscribe(self, pattern: bytes) -> None:
        """Send UNSUB."""
        self.send(b"UNSUB " + pattern)

    def publish(self, key: bytes, payload: bytes = b"") -> None:
        """Send MSG."""
        self.send(message(key, payload))

    def control(self, name: bytes, payload: bytes | None = None) -> None:
        """Send CMSG, without the NUL when there is no *payload*."""
        self.send(b"CMSG " + name + (b"" if payload is None else b"\0" + payload))

    def ask(self, name: bytes, payload: bytes | None = None) -> bytes:
        """Send CMSG and return the payload of its answer, which must be the next packet."""
        self.control(name, payload)
        answer = self.receive()
        head = b"CMSG " + name + b"\0"
        assert answer.startswith(head), f"asked {name!r}, got {answer!r}"
        return answer.removeprefix(head)

    def barrier(self) -> list[bytes]:
        """Wait until the bus has handled all sent packets, and return the packets that arrived before its confirmation.

        An empty list proves that nothing was delivered; no test waits for a time to pass.
        """
        token = b"barrier-%d" % next(_tokens)
        self.control(controls.PING, token)
        end = b"CMSG " + controls.PING + b"\0" + token
        before: list[bytes] = []
        while (packet := self.receive()) != end:
            assert packet, f"the bus closed the connection; before that came {before!r}"
            before.append(packet)
        return before

    def receive_to_end(self) -> list[bytes]:
        """Return all packets until the bus closes the connection."""
        return list(iter(self.receive, b""))


def message(key: bytes, payload: bytes = b"") -> bytes:
    """Return the MSG packet."""
    return b"MSG " + key + b"\0" + payload


def error_code(packet: bytes) -> str:
    """Return the name of the error in *packet*, such as ``EACCES``."""
    head = b"CMSG " + controls.ERROR + b"\0"
    assert packet.startswith(head), f"not an error: {packet!r}"
    return packet.removeprefix(head).split(b" ")[0].decode()
