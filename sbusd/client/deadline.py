"""How long a call may still take."""

from __future__ import annotations

import time

from sbusd.client.errors import TimedOut


class Deadline:
    """The end of the time that *what* may take: *seconds* from now, or never if that is None."""

    __slots__ = ("_at", "_seconds", "_what")

    def __init__(self, what: str, seconds: float | None) -> None:
        self._what = what
        self._seconds = seconds
        self._at = None if seconds is None else time.monotonic() + seconds

    def remaining(self) -> float | None:
        """Return the seconds that are left, 0 or more, or None if there is no end."""
        return None if self._at is None else max(0.0, self._at - time.monotonic())

    def check(self) -> None:
        """Raise TimedOut if the time is over."""
        if self._at is not None and time.monotonic() >= self._at:
            raise self.expired()

    def expired(self) -> TimedOut:
        """Return the error for the end of this time."""
        return TimedOut(self._what, self._seconds or 0.0)
