"""The clients of a soak, each a non-blocking socket with random settings: publishers, subscribers, and misbehaving clients."""

from __future__ import annotations

import random
import socket
from collections import Counter, deque
from collections.abc import Callable

from sbus.protocol import controls
from sbus.protocol.packets import BATCH_HEAD, MAX_BATCH_BYTES, MAX_PACKET_BYTES, is_batch, join_batch, parse_batch
from tests.soak.accounts import TOPIC_HEAD, Account, SentCounts, SoakError, Stream

TOPICS = 8
_LOST = b"CMSG " + controls.LOST + b"\0"
_ERROR = b"CMSG " + controls.ERROR + b"\0"
_PONG = b"CMSG " + controls.PING + b"\0"
_MODES = (b"blocking/soft/queue", b"blocking/soft/discard", b"blocking/hard/discard", b"blocking/hard/block")
_ORDERS = (b"order/stack", b"order/random")

Connect = Callable[[], socket.socket]


class SoakClient:
    """A connection; ``is_gone`` once the bus or the client itself has closed it."""

    def act(self) -> None:
        """Do one step, without blocking."""
        raise NotImplementedError

    def __init__(self, connect: Connect, figures: Counter[str]) -> None:
        self.figures = figures
        self.is_gone = False
        self._sock = connect()
        self._sock.setblocking(False)
        self._inner: deque[bytes] = deque()
        """The unread packets of a received batch."""
        figures["connections"] += 1

    def close(self) -> None:
        """Close the connection."""
        self.is_gone = True
        self._sock.close()

    def send(self, packet: bytes) -> bool:
        """Send a packet; return False if the socket is full, or the bus has closed it."""
        try:
            self._sock.send(packet)
        except BlockingIOError:
            return False
        except ConnectionError:
            self.close()
            return False
        return True

    def receive(self) -> bytes | None:
        """Return the next packet, also from within a batch; None if there is none yet, or the bus has closed the connection."""
        if self._inner:
            return self._inner.popleft()
        try:
            packet = self._sock.recv(MAX_PACKET_BYTES)
        except BlockingIOError:
            return None
        except ConnectionError:
            packet = b""
        if not packet:
            self.close()
            return None
        if is_batch(packet):
            self._inner.extend(parse_batch(packet))
            self.figures["batches from the bus"] += 1
            self.figures["packets in them"] += len(self._inner)
            return self.receive()
        if packet.startswith(_ERROR):
            self.figures["errors reported: " + packet.removeprefix(_ERROR).split(b" ")[0].decode()] += 1
        return packet


