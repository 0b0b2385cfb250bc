"""A log with a rate limit for messages that others can cause: repeated ones of one cause are counted, and logged once per interval."""

from __future__ import annotations

import time
from collections.abc import Callable

from sbusd.systemd.log_records import Fact, LogMessage, LogSink, ServiceLog

QUIET_SECONDS = 10.0
"""Seconds for which the same message with the same cause is only counted: a flood becomes one record per interval."""

MAX_CAUSES = 1_000
"""Maximum number of remembered causes. Further ones, such as the addresses of one attacker, share one."""


class LimitedLog(ServiceLog):
    """The log of one program, with a rate limit for messages that other hosts or users can cause."""

    def __init__(self, identifier: str, sink: LogSink | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """Write to *sink*, by default the journal or standard error; *clock* counts seconds, for tests."""
        super().__init__(identifier, sink)
        self._clock = clock
        self._quiet_until: dict[tuple[str, str], float] = {}
        self._counts: dict[tuple[str, str], int] = {}

    def record_limited(self, message: LogMessage, cause: str, /, **facts: Fact) -> None:
        """Log *message* with its ``count`` since the last record, unless the same *cause* was logged less than QUIET_SECONDS ago."""
        key = (message.name, cause)
        now = self._clock()
        if key not in self._quiet_until and len(self._quiet_until) >= MAX_CAUSES:
            self._forget(now)
            if len(self._quiet_until) >= MAX_CAUSES:
                key = (message.name, "")
        self._counts[key] = self._counts.get(key, 0) + 1
        if now < self._quiet_until.get(key, now):
            return
        self._quiet_until[key] = now + QUIET_SECONDS
        self.record(message, **facts, count=self._counts.pop(key))

    def _forget(self, now: float) -> None:
        """Forget causes that can be logged again and have nothing to count."""
        for key in [key for key, until in self._quiet_until.items() if until <= now and key not in self._counts]:
            del self._quiet_until[key]
