"""``sbusctl ping``: measures the round-trip time to the bus."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated

import typer

from sbusd.ctl.output import JsonStyle, write_json, write_lines
from sbusd.ctl.quantities import human_microseconds, percentile
from sbusd.ctl.settings import settings_of

_PERCENTILES = (50, 90, 99)


def command(
    context: typer.Context,
    *,
    count: Annotated[int, typer.Option("--count", "-c", min=1, max=10_000_000, metavar="COUNT", help="Number of round trips.")] = 10,
    interval: Annotated[float, typer.Option("--interval", "-i", min=0, metavar="SECONDS", help="Pause between round trips.")] = 0.1,
) -> None:
    """Measure the round-trip time to the bus."""
    settings = settings_of(context)
    trips: list[float] = []
    with settings.connect() as bus:
        try:
            measure(bus.ping, trips, count, interval)
        finally:
            # Also after Ctrl-C: print what was measured.
            if trips:
                figures = summary(trips)
                if settings.json is JsonStyle.OFF:
                    write_lines(lines(figures, legend=settings.legend))
                else:
                    write_json(figures, settings.json)


def measure(
    ping: Callable[[], float], trips: list[float], count: int, interval: float, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Append *count* round trips, in seconds, to *trips*, with pauses of *interval* seconds."""
    for index in range(count):
        if index and interval:
            sleep(interval)
        trips.append(ping())


def summary(trips: list[float]) -> dict[str, float]:
    """Return ``count``, and in seconds minimum, maximum and percentiles (nearest rank) of *trips*, which is not empty."""
    ordered = sorted(trips)
    ranks = {f"p{percent}": percentile(ordered, percent) for percent in _PERCENTILES}
    return {"count": len(ordered), "min": ordered[0], **ranks, "max": ordered[-1]}


def lines(figures: dict[str, float], *, legend: bool) -> list[str]:
    """Return *figures* as two lines of columns, without a legend only the second."""
    cells = [f"{value:.0f}" if name == "count" else human_microseconds(value) for name, value in figures.items()]
    widths = [max(len(name), len(cell)) for name, cell in zip(figures, cells, strict=True)]
    rows = [[name.upper() for name in figures], cells] if legend else [cells]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
