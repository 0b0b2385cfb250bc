"""Notices for a program that receives: messages are missing, or the bus refused some. By default they are logged. No I/O.

Logged with :mod:`logging`, as ``sbus``: of each kind the 1st, 2nd, 4th, 8th time and so on.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import NoReturn

from sbus.connection_log import ConnectionLog
from sbus.errors import MessagesMissing, RemoteRefusal
from sbus.items import BlobGone, Gap, Item, Message, Reconnected, Replaced

OnGap = Callable[[Gap | Reconnected | Replaced], object]
"""A function that gets what an iteration over messages leaves out, at its place between them."""

OnRefused = Callable[[RemoteRefusal], object]
"""A function that gets the refusals that no call waited for."""


_KEPT_REFUSALS = 64
"""Errors kept for the next receive. The oldest are the causes, so the newest are dropped, and counted."""


class NoticeLog:
    """Logs what a program does not handle itself."""

    __slots__ = ("_counts", "connection")

    def __init__(self) -> None:
        self.connection = ConnectionLog()
        self._counts: Counter[str] = Counter()

    def refused(self, refusal: RemoteRefusal) -> None:
        """Log that the bus refused a message, or something else that no call waited for."""
        self._log("refusals", str(refusal))

    def missing(self, item: Item, patterns: Sequence[bytes]) -> None:
        """Log what is missing from the subscription with *patterns*."""
        if isinstance(item, Message):
            return
        self._log(type(item).__name__, f"subscription to {', '.join(map(repr, patterns[:3]))}: {words_of(item)}")

    def job_lost(self, queue: str, seq: int) -> None:
        """Log that a job was done and not acknowledged, because its lease ended meanwhile."""
        self._log("jobs", f"job {seq} of queue {queue!r} was done after its lease had ended, and is tried again")

    def _log(self, kind: str, words: str) -> None:
        self._counts[kind] += 1
        if self._counts[kind].bit_count() == 1:
            import logging  # noqa: PLC0415 - most programs log nothing, and it takes milliseconds

            logging.getLogger("sbus").warning(
                "%s%s", words, f" ({self._counts[kind]} such events so far)" if self._counts[kind] > 1 else ""
            )


class Refusals(deque[RemoteRefusal]):
    """The errors that no call waited for, oldest first: :meth:`report` them when something is received, or raise one at a ping."""

    def __init__(self, log: NoticeLog) -> None:
        super().__init__()
        self.handler: OnRefused | None = None
        """Called with each of them; without it, they are logged."""
        self._log = log

    def keep(self, refusal: RemoteRefusal) -> bool:
        """Add *refusal*; return False if there are too many."""
        if len(self) < _KEPT_REFUSALS:
            self.append(refusal)
            return True
        return False

    def report(self) -> None:
        """Give all to the program, or log them. Raises what the handler raises."""
        while self:
            try:
                refusal = self.popleft()
            except IndexError:  # another thread has taken it
                return
            (self.handler or self._log.refused)(refusal)

    def raise_oldest(self) -> None:
        """Raise the oldest, if there is one, and forget it."""
        if self:
            raise self.popleft()


def words_of(item: Gap | Reconnected | Replaced) -> str:
    """Return *item* in words."""
    if isinstance(item, BlobGone):
        return f"the blob of a message is missing: {item.reason}"
    if isinstance(item, Gap):
        if item.lost == 1:
            return "1 message is missing"
        return f"{item.lost} messages are missing" if item.lost else "an unknown number of messages is missing"
    if isinstance(item, Replaced):
        if item.count == 1:
            return "1 message was replaced by a newer one with the same key"
        return f"{item.count} messages were replaced by newer ones with the same keys"
    return f"reconnected after {item.seconds:.1f} s; messages that were published meanwhile are missing"


def raise_missing(item: Gap | Reconnected | Replaced) -> NoReturn:
    """Raise MessagesMissing: give it to ``subscribe`` as *on_gap*, to end an iteration where messages are missing."""
    raise MessagesMissing(item, words_of(item))
