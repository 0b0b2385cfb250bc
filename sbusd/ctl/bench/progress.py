"""How far a bench is, live, on a terminal that somebody looks at; on standard error, so that what is measured can go into a pipe."""

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
    """One line that is written over again and again, and is gone at the end; nothing where standard error is no terminal."""

    def __init__(self) -> None:
        self._live: Live | None = None
        self._begin = time.monotonic()
        self._before = (self._begin, 0, 0)

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            # Refreshed by hand: a thread of its own could not be where workers are made by fork.
            self._live = Live(console=Console(stderr=True, highlight=False), auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Take the line away."""
        if self._live is not None:
            self._live.stop()

    def begin(self) -> None:
        """Note that a run begins."""
        self._begin = time.monotonic()
        self._before = (self._begin, 0, 0)

    def show(self, plan: Plan, published: int, received: int) -> None:
        """Show how much was published and received until now, and the rates since the last look."""
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
    """Return when the run will be over."""
    return f" of {plan.seconds:g}s" if plan.count is None else f", to {compact_count(plan.count * plan.clients)} messages"
