"""What waits to be sent, in order, and which of it leaves together. No I/O. Spec: sbus-protocol(7) §6, ``!/batch``.

Rules:

1. Packets leave in the order in which they came, whoever put them in.
2. What waits leaves in batches once it is known that the bus takes them; else one by one. A single packet is never wrapped.
3. A packet of a call belongs to a connection, and is forgotten with it: its call fails then. A *post*, of which somebody was told that
   all is well, is kept for the next connection; where there is none, it is counted in ``unsent``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from sbusd.client.errors import PayloadTooLarge
from sbusd.client.message_batch import join_batch
from sbusd.protocol.batches import BATCH_HEAD, LENGTH_BYTES
from sbusd.protocol.limits import MAX_BATCH_BYTES

POSTED_BYTES = MAX_BATCH_BYTES // 2
"""When posts are sent, and who comes then must wait if they cannot be: one batch is read while the next one is made, and both
stay in a core's own cache. More would be no faster, come later, and be lost with the process."""

POSTED_SECONDS = 0.001
"""How long the first post waits for others at most, while more are published: nobody who watches notices."""

CLOSING_SECONDS = 30.0
"""How long closing waits for posts to leave where nothing else may take only so long: what calls are given by default."""


class _Row:
    """Packets that stand in a row, all posts or all of calls."""

    __slots__ = ("are_posts", "packets")

    def __init__(self, packets: list[bytes], *, are_posts: bool) -> None:
        self.packets = packets
        self.are_posts = are_posts

    @property
    def size(self) -> int:
        """What they take up in a batch, bytes."""
        return sum(map(len, self.packets)) + len(self.packets) * LENGTH_BYTES

    def split(self, room: int, least: int) -> _Row:
        """Return the packets in front that fit into *room* bytes, but not fewer than *least*, and keep the others."""
        count = 0
        for packet in self.packets:
            room -= len(packet) + LENGTH_BYTES
            if room < 0 and count >= least:
                break
            count += 1
        front = _Row(self.packets[:count], are_posts=self.are_posts)
        del self.packets[:count]
        return front


class Outgoing:
    """The packets of one session that no kernel has yet."""

    __slots__ = ("_flying", "_head", "_queue", "_tail", "batches", "packet_limit", "posted_bytes", "takes_batches", "unsent")

    def __init__(self, packet_limit: int) -> None:
        self.takes_batches: bool | None = False
        """Whether the bus takes batches; None while it has been asked and has not answered."""
        self.packet_limit = packet_limit
        """Largest packet that the connection can send, bytes."""
        self.posted_bytes = 0
        """Size of the posts that wait, each with its length."""
        self.batches = 0
        """Batches that were sent."""
        self.unsent = 0
        """Posts that never left, because the connection ended for good."""
        self._queue: deque[_Row] = deque()
        self._tail: list[bytes] | None = None  # of the last row, while posts may join it
        self._head = b""
        self._flying: list[_Row] = []  # what is in the head

    def __bool__(self) -> bool:
        """Return whether something waits."""
        return bool(self._queue or self._flying)

    def __len__(self) -> int:
        """Return how many packets wait."""
        return sum(len(row.packets) for row in (*self._flying, *self._queue))

    def __iter__(self) -> Iterator[bytes]:
        """Yield the packets that wait, in their order."""
        return (packet for row in (*self._flying, *self._queue) for packet in row.packets)

    def fitting(self, packet: bytes) -> bytes:
        """Return *packet*, if the connection can send it: one that it cannot would stand in the way of all others.

        Raises:
            PayloadTooLarge: it is longer than ``packet_limit``.
        """
        if len(packet) > self.packet_limit:
            raise PayloadTooLarge(len(packet), self.packet_limit)
        return packet

    def put(self, *packets: bytes) -> None:
        """Add packets of a call; none of them is a batch."""
        if packets:
            self._queue.append(_Row(list(packets), are_posts=False))
            self._tail = None

    def post(self, packet: bytes) -> None:
        """Add a packet whose sender is told that all is well; it is a :meth:`fitting` one, and no batch.

        Duty: add none while ``posted_bytes`` is :data:`POSTED_BYTES` or more.
        """
        if self._tail is None:
            self._tail = []
            self._queue.append(_Row(self._tail, are_posts=True))
        self._tail.append(packet)
        self.posted_bytes += len(packet) + LENGTH_BYTES

    def head(self) -> bytes:
        """Return what to send next, one packet or a batch, the same until :meth:`sent`; something must wait."""
        if not self._head:
            self._gather()
            packets = [packet for row in self._flying for packet in row.packets]
            self._head = join_batch(packets) if len(packets) > 1 else packets[0]
        return self._head

    def sent(self) -> None:
        """Take note that the kernel has what :meth:`head` returned."""
        self.batches += self._head.startswith(BATCH_HEAD)
        self.posted_bytes -= sum(row.size for row in self._flying if row.are_posts)
        self._head, self._flying = b"", []

    def disconnected(self, *, is_final: bool) -> None:
        """Forget what belongs to the connection that ended; where it was the last one, count the posts as unsent and forget them too."""
        posts = self.set_aside()
        if is_final:
            self.unsent += len(posts)
        else:
            self.restore(posts)

    def set_aside(self) -> list[bytes]:
        """Return the posts, and forget all: :meth:`restore` puts them back, behind what is put in meanwhile."""
        posts = [packet for row in (*self._flying, *self._queue) if row.are_posts for packet in row.packets]
        self.clear()
        return posts

    def restore(self, posts: Iterable[bytes]) -> None:
        """Put back what :meth:`set_aside` has returned; what the new connection cannot send is unsent."""
        for packet in posts:
            if len(packet) <= self.packet_limit:
                self.post(packet)
            else:
                self.unsent += 1

    def clear(self) -> None:
        """Forget all that waits."""
        self._queue.clear()
        self._tail = None
        self._head, self._flying = b"", []
        self.posted_bytes = 0

    def _gather(self) -> None:
        """Choose what leaves together: as many packets as fit into one, at least the first."""
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
