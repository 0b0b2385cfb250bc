"""Closes the current segment on request, so that a report can include the last minutes.

A request is answered when all rows that the bus had routed before it are in segments of the archive. Requests are handled one after
another, at most one in :data:`INTERVAL_SECONDS`, because each makes a file.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from sbusd.protocol.errors import SbusError
from sbusd.recorder.converter import Converter
from sbusd.recorder.recording import Recording
from sbusd.recorder.tap import RecorderTap

INTERVAL_SECONDS = 5.0
"""The shortest interval between two segments that are closed on request."""

READING_SECONDS = 30.0
"""Maximum time for reading what the bus has queued."""

_POLL_SECONDS = 0.05
"""Interval at which the loop looks whether the converter is done."""

_STOPPED = "the recorder stopped"


class ClosingError(SbusError):
    """A segment could not be closed; the text says why."""


@dataclass(slots=True)
class Closing:
    """One request: ``rows`` is the number of rows in the file that it ended. Other threads call :meth:`wait`."""

    rows: int = 0
    failure: str | None = None
    _ended: threading.Event = field(default_factory=threading.Event)

    def wait(self, seconds: float) -> int:
        """Return the number of rows when the segment is in the archive. Raises ClosingError."""
        if not self._ended.wait(seconds):
            raise ClosingError(f"the segment is not in the archive after {seconds:.0f} s; the recorder continues with it")
        if self.failure is not None:
            raise ClosingError(self.failure)
        return self.rows

    def end(self, failure: str | None = None) -> None:
        """Answer the request."""
        self.failure = failure
        self._ended.set()


class SegmentCloser:
    """The requests of one recorder. Its loop calls :meth:`turn` at the time :attr:`due`; other threads call :meth:`request`."""

    def __init__(self, tap: RecorderTap, recording: Recording, converter: Converter, clock: Callable[[], float] = time.monotonic) -> None:
        """*clock* counts seconds, for tests."""
        self.has_stopped = False
        """Whether :meth:`stop` was called."""
        self._tap = tap
        self._recording = recording
        self._converter = converter
        self._clock = clock
        self._waiting: deque[Closing] = deque()
        self._current: Closing | None = None
        self._reading_until: float | None = None
        self._mark = 0
        """Number of files that must be converted before the current request is answered."""
        self._next_at = clock()

    def request(self) -> Closing:
        """Add a request; the caller must wake up the loop."""
        closing = Closing()
        self._waiting.append(closing)
        if self.has_stopped:
            closing.end(_STOPPED)
        return closing

    @property
    def due(self) -> float | None:
        """The time of the next :meth:`turn`, None if there is nothing to do."""
        if self._current is not None:
            return self._clock() + _POLL_SECONDS
        return self._next_at if self._waiting else None

    def turn(self) -> None:
        """Do the work that is due."""
        now = self._clock()
        if self._current is None:
            if not self._waiting or now < self._next_at:
                return
            self._current, self._next_at = self._waiting.popleft(), now + INTERVAL_SECONDS
            self._tap.request_end()
            self._reading_until = now + READING_SECONDS
        if self._reading_until is not None and self._has_read_all():
            self._reading_until = None
            self._current.rows = self._recording.rotate()
            self._mark = self._converter.submitted
        if self._reading_until is None:
            self._answer(self._current)
        elif now >= self._reading_until:
            self._reading_until = None
            self._current.end(f"the bus did not send what it had queued within {READING_SECONDS:g} s; the recorder continues with it")
            self._current = None

    def stop(self) -> None:
        """Answer all requests: the loop has ended."""
        self.has_stopped = True
        if self._current is not None:
            self._waiting.append(self._current)
            self._current = None
        while self._waiting:
            self._waiting.popleft().end(_STOPPED)

    def _has_read_all(self) -> bool:
        """Return whether everything was read that the bus had sent before the request, or the bus is away."""
        return self._tap.has_ended or self._tap.fileno() is None

    def _answer(self, closing: Closing) -> None:
        """Answer the current request if its segments are in the archive, or cannot be written."""
        if (reason := self._recording.outage) is not None:
            closing.end(f"recording is suspended: {reason}; see the log of sbus-recorder")
        elif self._converter.finished >= self._mark:
            closing.end()
        elif (reason := self._converter.problem) is not None:
            closing.end(f"cannot write to the archive: {reason}; see the log of sbus-recorder")
        else:
            return
        self._current = None