class Publisher(SoakClient):
    """Publishes numbered messages to random topics, in bursts; each connection has its own number."""

    def __init__(self, connect: Connect, figures: Counter[str], sent_counts: SentCounts, number: int, rng: random.Random) -> None:
        super().__init__(connect, figures)
        self.number = number
        self._sent_counts = sent_counts
        self._rng = rng
        self._burst = rng.choice((1, 1, 5, 50, 200))
        self._joins = rng.random() < 0.5
        """Whether it sends its bursts in batches."""
        self._asked = 0
        self.must_ask = False
        self.is_routed = True
        """Whether the bus has confirmed that it has routed all sent messages."""

    def act(self) -> None:
        """Publish a burst, until the socket is full."""
        (self._publish_together if self._joins else self._publish_apart)(self._rng.randrange(self._burst + 1))

    def _publish_apart(self, count: int) -> None:
        """Publish *count* messages in single packets."""
        for _ in range(count):
            stream, packet = self._next_message()
            if not self._sent(packet):
                return
            self._note(stream)

    def _publish_together(self, count: int) -> None:
        """Publish *count* messages in batches."""
        batch: list[bytes] = []
        streams: list[Stream] = []
        for left in reversed(range(count)):
            stream, packet = self._next_message()
            self._sent_counts.count(stream)
            streams.append(stream)
            batch.append(packet)
            if left and sum(map(len, batch)) + 100 * len(batch) < MAX_BATCH_BYTES - 61_000:
                continue
            if not self._sent(join_batch(batch)):
                for each in streams:
                    self._sent_counts.uncount(each)
                return
            self.figures["messages"] += len(streams)
            self.figures["batches to the bus"] += 1
            self.is_routed = False
            batch.clear()
            streams.clear()

    def _next_message(self) -> tuple[Stream, bytes]:
        """Return the next message to a random topic."""
        stream = Stream(self.number, self._rng.randrange(TOPICS))
        filler = bytes(self._rng.choice((0, 10, 100, 1_000)) if self._rng.random() < 0.99 else 60_000)
        return stream, self._sent_counts.write(stream, filler)

    def _sent(self, packet: bytes) -> bool:
        """Send *packet*; return False if the socket is full. Raises SoakError if the bus has gone."""
        if self.send(packet):
            return True
        if self.is_gone:
            raise SoakError(f"publisher {self.number} was disconnected")
        self.figures["times that a publisher had to wait"] += 1
        return False

    def _note(self, stream: Stream) -> None:
        """Count a message of *stream* as sent."""
        self._sent_counts.count(stream)
        self.figures["messages"] += 1
        self.is_routed = False

    def ask_again(self) -> None:
        """Send a ping to learn whether everything is routed; ``must_ask`` stays set while the socket is full."""
        self.is_routed = False
        self.must_ask = not self.send(b"CMSG " + controls.PING + b"\0%d" % (self._asked + 1))
        self._asked += not self.must_ask

    def read_replies(self) -> None:
        """Read the replies of the bus."""
        while (packet := self.receive()) is not None:
            if packet == _PONG + b"%d" % self._asked:
                self.is_routed = True
            elif packet.startswith(_ERROR):
                self.must_ask = True
            elif not packet.startswith(_PONG):
                raise SoakError(f"publisher {self.number} got {packet[:80]!r}")


class Subscriber(SoakClient):
    """Reads at its own pace, and accounts for all messages."""

    def __init__(self, connect: Connect, figures: Counter[str], name: str, rng: random.Random) -> None:
        super().__init__(connect, figures)
        self._rng = rng
        topics = frozenset(rng.sample(range(TOPICS), rng.randrange(1, TOPICS + 1)))
        modes = [rng.choice(_MODES) for _ in range(rng.randrange(3))]
        order = [rng.choice(_ORDERS)] if rng.random() < 0.3 else []
        batch = [b"batch/on"] if rng.random() < 0.5 else []
        self.pace = rng.choice(("fast", "fast", "slow", "bursts", "deaf"))
        settings_text = b"".join(b", " + each for each in modes + order + batch).decode()
        self.account = Account(f"subscriber {name} ({self.pace}{settings_text})", topics, in_order=not order)
        patterns = [b"SUB %b%d" % (TOPIC_HEAD, topic) for topic in topics]
        if len(topics) == TOPICS:
            patterns = rng.choice(([b"SUB soak/*"], [b"SUB soak/"], [b"SUB so*/*", b"SUB soak/1"], patterns))
        self.is_confirmed = False
        self.is_half_closed = False
        self._tokens = 0
        self._stale = 0
        """Pings up to this token were sent before the account opened: their responses are not part of it."""
        for packet in [b"CMSG " + each for each in modes + order + batch] + patterns + patterns[: rng.randrange(2)]:
            self._must_send(packet)
        self._must_send(b"CMSG " + controls.PING + b"\0subscribed")

    def _must_send(self, packet: bytes) -> None:
        """Send one of the first packets, which fit into every socket buffer."""
        if not self.send(packet):
            raise SoakError(f"{self.account.name}: the bus takes not even {packet[:40]!r}")

    def open_account(self, sent_counts: SentCounts, *, is_quiet: bool) -> None:
        """Open the account: see :meth:`Account.open`. Pending responses belong to no account."""
        self._stale = self._tokens
        self.account.open(sent_counts, is_quiet=is_quiet)

    def half_close(self) -> None:
        """Shut down the sending side; the bus still delivers."""
        self._sock.shutdown(socket.SHUT_WR)
        self.is_half_closed = True
        self.figures["half-closed"] += 1

    def act(self) -> None:
        """Read as much as its pace allows."""
        limits = {"fast": 1_000, "slow": 3, "deaf": 0, "bursts": 400 if self._rng.random() < 0.05 else 0}
        self.read(limits[self.pace] if self.is_confirmed else 1_000)

    def ask(self) -> None:
        """Send a ping, whose response follows all queued packets, or is lost and reported with them."""
        if not self.is_half_closed and self.send(b"CMSG " + controls.PING + b"\0%d" % (self._tokens + 1)):
            self._tokens += 1
            self.account.asked += 1

    def read(self, limit: int) -> None:
        """Read up to *limit* packets."""
        for _ in range(limit):
            packet = self.receive()
            if packet is None:
                return
            self._note(packet)

    def _note(self, packet: bytes) -> None:
        """Count a packet in the account."""
        if packet.startswith(b"MSG "):
            self.account.note(packet)
            self.figures["deliveries"] += 1
        elif packet == _PONG + b"subscribed":
            self.is_confirmed = True
        elif packet.startswith(_PONG):
            self.account.answered += int(packet.removeprefix(_PONG)) > self._stale
        elif packet.startswith(_LOST):
            reported = int(packet.removeprefix(_LOST))
            self.account.lost += reported
            self.figures["losses reported"] += reported
            self.figures["notices of a loss"] += 1
        elif packet.startswith(_ERROR + b"EDQUOT") and self.account.asked:
            self.account.asked -= 1
        elif not packet.startswith(_ERROR):
            raise SoakError(f"{self.account.name} got {packet[:80]!r}")


