"""The rate limit of log records, per user and cause, so that no user can fill the machine's journal.

The first record of a cause about a user opens a window, which admits ``burst`` records; the others are counted. At the end of the window
their number is reported. The table is bounded. When it is full, new users share one window per cause: many users cost no more memory, and
do not suppress the records of users in the table.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

MAX_WINDOWS = 4_096
"""Maximum number of open windows: some hundred users with every cause."""

Cause = TypeVar("Cause", bound=Hashable)


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
    """Windows of ``interval`` seconds with at most ``burst`` records each. The caller passes the time."""

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
