"""Live progress of a benchmark on a terminal. It uses standard error, so that the results can be piped."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from sbusd.ctl.bench.plan import Plan
from sbusd.ctl.quantities import compact_count, human_bytes


class ProgressLine:
    """One line that is updated and removed at the end; nothing if standard error is not a terminal."""

    def __init__(self) -> None:
        self._live: Live | None = None
        self._begin = time.monotonic()
        self._before = (self._begin, 0, 0)

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            # Refreshed manually, because a refresh thread does not survive the fork of the workers.
            self._live = Live(console=Console(stderr=True, highlight=False), auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Remove the line."""
        if self._live is not None:
            self._live.stop()

    def begin(self) -> None:
        """Begin a run."""
        self._begin = time.monotonic()
        self._before = (self._begin, 0, 0)

    def show(self, plan: Plan, published: int, received: int) -> None:
        """Show the numbers of published and received messages, and the rates since the last call."""
        now = time.monotonic()
        then, published_then, received_then = self._before
        if self._live is None or now <= then:
            return
        self._before = (now, published, received)
        seconds = now - then
        self._live.update(
            Text(
                f"{human_bytes(plan.size)}  {now - self._begin:.0f}s{_goal(plan)}  "
                f"published {compact_count(published)} ({compact_count((published - published_then) / seconds)}/s)  "
                f"delivered {compact_count(received)} ({compact_count((received - received_then) / seconds)}/s)",
                no_wrap=True,
                overflow="ellipsis",
            ),
            refresh=True,
        )


def _goal(plan: Plan) -> str:
    """Return when the run ends."""
    return f" of {plan.seconds:g}s" if plan.count is None else f", to {compact_count(plan.count * plan.clients)} messages"
