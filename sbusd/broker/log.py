"""The log of the bus, which never blocks the bus. Spec: sbusd(8).

Rules:

1. :meth:`BusLog.record` never blocks and never raises. One thread writes the records. It starts with the first record, so never before the
   bus has gone to the background.
2. The queue for that thread is bounded. Records that find it full or that cannot be written are counted. The log records their number as
   soon as writing works again.
3. Records are rate-limited per charged user and message. The suppressed ones are counted, and their number is recorded.
"""

from __future__ import annotations

import math
import signal
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from sbus_programs.config import LogSettings
from sbus_programs.config.settings import LEVELS
from sbus_programs.systemd.log_records import MAX_FACT_BYTES, Fact, LogMessage, LogSink, Record, bounded, choose_sink
from sbusd.broker.log_messages import RECORDS_DROPPED, SUPPRESSED

MAX_WAITING = 512
"""Maximum number of pending records: one or two megabytes with :data:`MAX_FACT_BYTES`, and far more than a second's worth."""

MAX_TRACE_CHARACTERS = 16_384
"""Maximum length of a traceback. The end is kept, because it names the error."""

CLOSE_SECONDS = 10.0
"""How long a bus that stops waits for the last records to be written."""

FLUSH_SECONDS = 1.0
"""How long a bus that restarts waits for that: its clients wait meanwhile."""

MAX_WINDOWS = 4_096
"""Maximum number of open windows of the rate limit: some hundred users with every cause."""

Cause = TypeVar("Cause", bound=Hashable)


class LogCounters(NamedTuple):
    """Numbers of records. ``written + suppressed + dropped + waiting`` are all records, including those of the log itself."""

    written: int
    suppressed: int
    """Not written because of the rate limit."""
    dropped: int
    """Lost because the queue was full or writing failed."""
    waiting: int


@dataclass(slots=True)
class _State:
    """The state that both threads share, under one lock."""

    waiting: deque[Record] = field(default_factory=deque)
    written: int = 0
    suppressed: int = 0
    dropped: int = 0
    unreported: int = 0
    """Records dropped since the last record that reported dropped ones."""
    writing: bool = False
    """Whether the sink writes a record now."""
    closed: bool = False


