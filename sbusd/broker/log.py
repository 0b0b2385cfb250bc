"""The bus's record of what happens, written without ever holding up the bus. Spec: sbusd(8).

Rules:

1. :meth:`Journal.record` never blocks and never raises. Writing is done by one thread, which is started with the first
   record, so never before the bus has gone to the background.
2. What waits for that thread is bounded. A record that finds no room, or cannot be written, is counted, and as soon as
   writing works again, their number is recorded.
3. A cause is recorded about one user only so often; the others are counted, and their number is recorded.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from sbusd.broker.log_messages import RECORDS_DROPPED, SUPPRESSED
from sbusd.broker.rate_limit import RateLimiter
from sbusd.config import LogSettings
from sbusd.config.settings import LEVELS
from sbusd.systemd.log_message import LogMessage
from sbusd.systemd.log_sink import Fact, LogSink, Record, choose_sink

MAX_WAITING = 512
"""Records that wait to be written: with :data:`MAX_FACT_BYTES` a megabyte or two at most, and far more than a second's worth."""

MAX_FACT_BYTES = 1_024
"""Longest key or other fact in a record; what is longer is cut, for a stranger wrote it."""

MAX_TRACE_CHARACTERS = 16_384
"""Longest traceback; its end is kept, where the error is."""

CLOSE_SECONDS = 1.0
"""How long the end of the bus waits for the last records to be written."""


class JournalCounters(NamedTuple):
    """What became of the records. ``written + suppressed + dropped + waiting`` is all that were made, with the journal's own."""

    written: int
    suppressed: int
    """Left out, because their cause was recorded often enough about their user."""
    dropped: int
    """Lost: no room, or the journal failed."""
    waiting: int


@dataclass(slots=True)
class _State:
    """What the two threads share, under one lock."""

    waiting: deque[Record] = field(default_factory=deque)
    written: int = 0
    suppressed: int = 0
    dropped: int = 0
    untold: int = 0
    """Dropped since the last record that said so."""
    writing: bool = False
    """A record is with the sink just now."""
    closed: bool = False


