"""Whether the store may publish what is put into it: in the name of others, with the right ``vouch`` of sbusd.toml(5)."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable

from sbusd.client.errors import RemoteRefusal, SbusError, Unanswered
from sbusd.protocol import controls
from sbusd.protocol.errors import ErrorCode
from sbusd.protocol.vouching import loss_payload
from sbusd.store.access import CACHE_SECONDS, Ask

_NO_LOSS = loss_payload(0, [b"store/no-loss"])
"""A report without recipients: only subscribers of this very pattern would get it."""


class VouchRight:
    """The right of the store's user on the bus that *ask* reaches; *report* gets one line for the log."""

    def __init__(self, ask: Ask, report: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._ask = ask
        self._report = report
        self._clock = clock
        self._problem = ""
        self._until = float("-inf")
        self._asking: asyncio.Task[None] | None = None

    def forget(self) -> None:
        """Forget what the bus has said: there is another one."""
        self._until, self._asking = float("-inf"), None

    async def problem(self) -> str:
        """Return why the store may not publish messages, empty if it may; what the bus says holds for :data:`CACHE_SECONDS`."""
        while self._clock() >= self._until:
            # One question for all that wait for its answer; a call that is cancelled does not cancel it for the others.
            if self._asking is None or self._asking.done():
                self._asking = asyncio.ensure_future(self._learn())
                self._asking.add_done_callback(lambda asked: asked.cancelled() or asked.exception())
            try:
                await asyncio.shield(self._asking)
            except (SbusError, OSError):
                return ""  # it is not known; a message that the bus refuses is logged
        return self._problem

    async def _learn(self) -> None:
        """Ask the bus. Raises SbusError, OSError."""
        problem = await self._asked()
        if problem and problem != self._problem:
            self._report(problem)
        self._problem, self._until = problem, self._clock() + CACHE_SECONDS

    async def _asked(self) -> str:
        """Report a loss without recipients, which the bus answers only if the right is missing."""
        if b"vouch" not in (await self._ask(controls.FEATURES, b"")).split(b"\n"):
            return "the bus does not know the right vouch, which the store needs to publish messages: restart it with a newer sbusd"
        try:
            await self._ask(controls.LOST_FOR, _NO_LOSS)
        except RemoteRefusal as refusal:
            if refusal.code is not ErrorCode.EPERM or "vouch" not in refusal.words:
                return ""  # a rule refuses the pattern
            uid = os.geteuid()
        except Unanswered:
            return ""
        else:
            return ""
        words = f"user {uid}, whose process the store is, does not have the right vouch, so it cannot publish messages"
        return f'{words}: add "[rights]" and "vouch = {{ users = [{uid}] }}" to sbusd.toml(5), or set publish = false for the stream'