class BusLog:
    """The log of a bus. Call :meth:`close` at the end."""

    def __init__(self, sink: LogSink, settings: LogSettings, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Write to *sink*; *clock* counts seconds, for tests."""
        rate = settings.rate_per_cause_per_user
        self.charged: Callable[[int], int] = int
        """Returns the user whose rate limit the records about a uid use."""
        self._sink = sink
        self._settings = settings
        self.level = LEVELS.index(settings.level)
        self._clock = clock
        self._limiter: RateLimiter[LogMessage] = RateLimiter(rate.burst, rate.interval)
        self._state = _State()
        # Its lock protects the fields above. It is never held while the sink writes.
        self._changed = threading.Condition()
        self._writer: threading.Thread | None = None

    @classmethod
    def open(cls, settings: LogSettings, *, background: bool) -> BusLog:
        """Return the log of a bus in the *background* or in the foreground. Starts no thread yet."""
        return cls(choose_sink("sbusd", background=background), settings)

    @property
    def counters(self) -> LogCounters:
        """The counters so far."""
        with self._changed:
            state = self._state
            return LogCounters(state.written, state.suppressed, state.dropped, len(state.waiting) + state.writing)

    def configure(self, settings: LogSettings) -> None:
        """Apply *settings*. If the rate limit changes, the records suppressed so far are reported first."""
        with self._changed:
            if settings.rate_per_cause_per_user != self._settings.rate_per_cause_per_user:
                self._report_suppressed(math.inf)
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
        unit: str | None = None,
        key: bytes | None = None,
        error: BaseException | None = None,
        **facts: Fact,
    ) -> None:
        """Log *message* about the process *pid* of the user *uid* in *unit* on *connection*, and about *key*.

        *facts* fill the template of the message. *error* is an internal error of the bus; its traceback goes to the journal only.
        Returns at once and never raises: a record that cannot be written is counted.
        """
        if message.priority > self.level:
            return
        with self._changed:
            if self._allows(message, uid):
                key = None if key is None else key[:MAX_FACT_BYTES]
                self._put(Record(message, uid, pid, connection, key, bounded(facts), _trace(error), unit=unit))
                self._start_writer()
                self._changed.notify()

    def keeps(self, message: LogMessage) -> bool:
        """Return whether the current level allows *message*; otherwise :meth:`record` does nothing."""
        return message.priority <= self.level

    def flush(self, timeout: float = FLUSH_SECONDS) -> None:
        """Wait until all pending records are written, for at most *timeout* seconds."""
        with self._changed:
            self._changed.wait_for(lambda: not self._state.waiting and not self._state.writing, timeout)

    def restore(self, counters: Mapping[str, int]) -> None:
        """Continue the *counters* of the previous process, by their names. Records that were pending then count as dropped."""
        with self._changed:
            self._state.written += counters.get("written", 0)
            self._state.suppressed += counters.get("suppressed", 0)
            self._state.dropped += counters.get("dropped", 0)
            self._drop(counters.get("waiting", 0))

    def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Write the pending records, for at most *timeout* seconds. The rest, and all later ones, count as dropped."""
        with self._changed:
            self._report_suppressed(math.inf)
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
        """Return whether the rate limit allows the record now, and count it if not."""
        now = self._clock()
        self._report_suppressed(now)
        allowed = self._limiter.allows(message, None if uid is None else self.charged(uid), now)
        self._state.suppressed += not allowed
        return allowed

    def _report_suppressed(self, now: float) -> None:
        """Record how many records were suppressed in the windows that have ended."""
        for suppressed in self._limiter.ended(now):
            whom = "many users" if suppressed.uid is None else f"uid {suppressed.uid}"
            facts: dict[str, Fact] = {"count": suppressed.count, "whom": whom, "name": suppressed.cause.name}
            self._put(Record(SUPPRESSED, suppressed.uid, facts=facts, priority=suppressed.cause.priority))

    def _put(self, record: Record) -> None:
        """Queue *record* for the writer, or drop it."""
        if self._state.closed or len(self._state.waiting) >= MAX_WAITING:
            self._drop(1)
        else:
            self._state.waiting.append(record)

    def _drop(self, count: int) -> None:
        """Count dropped records."""
        self._state.dropped += count
        self._state.unreported += count

    def _start_writer(self) -> None:
        """Start the writer thread if it does not run."""
        if self._writer is not None or self._state.closed:
            return
        writer = threading.Thread(target=self._write_all, name="journal", daemon=True)
        try:
            writer.start()
        except RuntimeError:
            # The process cannot have another thread. The next record tries again.
            return
        self._writer = writer

    def _write_all(self) -> None:
        """Write records until the log is closed and none is pending: the writer thread."""
        # Signals must interrupt the loop of the bus, not this thread.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        while (record := self._next()) is not None:
            written = self._write(record)
            with self._changed:
                self._account(record, written=written)
                self._changed.notify_all()

    def _account(self, record: Record, *, written: bool) -> None:
        """Count *record* as *written* or dropped. If it was written, report earlier dropped records next."""
        state = self._state
        state.writing = False
        if not written:
            self._drop(1)
            return
        state.written += 1
        if record.message is RECORDS_DROPPED:
            state.unreported -= int(record.facts["count"])
        elif state.unreported:
            # Before all pending records, and even if the queue is full.
            state.waiting.appendleft(Record(RECORDS_DROPPED, facts={"count": state.unreported}))

    def _next(self) -> Record | None:
        """Wait for the next record, and return it, or None at the end."""
        with self._changed:
            while True:
                self._report_suppressed(self._clock())
                state = self._state
                if state.waiting:
                    state.writing = True
                    return state.waiting.popleft()
                if state.closed:
                    return None
                end = self._limiter.next_end()
                self._changed.wait(None if end is None else max(0.0, end - self._clock()))

    def _write(self, record: Record) -> bool:
        """Write *record* to the sink, and return whether that worked."""
        try:
            self._sink.write(record)
        except Exception:  # A defect of the sink must not end the thread: the record counts as dropped.
            return False
        return True


def _trace(error: BaseException | None) -> str:
    """Return the traceback of *error*, without its beginning if it is too long."""
    if error is None:
        return ""
    return "".join(traceback.format_exception(error))[-MAX_TRACE_CHARACTERS:]


@dataclass(slots=True)
class _Window:
    """The window of one cause and user since ``opened``, in seconds of the caller's clock."""

    opened: float
    passed: int = 0
    suppressed: int = 0


@dataclass(frozen=True, slots=True)
class Suppressed(Generic[Cause]):
    """The number of suppressed records of ``cause`` about the user ``uid``; None means no user, or many that shared a window."""

    cause: Cause
    uid: int | None
    count: int


class RateLimiter(Generic[Cause]):
    """The rate limit per user and cause, so that no user can fill the machine's journal. The caller passes the time.

    The first record of a cause about a user opens a window of ``interval`` seconds, which admits ``burst`` records; the others are counted.
    At the end of the window their number is reported. The table is bounded. When it is full, new users share one window per cause: many
    users cost no more memory, and do not suppress the records of users in the table.
    """

    def __init__(self, burst: int, interval: float, max_windows: int = MAX_WINDOWS) -> None:
        self._burst = burst
        self._interval = interval
        self._max_windows = max_windows
        # In the order in which they were opened, so the first one ends first.
        self._windows: dict[tuple[Cause, int | None], _Window] = {}
        self._shared: dict[Cause, _Window] = {}

    def allows(self, cause: Cause, uid: int | None, now: float) -> bool:
        """Return whether a record may be written, and count it. Call :meth:`ended` first to close old windows."""
        window = self._windows.get((cause, uid))
        if window is None:
            if len(self._windows) < self._max_windows:
                window = self._windows[cause, uid] = _Window(now)
            else:
                window = self._shared.setdefault(cause, _Window(now))
        if window.passed < self._burst:
            window.passed += 1
            return True
        window.suppressed += 1
        return False

    def ended(self, now: float) -> list[Suppressed[Cause]]:
        """Close the windows that have ended, and return the number of suppressed records of each that has some."""
        found = []
        while self._windows:
            key, window = next(iter(self._windows.items()))
            if now - window.opened < self._interval:
                break
            del self._windows[key]
            if window.suppressed:
                found.append(Suppressed(key[0], key[1], window.suppressed))
        for cause, window in list(self._shared.items()):
            if now - window.opened >= self._interval:
                del self._shared[cause]
                if window.suppressed:
                    found.append(Suppressed(cause, None, window.suppressed))
        return found

    def next_end(self) -> float | None:
        """Return when the first window ends, or None if no window is open."""
        opened = [next(iter(self._windows.values())).opened] if self._windows else []
        opened += [window.opened for window in self._shared.values()]
        return min(opened) + self._interval if opened else None

    def __len__(self) -> int:
        """Return the number of open windows."""
        return len(self._windows) + len(self._shared)
