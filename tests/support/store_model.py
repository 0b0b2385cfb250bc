"""Plain Python models of the store's streams and queues: lists and loops, with which the engine is compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from sbus.protocol.keys import intersection, pattern_matches
from sbus_programs.config.store import StreamSettings
from sbus_services.store.engine.messages import Gap, NewMessage, PutResult, Stored
from sbus_services.store.engine.put_ids import WINDOW_MS
from sbus_services.store.engine.reading import REMOVED
from sbus_services.store.engine.schema import MESSAGE_BYTES

Item = Stored | Gap


def size_of(item: Item) -> int:
    """Return what *item* counts."""
    if isinstance(item, Gap):
        return len(item.pattern) + len(item.reason.encode()) + MESSAGE_BYTES
    return len(item.key) + len(item.payload) + MESSAGE_BYTES


@dataclass
class StreamModel:
    """A stream without a queue."""

    settings: StreamSettings
    items: list[Item] = field(default_factory=list)
    last_seq: int = 0
    removed: int = 0
    removed_seq: int = 0
    ids: dict[tuple[int, bytes], tuple[int, int]] = field(default_factory=dict)
    readers: dict[tuple[int, str], int] = field(default_factory=dict)

    @property
    def messages(self) -> list[Stored]:
        return [each for each in self.items if isinstance(each, Stored)]

    @property
    def size(self) -> int:
        return sum(map(size_of, self.items))

    def of_key(self, key: bytes) -> list[Stored]:
        """Return the messages of *key*, the newest first."""
        return [each for each in reversed(self.messages) if each.key == key]

    def keys(self) -> Counter[int]:
        """Return the number of keys whose newest message is of each user."""
        return Counter({each.key: each.sender.uid for each in self.messages}.values())

    def put_many(self, messages: Sequence[NewMessage], now: int) -> list[PutResult | str]:
        """Return what the engine returns, with the codes of errors."""
        results = [self._put(each, now) for each in messages]
        self.trim()
        return results

    def _put(self, message: NewMessage, now: int) -> PutResult | str:
        settings, uid = self.settings, message.sender.uid
        size = len(message.key) + len(message.payload) + MESSAGE_BYTES
        if not any(pattern_matches(each, message.key) for each in settings.patterns):
            return "EINVAL"
        if size > min(settings.max_bytes, settings.max_bytes_per_user):
            return "EMSGSIZE"
        known = self.ids.get((uid, message.id))
        if message.id and known is not None and known[1] > now - WINDOW_MS:
            return PutResult(known[0], is_duplicate=True)
        replaced: list[Stored] = []
        if settings.last:
            older = self.of_key(message.key)
            is_new_of_user = not older or older[0].sender.uid != uid
            if (not older and self.keys().total() >= settings.max_keys) or (
                is_new_of_user and self.keys()[uid] >= settings.max_keys_per_user
            ):
                return "EDQUOT"
            replaced = older[settings.last - 1 :]
        mine = [each for each in self.messages if each.sender.uid == uid and each not in replaced]
        if sum(map(size_of, mine)) + size > settings.max_bytes_per_user:
            return "EDQUOT"
        self.items = [each for each in self.items if each not in replaced]
        self.last_seq += 1
        self.items.append(Stored(self.last_seq, now, message.key, message.payload, message.sender, message.expires_ms))
        if message.id:
            self.ids[uid, message.id] = (self.last_seq, now)
        return PutResult(self.last_seq)

    def add_gap(self, pattern: bytes, count: int, reason: str, now: int) -> None:
        """Do as the engine; there are fewer gaps at the end than it merges."""
        for position in range(len(self.items) - 1, -1, -1):
            each = self.items[position]
            if isinstance(each, Stored):
                break
            if (each.pattern, each.reason) == (pattern, reason):
                total = each.count + count if each.count and count else 0
                self.items[position] = Gap(each.seq, now, pattern, total, reason)
                return
        self.last_seq += 1
        self.items.append(Gap(self.last_seq, now, pattern, count, reason))
        self.trim()

    def trim(self) -> None:
        """Remove the oldest above the limits."""
        most = self.settings.max_messages
        while self.size > self.settings.max_bytes or (most and len(self.messages) > most):
            self._retire(self.items[0])

    def sweep(self, now: int) -> None:
        """Remove what has expired, is too old, or above the limits."""
        expired = [each for each in self.messages if each.expires_ms and each.expires_ms <= now]
        ended = {each.key for each in expired if self.settings.last and each is self.of_key(each.key)[0]}
        gone = [each for each in self.messages if each in expired or each.key in ended]
        self.items = [each for each in self.items if each not in gone]
        self.removed += len(gone)
        while self.settings.retain and self.items and self.items[0].time_ms <= now - self.settings.retain * 1000:
            self._retire(self.items[0])
        self.trim()

    def _retire(self, item: Item) -> None:
        self.items.remove(item)
        self.removed += isinstance(item, Stored)
        self.removed_seq = max(self.removed_seq, item.seq)

    def purge(self, before_seq: int | None, pattern: bytes) -> int:
        """Remove what *pattern* matches, and return the number of messages."""
        gone = [each for each in self.items if (before_seq is None or each.seq < before_seq) and _matches(pattern, each)]
        self.items = [each for each in self.items if each not in gone]
        return sum(isinstance(each, Stored) for each in gone)

    def forget(self, key: bytes, uid: int | None) -> int:
        """Remove the messages of a key, and return their number."""
        values = self.of_key(key)
        is_whole = uid is None or (self.settings.last and values and values[0].sender.uid == uid)
        gone = [each for each in values if is_whole or each.sender.uid == uid]
        self.items = [each for each in self.items if each not in gone]
        return len(gone)

    def read(self, from_seq: int, pattern: bytes, now: int) -> list[Item]:
        """Return all from *from_seq* on."""
        found = [each for each in self.items if each.seq >= from_seq and _matches(pattern, each) and not _is_over(each, now)]
        if 1 <= from_seq <= self.removed_seq:
            gap: Item = Gap(self.removed_seq, now, pattern, self.removed_seq - from_seq + 1, REMOVED)
            return [gap, *(each for each in found if each.seq > self.removed_seq)]
        return found

    def last(self, pattern: bytes, now: int) -> list[Stored]:
        """Return the newest of each key, unless it has expired."""
        newest = {each.key: each for each in self.messages if pattern_matches(pattern, each.key)}
        return [newest[key] for key in sorted(newest) if not _is_over(newest[key], now)]


def _is_over(item: Item, now: int) -> bool:
    return isinstance(item, Stored) and 0 < item.expires_ms <= now


def _matches(pattern: bytes, item: Item) -> bool:
    if isinstance(item, Gap):
        return not pattern or intersection(pattern, item.pattern) is not None
    return not pattern or pattern_matches(pattern, item.key)
