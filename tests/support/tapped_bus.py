"""A bus that only supports a tap: it replies to the requests of a recorder, and sends the records of a test."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.records import NOON

FEATURES = b"ping\ntap\nwhoami"
OWN_ID = 3
TIMEOUT_SECONDS = 30.0


def fact(kind: str, /, **members: object) -> dict[str, object]:
    """Return what the tap says of *kind*, by connection 7 of user 1000 at noon, unless *members* say otherwise."""
    return {"kind": kind, "time": NOON, "id": 7, "cred": "!/cred/100/1000/4321", **members}


def tap_packet(reported: dict[str, object], message: bytes = b"") -> bytes:
    """Return the packet that tells *reported*; *message* is the MSG packet behind it."""
    return b"CMSG !/tap\0" + json.dumps(reported, separators=(",", ":")).encode() + b"\n" + message


def message_packet(key: bytes = b"a/b", payload: bytes = b"x", **members: object) -> bytes:
    """Return what the tap says of a message."""
    reported = {"recipients": 2, "queued": 1, "discarded": 0, **members}
    return tap_packet(fact("message", **reported), b"MSG %b\0%b" % (key, payload))


class TappedBus:
    """A server at ``path`` for one tap at a time. ``refusal`` is an error that answers the demand, ``features`` what it can do."""

    def __init__(self, path: Path, *, features: bytes = FEATURES, refusal: bytes | None = None) -> None:
        self.path = path
        self._features = features
        self._refusal = refusal
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(path))
        self._listener.listen()
        self._listener.settimeout(TIMEOUT_SECONDS)
        self._client: socket.socket | None = None
        self._is_closed = False
        self._accepting: list[threading.Thread] = []
        self.demand = b""
        self.wants_batches = False
        self.pages: list[bytes] = []
        """What it answers to questions for connections."""
        self.asked: list[bytes] = []
        """Places behind which subscriptions were asked for: see :meth:`answer_question`."""

    def accept(self, *early: bytes) -> None:
        """Accept a connection for a tap, and reply to its first requests; *early* packets of the tap precede the last reply.

        Other connections end: of programs that only look whether there is a bus, and of recorders that have been killed, which serve calls.
        """
        self.demand = b""
        while not self.demand:
            if self._client is not None:
                self.hang_up()
            self._client, _ = self._listener.accept()
            if self._is_closed:
                raise OSError("closed")
            self._client.settimeout(TIMEOUT_SECONDS)
            # A recorder that has been refused goes without waiting for the rest.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self._serve(self._client, early)

    def _serve(self, client: socket.socket, early: tuple[bytes, ...]) -> None:
        """Reply to *client* until it is to receive what the tap says, or has ended."""
        while packet := client.recv(1 << 20):
            for answer in self._answers(packet, early):
                client.send(answer)
            if packet.startswith(b"CMSG !/bus/ping\0") and self.demand and not self.pages:
                return

    def _answers(self, packet: bytes, early: tuple[bytes, ...]) -> list[bytes]:
        """Return what this bus says to *packet*."""
        if packet == b"CMSG !/bus/features":
            return [b"CMSG !/bus/features\0" + self._features]
        if packet.startswith(b"CMSG !/bus/connections") and self.pages:
            return [b"CMSG !/bus/connections\0" + self.pages.pop(0)]
        if packet == b"CMSG !/conn/whoami":
            return [b"CMSG !/conn/whoami\0!/conn/%d/" % OWN_ID]
        if packet.startswith(b"CMSG !/bus/ping\0"):
            return [*early, packet]
        if packet == b"CMSG batch/on":
            self.wants_batches = True
            return []
        if packet.startswith(b"CMSG tap/on"):
            self.demand = packet
        return [] if self._refusal is None else [b"CMSG !/bus/error\0" + self._refusal]

    def accept_soon(self, *early: bytes) -> threading.Thread:
        """Do :meth:`accept` in a thread; join it. It ends when this is closed."""
        thread = threading.Thread(target=self._accept_until_closed, args=early, daemon=True)
        thread.start()
        self._accepting.append(thread)
        return thread

    def _accept_until_closed(self, *early: bytes) -> None:
        """Do :meth:`accept`, or end when this is closed."""
        try:
            self.accept(*early)
        except OSError:
            if not self._is_closed:
                raise

    def tell(self, *packets: bytes) -> None:
        """Send packets to the tap."""
        assert self._client is not None
        for packet in packets:
            self._client.send(packet)

    def answer_question(self, subscriptions: list[dict[str, object]], following: str | None = None) -> None:
        """Wait for a question for subscriptions, and answer it with these."""
        head, _, after = self.next_question().partition(b"\0")
        assert head == b"CMSG !/bus/subscriptions"
        self.asked.append(after)
        page = {"after": after.decode(), "subscriptions": subscriptions, "next": following}
        self.tell(b"CMSG !/bus/subscriptions\0" + json.dumps(page).encode())

    def next_question(self) -> bytes:
        """Return the next packet of the recorder's."""
        assert self._client is not None
        return self._client.recv(1 << 20)

    def end(self) -> None:
        """Give the answer that a recorder waits for when it ends, if there is one."""
        if self._client is not None:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self.tell(b"CMSG !/bus/ping\0end")

    def end_when_asked(self) -> None:
        """Wait for the last ping of a recorder that ends, and answer it: an answer that comes before is read as any packet."""
        while packet := self.next_question():
            if packet == b"CMSG !/bus/ping\0end":
                self.end()
                return

    def hang_up(self) -> None:
        """End the connection, as a bus that goes does."""
        assert self._client is not None
        self._client.close()
        self._client = None

    def close(self) -> None:
        """Close everything, and remove the path."""
        self._is_closed = True
        if (client := self._client) is not None:
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)
        for thread in self._accepting:
            if thread.is_alive():
                self._wake_acceptor()
            thread.join(TIMEOUT_SECONDS)
        for each in (self._client, self._listener):
            if each is not None:
                each.close()
        self.path.unlink(missing_ok=True)

    def _wake_acceptor(self) -> None:
        """End accept(2) of a thread: shutdown(2) of a listening socket does not."""
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as waker:
            waker.connect(str(self.path))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
