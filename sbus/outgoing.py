"""The queue of packets to send, and their batches. No I/O. Spec: sbus-protocol(7) §6, ``!/batch``.

Rules:

1. Packets are sent in the order in which they were added.
2. Queued packets are sent in batches once it is known that the bus takes them; otherwise one by one. A single packet is never wrapped.
3. A packet of a call belongs to a connection, and is dropped with it: its call fails then. A *post* is a publication whose call has
   already returned. It is kept for the next connection; if there is none, it is counted in ``unsent``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator

from sbus.errors import PayloadTooLarge
from sbus.incoming import join_batch
from sbus.protocol.packets import BATCH_HEAD, LENGTH_BYTES, MAX_BATCH_BYTES

POSTED_BYTES = MAX_BATCH_BYTES // 2
"""Size at which posts are sent; if the socket is full, the next publication waits. One batch is read while the next one is made, and both
stay in a core's cache. A larger size would be no faster, would add latency, and more would be lost with the process."""

POSTED_SECONDS = 0.001
"""Maximum time that the first post waits for others, while more are published: people do not notice it."""

CLOSING_SECONDS = 30.0
"""Maximum time to send posts at close if the bus has no timeout: the default of a call."""


class _Run:
    """Consecutive packets, all posts or all of calls."""

    __slots__ = ("are_posts", "packets")

    def __init__(self, packets: list[bytes], *, are_posts: bool) -> None:
        self.packets = packets
        self.are_posts = are_posts

    @property
    def size(self) -> int:
        """Their size in a batch, in bytes."""
        return sum(map(len, self.packets)) + len(self.packets) * LENGTH_BYTES

    def split(self, room: int, least: int) -> _Run:
        """Return the first packets that fit into *room* bytes, but at least *least*, and keep the others."""
        count = 0
        for packet in self.packets:
            room -= len(packet) + LENGTH_BYTES
            if room < 0 and count >= least:
                break
            count += 1
        front = _Run(self.packets[:count], are_posts=self.are_posts)
        del self.packets[:count]
        return front


class Outgoing:
    """The packets of one session that the kernel does not have yet."""

    __slots__ = (
        "_flying",
        "_head",
        "_head_sizes",
        "_queue",
        "_tail",
        "batches",
        "is_empty",
        "packet_limit",
        "posted_bytes",
        "takes_batches",
        "unsent",
    )

    def __init__(self, packet_limit: int) -> None:
        self.takes_batches: bool | None = False
        """Whether the bus takes batches; None until it has answered that question."""
        self.packet_limit = packet_limit
        """Largest packet that the connection can send, in bytes."""
        self.posted_bytes = 0
        """Size of the queued posts, each with its length field, in bytes."""
        self.batches = 0
        """Batches sent."""
        self.unsent = 0
        """Posts never sent, because the connection ended for good."""
        self.is_empty = True
        """Whether no packets are queued."""
        self._queue: deque[_Run] = deque()
        self._tail: list[bytes] | None = None  # of the last run, while posts may join it
        self._head = b""
        self._flying: list[_Run] = []  # the packets in the head
        self._head_sizes: list[int] = []  # what send(2) has returned for the head

    def __bool__(self) -> bool:
        """Return whether packets are queued."""
        return not self.is_empty

    def __len__(self) -> int:
        """Return the number of queued packets."""
        return sum(len(run.packets) for run in (*self._flying, *self._queue))

    def __iter__(self) -> Iterator[bytes]:
        """Yield the queued packets, in their order."""
        return (packet for run in (*self._flying, *self._queue) for packet in run.packets)

    def fitting(self, packet: bytes) -> bytes:
        """Return *packet*, if the connection can send it: otherwise it would block all later packets.

        Raises:
            PayloadTooLarge: it is longer than ``packet_limit``.
        """
        if len(packet) > self.packet_limit:
            raise PayloadTooLarge(len(packet), self.packet_limit)
        return packet

    def put(self, *packets: bytes) -> None:
        """Add packets of a call, not batches."""
        if packets:
            self._queue.append(_Run(list(packets), are_posts=False))
            self._tail = None
            self.is_empty = False

    def post(self, packet: bytes) -> None:
        """Add a publication whose call returns now; it must be :meth:`fitting`, and not a batch.

        Duty: add no post while ``posted_bytes`` is :data:`POSTED_BYTES` or more.
        """
        if self._tail is None:
            self._tail = []
            self._queue.append(_Run(self._tail, are_posts=True))
            self.is_empty = False
        self._tail.append(packet)
        self.posted_bytes += len(packet) + LENGTH_BYTES

    def head(self) -> bytes:
        """Return the next packet or batch, the same until :meth:`sent`; there must be a queued packet."""
        if not self._head:
            self._gather()
            packets = [packet for run in self._flying for packet in run.packets]
            self._head = join_batch(packets) if len(packets) > 1 else packets[0]
        return self._head

    def send(self, send: Callable[[bytes, int], int], flags: int) -> None:
        """Call *send* with :meth:`head` and *flags*, and then :meth:`sent`. Raises what *send* raises, and nothing is sent then.

        An exception of a signal handler may come after *send*, and before it is known that it has returned. The next call does not repeat
        it: the result is stored by the same instruction.
        """
        head = self.head()
        if not self._head_sizes:
            self._head_sizes.extend(map(send, (head,), (flags,)))
        self.sent()

    def sent(self) -> None:
        """Note that the kernel has the packet that :meth:`head` returned."""
        self.batches += self._head.startswith(BATCH_HEAD)
        self.posted_bytes -= sum(run.size for run in self._flying if run.are_posts)
        self._head, self._flying, self._head_sizes = b"", [], []
        self.is_empty = not self._queue

    def disconnected(self, *, is_final: bool) -> None:
        """Drop the packets of calls of the connection that ended; if it was the last one, count the posts as unsent and drop them too."""
        posts = self.set_aside()
        if is_final:
            self.unsent += len(posts)
        else:
            self.restore(posts)

    def set_aside(self) -> list[bytes]:
        """Remove all packets, and return the posts: :meth:`restore` puts them back, after packets that are added meanwhile."""
        posts = [packet for run in (*self._flying, *self._queue) if run.are_posts for packet in run.packets]
        self.clear()
        return posts

    def restore(self, posts: Iterable[bytes]) -> None:
        """Put back the posts of :meth:`set_aside`; posts that the new connection cannot send are counted as unsent."""
        for packet in posts:
            if len(packet) <= self.packet_limit:
                self.post(packet)
            else:
                self.unsent += 1

    def clear(self) -> None:
        """Drop all packets."""
        self._queue.clear()
        self._tail = None
        self._head, self._flying, self._head_sizes = b"", [], []
        self.is_empty = True
        self.posted_bytes = 0

    def _gather(self) -> None:
        """Choose the packets of the next batch: as many as fit, at least the first."""
        self._tail = None
        queue, flying = self._queue, self._flying
        room = min(MAX_BATCH_BYTES, self.packet_limit) - len(BATCH_HEAD) if self.takes_batches else 0
        while queue and (size := queue[0].size) <= room:
            flying.append(queue.popleft())
            room -= size
        if queue and (front := queue[0].split(room, 0 if flying else 1)).packets:
            flying.append(front)
            if not queue[0].packets:
                queue.popleft()
