"""Closes the current segment on request, such as ``recorder/close``, so that a report can include the last minutes.

A request is answered when all rows that the bus had routed before it are in segments of the archive. Requests are handled one after
another, at most one in :data:`INTERVAL_SECONDS`, because each makes a file.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from sbus import Bus, Request
from sbus.errors import RemoteRefusal, ServiceError
from sbus.protocol.errors import SbusError
from sbus.reconnection import ReconnectAttempts
from sbus.rpc.caller_access import Allow
from sbus_archive.recorder.converter import Converter
from sbus_archive.recorder.recording import Recording
from sbus_archive.recorder.tap import RecorderTap

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


COMMAND = "recorder/close"

CLOSING_SECONDS = 60.0
"""Maximum time until a segment is in the archive."""


class Administration:
    """The second connection of the recorder, in a thread of its own. Only root and the recorder's user may call."""

    def __init__(self, address: str, archive: str, close: Callable[[], Closing], report: Callable[[str], None]) -> None:
        """Serve on the bus at *address*; *close* asks for a segment, *report* gets a line if the bus refuses it."""
        self._address = address
        self._archive = archive
        self._close = close
        self._report = report
        self._is_stopping = threading.Event()
        self._bus: Bus | None = None
        self._thread = threading.Thread(target=self._run, name="administration", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the connection. Does not wait for it: a bus that does not respond must not delay the exit."""
        self._is_stopping.set()
        if (bus := self._bus) is not None:
            with contextlib.suppress(SbusError, OSError):
                bus.close()

    def _run(self) -> None:
        """Serve, and connect again whenever the connection ends, until stopped."""
        backoff, reported = ReconnectAttempts(time.monotonic()), ""
        while not self._is_stopping.wait(max(0.0, backoff.due - time.monotonic())):
            backoff.attempt(time.monotonic())
            try:
                with Bus.connect(self._address, name="sbus-recorder calls") as bus:
                    self._bus = bus
                    bus.service(COMMAND, allow=Allow(users=tuple({0, os.geteuid()})))(self._on_close)
                    backoff.connected(time.monotonic())
                    bus.serve()
            except RemoteRefusal as refusal:
                if refusal.said != reported:
                    reported = refusal.said
                    self._report(reported)
            except (SbusError, OSError):
                pass  # a bus that is away is reported by the tap
            finally:
                self._bus = None
            backoff.lost(time.monotonic())

    def _on_close(self, request: Request) -> bytes:
        """Close the current segment, and return the archive and the number of rows as JSON."""
        seconds = CLOSING_SECONDS
        if request.expires_at is not None:
            seconds = min(seconds, max(0.0, request.expires_at - time.time()))
        try:
            rows = self._close().wait(seconds)
        except ClosingError as error:
            raise ServiceError(str(error)) from None
        return json.dumps({"archive": self._archive, "rows": rows}).encode()