class Journal:
    """Records of the bus, for one sink. Call :meth:`close` at the end."""

    def __init__(self, sink: LogSink, settings: LogSettings, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Make a journal that writes to *sink*; *clock* counts seconds, and is for tests."""
        rate = settings.rate_per_cause_per_user
        self._sink = sink
        self._settings = settings
        self.level = LEVELS.index(settings.level)
        self._clock = clock
        self._limiter: RateLimiter[LogMessage] = RateLimiter(rate.burst, rate.interval)
        self._state = _State()
        # Holds the lock of all that is above; never held while the sink writes.
        self._changed = threading.Condition()
        self._writer: threading.Thread | None = None

    @classmethod
    def open(cls, settings: LogSettings, *, background: bool) -> Journal:
        """Return a journal that writes where a bus in the background, or in the foreground, should. Starts no thread yet."""
        return cls(choose_sink(background=background), settings)

    @property
    def counters(self) -> JournalCounters:
        """What became of the records so far."""
        with self._changed:
            state = self._state
            return JournalCounters(state.written, state.suppressed, state.dropped, len(state.waiting) + state.writing)

    def configure(self, settings: LogSettings) -> None:
        """Let *settings* hold from now on; what was left out before is told first if the rate changes."""
        with self._changed:
            if settings.rate_per_cause_per_user != self._settings.rate_per_cause_per_user:
                self._tell_suppressed(math.inf)
                rate = settings.rate_per_cause_per_user
                self._limiter = RateLimiter(rate.burst, rate.interval)
                self._changed.notify()
            self.level = LEVELS.index(settings.level)
            self._settings = settings

    def record(
        self,
        message: LogMessage,
        *,
        uid: int | None = None,
        pid: int | None = None,
        connection: int | None = None,
        key: bytes | None = None,
        error: BaseException | None = None,
        **facts: Fact,
    ) -> None:
        """Record that *message* happened, because of the user *uid*'s process *pid* on *connection*, about *key*.

        *facts* fill the words of the message; *error* is an error of the bus itself, whose traceback goes to the journal alone.
        Returns at once and never raises: what cannot be written is counted.
        """
        if message.priority > self.level:
            return
        with self._changed:
            if self._allows(message, uid):
                cut = {name: fact if isinstance(fact, int) else fact[:MAX_FACT_BYTES] for name, fact in facts.items()}
                key = None if key is None else key[:MAX_FACT_BYTES]
                self._put(Record(message, uid, pid, connection, key, cut, _trace(error)))
                self._start_writer()
                self._changed.notify()

    def keeps(self, message: LogMessage) -> bool:
        """Return whether *message* is recorded at all under the level that holds; without it, :meth:`record` does nothing."""
        return message.priority <= self.level

    def flush(self, timeout: float = CLOSE_SECONDS) -> None:
        """Wait until what waits is written, for at most *timeout* seconds."""
        with self._changed:
            self._changed.wait_for(lambda: not self._state.waiting and not self._state.writing, timeout)

    def restore(self, counters: Mapping[str, int]) -> None:
        """Count on from an earlier process's *counters*, by their names; what waited then is lost, and told as such."""
        with self._changed:
            self._state.written += counters.get("written", 0)
            self._state.suppressed += counters.get("suppressed", 0)
            self._state.dropped += counters.get("dropped", 0)
            self._drop(counters.get("waiting", 0))

    def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Write what waits, for at most *timeout* seconds; what is left then is counted as dropped, as is all that comes later."""
        with self._changed:
            self._tell_suppressed(math.inf)
            self._state.closed = True
            self._changed.notify()
        if self._writer is not None:
            self._writer.join(timeout)
        if self._writer is None or not self._writer.is_alive():
            self._sink.close()
        with self._changed:
            self._drop(len(self._state.waiting))
            self._state.waiting.clear()

    def _allows(self, message: LogMessage, uid: int | None) -> bool:
        """Return whether the record may be made now, and count it if not."""
        now = self._clock()
        self._tell_suppressed(now)
        allowed = self._limiter.allows(message, uid, now)
        self._state.suppressed += not allowed
        return allowed

    def _tell_suppressed(self, now: float) -> None:
        """Record how many records were left out in the windows that have ended."""
        for suppressed in self._limiter.ended(now):
            whom = "many users" if suppressed.uid is None else f"uid {suppressed.uid}"
            facts: dict[str, Fact] = {"count": suppressed.count, "whom": whom, "name": suppressed.cause.name}
            self._put(Record(SUPPRESSED, suppressed.uid, facts=facts, priority=suppressed.cause.priority))

    def _put(self, record: Record) -> None:
        """Let *record* wait for the writer, or drop it."""
        if self._state.closed or len(self._state.waiting) >= MAX_WAITING:
            self._drop(1)
        else:
            self._state.waiting.append(record)

    def _drop(self, count: int) -> None:
        """Count records that are lost."""
        self._state.dropped += count
        self._state.untold += count

    def _start_writer(self) -> None:
        """Start the writer if it does not run."""
        if self._writer is not None or self._state.closed:
            return
        writer = threading.Thread(target=self._write_all, name="journal", daemon=True)
        try:
            writer.start()
        except RuntimeError:
            # No thread to be had: what waits stays, and the next record tries again.
            return
        self._writer = writer

    def _write_all(self) -> None:
        """Write records until the journal is closed and none waits: the writer's life."""
        # Signals are the bus's: they must interrupt its wait, not this one.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        while (record := self._next()) is not None:
            written = self._write(record)
            with self._changed:
                self._account(record, written=written)
                self._changed.notify_all()

    def _account(self, record: Record, *, written: bool) -> None:
        """Count what became of *record*; if writing works, tell next how many were lost before."""
        state = self._state
        state.writing = False
        if not written:
            self._drop(1)
            return
        state.written += 1
        if record.message is RECORDS_DROPPED:
            state.untold -= int(record.facts["count"])
        elif state.untold:
            # In front of all that waits, and beyond the bound, which only strangers' records must keep.
            state.waiting.appendleft(Record(RECORDS_DROPPED, facts={"count": state.untold}))

    def _next(self) -> Record | None:
        """Wait for the next record to write, and return it, or None at the end."""
        with self._changed:
            while True:
                self._tell_suppressed(self._clock())
                state = self._state
                if state.waiting:
                    state.writing = True
                    return state.waiting.popleft()
                if state.closed:
                    return None
                end = self._limiter.next_end()
                self._changed.wait(None if end is None else max(0.0, end - self._clock()))

    def _write(self, record: Record) -> bool:
        """Hand *record* to the sink, and return whether it took it."""
        try:
            self._sink.write(record)
        except Exception:  # Whatever a sink does wrong, it must not end the writer: the record counts as lost.
            return False
        return True


def _trace(error: BaseException | None) -> str:
    """Return the traceback of *error*, cut at its front."""
    if error is None:
        return ""
    # Imported here: a bus that works never needs it.
    import traceback  # noqa: PLC0415

    return "".join(traceback.format_exception(error))[-MAX_TRACE_CHARACTERS:]
