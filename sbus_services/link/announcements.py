"""Tells the other hosts what the clients of this one want, and knows which of them have confirmed it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from sbus.protocol.pattern_index import PatternIndex
from sbus_services.link.frames import Changes, Line, Snapshot, chunks, encode_head, encode_line
from sbus_services.link.local_interest import LocalInterest
from sbus_services.link.ports import Network
from sbus_services.link.subjects import Subjects

BATCH_INTERVAL = 0.05
"""Seconds between two announcements."""

_MODULUS = 1 << 64


class Announcements:
    """The announced lines. The network has the subscriptions for a line before any host gets to know it."""

    def __init__(self, interest: LocalInterest, subjects: Subjects, network: Network, epoch: int) -> None:
        self._interest = interest
        self._subjects = subjects
        self._network = network
        self._epoch = epoch
        self._by_origins: dict[bytes, dict[Line, int]] = {}
        """The versions of the lines with the same origins, the oldest first."""
        self._subscribed: Counter[str] = Counter()
        self._index = PatternIndex()
        self._by_pattern: dict[bytes, set[Line]] = {}
        self._begun: tuple[int, list[Line], list[Line]] | None = None
        self._barriers = 0
        self._next = 0.0
        self._is_connected = False
        self.version = 0
        self.digest = 0
        """Of all lines; see `Line.digest`."""

    @property
    def next_step(self) -> float | None:
        """When `step` has something to do, in seconds."""
        return self._next if self._interest.changed and self._begun is None else None

    @property
    def is_complete(self) -> bool:
        """Whether everything that is wanted is announced."""
        return not self._interest.changed and self._begun is None

    def lines(self, host: str, after: int = 0) -> Iterator[tuple[Line, int]]:
        """Yield the lines that concern *host* and were announced after the version *after*, each with its version."""
        for found in self._concerning(host):
            for line, version in reversed(found.items()):
                if version <= after:
                    break
                yield line, version

    def count(self, host: str) -> int:
        """Return the number of lines that concern *host*."""
        return sum(len(found) for found in self._concerning(host))

    def _concerning(self, host: str) -> list[dict[Line, int]]:
        name = host.encode("ascii")
        origins = [name, *(name[:size] + b"*" for size in range(len(name) + 1))]
        return [self._by_origins[each] for each in origins if each in self._by_origins]

    def _is_announced(self, line: Line) -> bool:
        return line in self._by_origins.get(line.origins, ())

    def matching(self, host: str, key: bytes) -> list[Line]:
        """Return the lines that match *key* of *host*."""
        return [line for pattern in self._index.match(key) for line in sorted(self._by_pattern[pattern]) if line.concerns(host)]

    def connected(self) -> None:
        """Subscribe to everything that is wanted."""
        self._is_connected = True
        for subject in self._subscribed:
            self._network.subscribe(subject)

    def disconnected(self) -> list[Line]:
        """Finish an announcement that waits for the network; the other hosts will ask for it. Return the lines that were withdrawn."""
        self._is_connected = False
        if self._begun is None:
            return []
        _, added, removed = self._begun
        self._begun = None
        return self._commit(added, removed)

    def step(self, now: float) -> list[Line]:
        """Begin to announce what has changed, if it is time. Return the lines that were withdrawn. *now* is in seconds."""
        if self._begun is not None or not self._interest.changed or now < self._next:
            return []
        self._next = now + BATCH_INTERVAL
        wanted = {line: self._interest.is_wanted(line) for line in self._interest.changed}
        self._interest.changed.clear()
        added = sorted(line for line, is_wanted in wanted.items() if is_wanted and not self._is_announced(line))
        removed = sorted(line for line, is_wanted in wanted.items() if not is_wanted and self._is_announced(line))
        for line in added:
            subject = self._subjects.wanted(*line)
            self._subscribed[subject] += 1
            if self._subscribed[subject] == 1 and self._is_connected:
                self._network.subscribe(subject)
        if not added and not removed:
            return []
        if not self._is_connected:
            return self._commit(added, removed)
        self._barriers += 1
        self._begun = self._barriers, added, removed
        self._network.barrier(self._barriers)
        return []

    def barrier_passed(self, number: int) -> list[Line]:
        """Announce what was begun before the barrier. Return the lines that were withdrawn."""
        if self._begun is None or self._begun[0] != number:
            return []
        _, added, removed = self._begun
        self._begun = None
        return self._commit(added, removed)

    def send_snapshot(self, host: str) -> None:
        """Send *host* all lines that concern it."""
        bodies = list(chunks(encode_line(line, wanted=True) for line, _ in self.lines(host))) or [b""]
        for part, body in enumerate(bodies):
            head = Snapshot(self._epoch, self.version, self.digest, part, len(bodies))
            self._network.publish(self._subjects.direct(host), encode_head(head), body)

    def _commit(self, added: list[Line], removed: list[Line]) -> list[Line]:
        """Make *added* and *removed* part of the announced state, and announce them if the network is there."""
        bodies = list(chunks([encode_line(line, line in added_set) for added_set in [set(added)] for line in (*removed, *added)]))
        for line in removed:
            del self._by_origins[line.origins][line]
            if not self._by_origins[line.origins]:
                del self._by_origins[line.origins]
            self.digest = (self.digest - line.digest()) % _MODULUS
            self._by_pattern[line.pattern].remove(line)
            if not self._by_pattern[line.pattern]:
                del self._by_pattern[line.pattern]
                self._index.remove(line.pattern)
        for line in added:
            # The last part has the highest version: a line is confirmed when all parts are.
            self._by_origins.setdefault(line.origins, {})[line] = self.version + len(bodies)
            self.digest = (self.digest + line.digest()) % _MODULUS
            self._by_pattern.setdefault(line.pattern, set()).add(line)
            self._index.add(line.pattern)
        for body in bodies:
            self.version += 1
            if self._is_connected:
                self._network.publish(self._subjects.interest, encode_head(Changes(self._epoch, self.version)), body)
        for line in removed:
            self._unsubscribe(self._subjects.wanted(*line))
        return removed

    def _unsubscribe(self, subject: str) -> None:
        self._subscribed[subject] -= 1
        if not self._subscribed[subject]:
            del self._subscribed[subject]
            if self._is_connected:
                self._network.unsubscribe(subject)
