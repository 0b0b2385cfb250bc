"""How often one cause may be recorded about one user, so that nobody fills the machine's journal.

A window opens with the first record of a message about a user, and takes ``burst`` of them; the others are counted. When it
has ended, what was counted is told once. The table is bounded: when it is full, users who are not yet in it share one window
for each message, so a crowd of users costs no more memory, and silences nobody who is in it.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

MAX_WINDOWS = 4_096
"""Windows that are open at once: some hundred users, each with every cause there is."""

Cause = TypeVar("Cause", bound=Hashable)


@dataclass(slots=True)
class _Window:
    """One cause about one user since ``opened``, in seconds of the caller's clock."""

    opened: float
    passed: int = 0
    suppressed: int = 0


@dataclass(frozen=True, slots=True)
class Suppressed(Generic[Cause]):
    """How many records of ``cause`` about the user ``uid`` were left out; None: about no user, or about many who shared a window."""

    cause: Cause
    uid: int | None
    count: int


class RateLimiter(Generic[Cause]):
    """Windows of ``interval`` seconds with at most ``burst`` records each. Has no clock: each call is told the time."""

    def __init__(self, burst: int, interval: float, max_windows: int = MAX_WINDOWS) -> None:
        self._burst = burst
        self._interval = interval
        self._max_windows = max_windows
        # In the order in which they were opened, so the first is the first to end.
        self._windows: dict[tuple[Cause, int | None], _Window] = {}
        self._shared: dict[Cause, _Window] = {}

    def allows(self, cause: Cause, uid: int | None, now: float) -> bool:
        """Return whether a record may be written, and count it either way. Call :meth:`ended` before, lest an old window decide."""
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
        """Close the windows that have ended, and return what each left out, if it did."""
        told = []
        while self._windows:
            key, window = next(iter(self._windows.items()))
            if now - window.opened < self._interval:
                break
            del self._windows[key]
            if window.suppressed:
                told.append(Suppressed(key[0], key[1], window.suppressed))
        for cause, window in list(self._shared.items()):
            if now - window.opened >= self._interval:
                del self._shared[cause]
                if window.suppressed:
                    told.append(Suppressed(cause, None, window.suppressed))
        return told

    def next_end(self) -> float | None:
        """Return when the first window ends, or None if none is open."""
        opened = [next(iter(self._windows.values())).opened] if self._windows else []
        opened += [window.opened for window in self._shared.values()]
        return min(opened) + self._interval if opened else None

    def __len__(self) -> int:
        """Return how many windows are open."""
        return len(self._windows) + len(self._shared)