class MisbehavingClient(SoakClient):
    """Sends random packets, including malformed ones, and reconnects when disconnected; no other client may be affected."""

    def __init__(self, connect: Connect, figures: Counter[str], rng: random.Random) -> None:
        super().__init__(connect, figures)
        self._rng = rng
        self._next: dict[Stream, int] = {}

    def act(self) -> None:
        """Do one random thing, or read a few packets."""
        acts = (self._rubbish, self._churn, self._churn, self._control, self._control, self._odd_message, self._shut, self._listen)
        self._rng.choice(acts)()

    def _rubbish(self) -> None:
        """Send a malformed packet, or a batch that contains or ends with one; most of these end the connection."""
        if self._rng.random() < 0.1:
            wrong = self._rng.choice((b"x", b"MSG no-nul", b"msg a\0", b"CMSG", self._rng.randbytes(50)))
            right = b"MSG odd/1\0x"
            self.send(self._rng.choice((wrong, join_batch([right, wrong, right]), join_batch([right]) + wrong, BATCH_HEAD + wrong)))

    def _churn(self) -> None:
        """Subscribe or unsubscribe; the patterns include the topics of the soak."""
        verb = self._rng.choice((b"SUB ", b"UNSUB "))
        patterns = (b"", b"*/", b"soak/*", b"soak/%d" % self._rng.randrange(TOPICS), b"odd/*/x/", b"!/cred/1/2/3/x", b"a" * 5_000)
        self.send(verb + self._rng.choice(patterns[:5] if self._rng.random() < 0.95 else patterns))

    def _control(self) -> None:
        """Send a request, or set a mode."""
        asked = (
            controls.STATS,
            controls.WHOAMI,
            controls.TRACE + b"\0soak/1",
            controls.CONNECTIONS,
            b"!/none",
            b"echo/off",
            b"batch/on",
            b"batch/off",
            *_MODES,
            *_ORDERS,
        )
        self.send(b"CMSG " + self._rng.choice(asked))

    def _odd_message(self) -> None:
        """Publish a message outside of the topics of the soak."""
        keys = (b"odd/1/x/y", b"!/event/x", b"k" * 5_000, b"odd//x/", b"odd/%d" % self._rng.randrange(10_000))
        self.send(b"MSG " + self._rng.choice(keys) + b"\0" + bytes(self._rng.choice((0, 100, 100_000))))

    def _shut(self) -> None:
        """Close the connection, or shut down one side."""
        chance = self._rng.random()
        if chance < 0.02:
            self.close()
        elif chance < 0.03:
            self._sock.shutdown(self._rng.choice((socket.SHUT_RD, socket.SHUT_WR, socket.SHUT_RDWR)))

    def _listen(self) -> None:
        """Read a few packets."""
        for _ in range(self._rng.randrange(300)):
            if self.receive() is None:
                return
            self.figures["packets to misbehaving clients"] += 1
