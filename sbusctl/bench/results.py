"""The progress of a benchmark on a terminal, and its results, made from the reports of the workers."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from sbusctl.bench.workers import Plan, PublisherReport, SubscriberReport
from sbusctl.formatting import (
    NOTHING,
    Column,
    compact_bytes,
    compact_count,
    human_bytes,
    human_microseconds,
    human_plural,
    percentile,
)

PERCENTILES = (50, 90, 99)
BUSY = 0.9
"""A program that was busy for more than this part of the time is the bottleneck, not the bus."""

COLUMNS = (
    Column("SIZE", is_number=True),
    Column("PUBLISHED", is_number=True),
    Column("/S", is_number=True),
    Column("DELIVERED", is_number=True),
    Column("/S", is_number=True),
    Column("BYTES/S", is_number=True, rank=1),
    Column("LOST", is_number=True),
    Column("REFUSED", is_number=True, rank=3),
    *(Column(f"P{percent}", is_number=True, rank=2 if percent == 90 else 0) for percent in PERCENTILES),
    Column("MAX", is_number=True),
)


@dataclass(frozen=True, slots=True)
class RunResult:
    """The result of one run."""

    plan: Plan
    published: int
    publish_seconds: float
    """From the first message until the bus had routed the last."""
    delivered: int
    deliver_seconds: float
    """From the first message until the last subscriber had received its last."""
    lost: int
    """Messages that subscribers should have received, but did not."""
    refused: int
    refusal: str
    latencies: list[float]
    """From publish to receive under this load, in seconds, ascending; of a sample of the messages."""
    publishers_busy: float
    """The part of the time in which the busiest publisher was busy; the same for subscribers below."""
    subscribers_busy: float

    def as_json(self) -> dict[str, object]:
        """Return the run as a JSON object, in seconds, bytes and rates per second."""
        return {
            "size": self.plan.size,
            "published": self.published,
            "publish_seconds": round(self.publish_seconds, 6),
            "publish_rate": _rate(self.published, self.publish_seconds),
            "delivered": self.delivered,
            "deliver_seconds": round(self.deliver_seconds, 6),
            "deliver_rate": _rate(self.delivered, self.deliver_seconds),
            "deliver_bytes_rate": _rate(self.delivered * self.plan.size, self.deliver_seconds),
            "lost": self.lost,
            "refused": self.refused,
            "refusal": self.refusal,
            "latency": spread_of(self.latencies),
            "publishers_busy": round(self.publishers_busy, 3),
            "subscribers_busy": round(self.subscribers_busy, 3),
        }

    def cells(self) -> tuple[str, ...]:
        """Return the run as a row of :data:`COLUMNS`."""
        return (
            human_bytes(self.plan.size),
            compact_count(self.published),
            compact_count(_rate(self.published, self.publish_seconds)),
            compact_count(self.delivered),
            compact_count(_rate(self.delivered, self.deliver_seconds)),
            compact_bytes(_rate(self.delivered * self.plan.size, self.deliver_seconds)),
            str(self.lost),
            str(self.refused),
            *(human_microseconds(each) for each in spread_of(self.latencies).values()),
            *([NOTHING] * (len(PERCENTILES) + 1) if not self.latencies else []),
        )

    def notes(self) -> list[str]:
        """Return notes on this run, one per line."""
        lines = []
        size = human_bytes(self.plan.size)
        if self.refused:
            lines.append(f"{size}: the bus refused {human_plural(self.refused, 'message')}: {self.refusal}")
        if self.lost:
            lines.append(f"{size}: {human_plural(self.lost, 'message')} lost: the queues exceeded the quotas, or the bus stopped")
        busy = [name for name, part in (("publishers", self.publishers_busy), ("subscribers", self.subscribers_busy)) if part > BUSY]
        if busy:
            lines.append(f"{size}: the {' and the '.join(busy)} were CPU-bound: the limit is Python, not the bus")
        return lines


def result_of(plan: Plan, published: Sequence[PublisherReport], received: Sequence[SubscriberReport]) -> RunResult:
    """Return the result of the workers' reports; there is at least one publisher."""
    begin = min(each.begin_ns for each in published)
    sent = sum(each.count for each in published)
    refused = sum(each.refusals for each in published)
    delivered = sum(each.count for each in received)
    publish_seconds = _seconds(begin, max(each.end_ns for each in published))
    deliver_seconds = _seconds(begin, max((each.last_ns for each in received), default=begin))
    return RunResult(
        plan=plan,
        published=sent,
        publish_seconds=publish_seconds,
        delivered=delivered,
        deliver_seconds=deliver_seconds,
        lost=max(0, (sent - min(refused, sent)) * plan.subscribers - delivered),
        refused=refused,
        refusal=next((each.refusal for each in published if each.refusal), ""),
        latencies=sorted(time / 1e9 for each in received for time in each.times),
        publishers_busy=max(_part(each.cpu_seconds, _seconds(each.begin_ns, each.end_ns)) for each in published),
        subscribers_busy=max((_part(each.cpu_seconds, _seconds(begin, each.last_ns)) for each in received), default=0.0),
    )


def spread_of(ascending: list[float]) -> dict[str, float]:
    """Return the percentiles and the maximum of times; empty if there are none."""
    if not ascending:
        return {}
    return {f"p{percent}": percentile(ascending, percent) for percent in PERCENTILES} | {"max": ascending[-1]}


def _seconds(begin_ns: int, end_ns: int) -> float:
    """Return a duration in seconds, at least 0."""
    return max(0, end_ns - begin_ns) / 1e9


def _part(some: float, whole: float) -> float:
    """Return *some* divided by *whole*; 0 if *whole* is 0."""
    return min(1.0, some / whole) if whole else 0.0


def _rate(number: int, seconds: float) -> float:
    """Return a rate per second; 0 if *seconds* is 0."""
    return round(number / seconds, 1) if seconds else 0.0


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
