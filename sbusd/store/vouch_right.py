"""Whether the store may publish what is put into it: in the name of others, with the right ``vouch`` of sbusd.toml(5)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from sbusd.client.errors import RemoteRefusal, SbusError, Unanswered
from sbusd.protocol import controls
from sbusd.protocol.errors import ErrorCode
from sbusd.store.access import CACHE_SECONDS, Ask


class VouchRight:
    """The right of the store's user on the bus that *ask* reaches; *report* gets one line for the log."""

    def __init__(self, ask: Ask, report: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._ask = ask
        self._report = report
        self._clock = clock
        self._problem = ""
        self._until = float("-inf")

    def forget(self) -> None:
        """Forget what the bus has said: there is another one."""
        self._until = float("-inf")

    async def problem(self) -> str:
        """Return why the store may not publish messages, empty if it may; what the bus says holds for :data:`CACHE_SECONDS`."""
        if self._clock() >= self._until:
            try:
                problem = await self._asked()
            except (SbusError, OSError):
                return ""  # it is not known; a message that the bus refuses is logged
            if problem and problem != self._problem:
                self._report(problem)
            self._problem, self._until = problem, self._clock() + CACHE_SECONDS
        return self._problem

    async def _asked(self) -> str:
        """Ask the bus: it refuses an empty report of losses either for its form or because of the missing right."""
        try:
            await self._ask(controls.LOST_FOR, b"")
        except RemoteRefusal as refusal:
            if refusal.code is not ErrorCode.EPERM:
                return ""
            uid = os.geteuid()
        except Unanswered:
            return "the bus does not know the right vouch, which the store needs to publish messages: restart it with a newer sbusd"
        else:
            return ""
        words = f"user {uid}, whose process the store is, does not have the right vouch, so it cannot publish messages"
        return f'{words}: add "[rights]" and "vouch = {{ users = [{uid}] }}" to sbusd.toml(5), or set publish = false for the stream'
