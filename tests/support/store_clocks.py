"""A clock for stores in tests: all clocks show the time that a function returns."""

from __future__ import annotations

from collections.abc import Callable

from sbus_services.store.engine.clocks import KeptClock


class OneClock:
    """Shows what *time* returns, in milliseconds since 1970, and doubts nothing."""

    def __init__(self, time: Callable[[], int]) -> None:
        self._time = time
        self.kept = KeptClock()
        self.is_doubted = False

    def start(self, kept: KeptClock, newest: int) -> None:
        pass

    def now(self) -> int:
        return self._time()

    def leases(self) -> int:
        return self._time()

    def date(self) -> int:
        return self._time()

    def cutoff(self, age_ms: int) -> int:
        return self._time() - age_ms

    def stored(self, date: int) -> None:
        pass
