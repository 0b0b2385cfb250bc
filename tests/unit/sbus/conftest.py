"""A bus that does as the test says: one thread for each client, packets answered in order, and a gate to hold it up."""

from __future__ import annotations

import contextlib
import queue
import select
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sbus.protocol.keys import pattern_matches
from sbus.protocol.packets import Control, Publish, Subscribe, Unsubscribe, is_batch, join_batch, parse_batch, parse_packet
from tests.support.minibus import MiniBus
from tests.support.service_threads import ServiceThreads

WAIT_SECONDS = 20.0
"""When what has not come is a failure; no test waits that long when it passes."""

WHOAMI = b"!/cred/1/2/3"


class Peer:
    """The bus's end of one connection. While ``gate`` is clear it reads nothing.

    ``received`` has the packets, those in batches one by one; ``batches`` says how many were in each batch.
    """

    def __init__(self, sock: socket.socket, refusals: dict[bytes, bytes], *, takes_batches: bool, knows_pacing: bool) -> None:
        self.socket = sock
        self.gate = threading.Event()
        self.gate.set()
        self.received: list[bytes] = []
        self.batches: list[int] = []
        self.takes_batches = takes_batches
        self.knows_pacing = knows_pacing
        self.patterns: list[bytes] = []
        self.refusals = refusals
        self.thread = threading.Thread(target=self._serve)
        self.thread.start()

    def say(self, *packets: bytes) -> None:
        """Send packets of the test's own."""
        for packet in packets:
            self.socket.send(packet)

    def say_together(self, *packets: bytes) -> None:
        """Send packets of the test's own in one batch."""
        self.socket.send(join_batch(packets))

    def hang_up(self) -> None:
        """End the connection; the client's packets that are unread are lost."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.gate.set()
        self.thread.join(WAIT_SECONDS)
        self.socket.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while self._has_more() and self.gate.wait() and (data := self.socket.recv(500_000)):
                # A packet that was read while the gate closed waits behind it.
                self.gate.wait()
                packets = list(parse_batch(data)) if self.takes_batches and is_batch(data) else [data]
                if packets != [data]:
                    self.batches.append(len(packets))
                for packet in packets:
                    self.received.append(packet)
                    self._handle(packet)

    def _has_more(self) -> bool:
        """Wait for a packet, and leave it in the socket: a closed gate must not let one through."""
        return bool(select.select([self.socket], [], [])[0])

    def _handle(self, data: bytes) -> None:
        match parse_packet(data):
            case Subscribe(pattern) if pattern in self.refusals:
                self._refuse(self.refusals[pattern])
            case Subscribe(pattern):
                self.patterns.append(pattern)
            case Unsubscribe(pattern):
                if pattern in self.patterns:
                    self.patterns.remove(pattern)
            case Publish(key) if key.startswith(b"!/") and not key.startswith(b"!/cred/"):
                self._refuse(b"EPERM " + key + b" is reserved")
            case Publish(key):
                if any(pattern_matches(pattern, key) for pattern in self.patterns):
                    self.say(data)
            case Control(key, payload):
                self._answer(key, payload or b"")

    def _answer(self, key: bytes, payload: bytes) -> None:
        if key == b"!/bus/ping":
            self.say(b"CMSG !/bus/ping\0" + payload)
        elif key == b"!/cred/whoami":
            self.say(b"CMSG !/cred/whoami\0" + WHOAMI)
        elif key == b"!/bus/stats":
            self.say(b"CMSG !/bus/stats\0" + payload)
        elif key == b"!/bus/features" and (self.takes_batches or self.knows_pacing):
            known = {b"batch": self.takes_batches, b"pace": self.knows_pacing, b"ping": True}
            self.say(b"CMSG !/bus/features\0" + b"\n".join(name for name in known if known[name]))
        elif key.startswith(b"!/") and not key.startswith((b"!/from/", b"!/to/")):
            self._refuse(b"ENOSYS unknown control " + key)

    def _refuse(self, said: bytes) -> None:
        self.say(b"CMSG !/bus/error\0" + said)
        if said.startswith((b"EACCES", b"EPROTO")):
            self.socket.shutdown(socket.SHUT_RDWR)


class FakeBus:
    """A listening socket, and a :class:`Peer` for each client in the order of their coming."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.address = str(path)
        self.refusals: dict[bytes, bytes] = {}
        self.takes_batches = False
        """Whether connections that are made from now on take batches."""
        self.knows_pacing = False
        """Whether they can be paced."""
        self.peers: queue.Queue[Peer] = queue.Queue()
        self._all: list[Peer] = []
        self.listen()

    def listen(self) -> None:
        """Begin to accept."""
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(self.address)
        self._listener.listen(16)
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()

    def stop_listening(self) -> None:
        """Go away: connecting fails until :meth:`listen`. Connections stay."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(WAIT_SECONDS)
        self._listener.close()
        self.path.unlink()

    def peer(self) -> Peer:
        """Return the next client's end."""
        return self.peers.get(timeout=WAIT_SECONDS)

    def close(self) -> None:
        """End everything."""
        if self._listener.fileno() >= 0:
            self.stop_listening()
        for peer in self._all:
            peer.hang_up()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                peer = Peer(self._listener.accept()[0], self.refusals, takes_batches=self.takes_batches, knows_pacing=self.knows_pacing)
                self._all.append(peer)
                self.peers.put(peer)


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeBus]:
    """A bus that does as the test says."""
    bus = FakeBus(tmp_path / "s")
    yield bus
    bus.close()


@pytest.fixture
def batching(fake: FakeBus) -> FakeBus:
    """A bus that does as the test says, and takes batches."""
    fake.takes_batches = True
    return fake


@pytest.fixture
def pacing(fake: FakeBus) -> FakeBus:
    """A bus that does as the test says, and knows pacing."""
    fake.knows_pacing = True
    return fake


@pytest.fixture
def mini_bus(tmp_path: Path) -> Iterator[MiniBus]:
    """A small bus that knows addresses, members, events, receipts and senders."""
    bus = MiniBus(tmp_path / "mini_bus")
    yield bus
    bus.close()


@pytest.fixture
def services(mini_bus: MiniBus) -> Iterator[ServiceThreads]:
    """Services on the small bus, each in a thread of its own; they end with the test."""
    made = ServiceThreads(mini_bus)
    yield made
    made.close()
