"""Short requests to the bus: ``sbusctl whoami``, ``sbusctl ping`` and ``sbusctl version``."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Annotated

import typer

from sbus.protocol import __version__, controls
from sbus.protocol.errors import SbusError
from sbusctl.errors import error_text
from sbusctl.formatting import human_microseconds, percentile
from sbusctl.output import JsonStyle, visible, write_json, write_lines
from sbusctl.settings import MAX_SECONDS, Settings, settings_of

_PERCENTILES = (50, 90, 99)

_VERSION_SECONDS = 5.0
"""Short, because the version of sbusctl should be printed soon even if the bus hangs."""


def whoami_command(context: typer.Context) -> None:
    """Print the caller's identity, as the kernel reports it.

    The output is the key for private messages to this process: !/cred/GID/UID/PID.
    """
    settings = settings_of(context)
    with settings.connect() as bus:
        key = bus.whoami()
    if settings.json is JsonStyle.OFF:
        write_lines([visible(key)])
    else:
        write_json({"key": visible(key)}, settings.json)


def ping_command(
    context: typer.Context,
    *,
    count: Annotated[int, typer.Option("--count", "-c", min=1, max=10_000_000, metavar="COUNT", help="Number of round trips.")] = 10,
    interval: Annotated[
        float, typer.Option("--interval", "-i", min=0, max=MAX_SECONDS, metavar="SECONDS", help="Pause between round trips.")
    ] = 0.1,
) -> None:
    """Measure the round-trip time to the bus."""
    settings = settings_of(context)
    trips: list[float] = []
    with settings.connect() as bus:
        try:
            measure_trips(bus.ping, trips, count, interval)
        finally:
            # Also after Ctrl-C: print what was measured.
            if trips:
                figures = trip_summary(trips)
                if settings.json is JsonStyle.OFF:
                    write_lines(trip_lines(figures, legend=settings.legend))
                else:
                    write_json(figures, settings.json)


def measure_trips(
    ping: Callable[[], float], trips: list[float], count: int, interval: float, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Append *count* round trips, in seconds, to *trips*, with pauses of *interval* seconds."""
    for index in range(count):
        if index and interval:
            sleep(interval)
        trips.append(ping())


def trip_summary(trips: list[float]) -> dict[str, float]:
    """Return ``count``, and in seconds minimum, maximum and percentiles (nearest rank) of *trips*, which is not empty."""
    ordered = sorted(trips)
    ranks = {f"p{percent}": percentile(ordered, percent) for percent in _PERCENTILES}
    return {"count": len(ordered), "min": ordered[0], **ranks, "max": ordered[-1]}


def trip_lines(figures: dict[str, float], *, legend: bool) -> list[str]:
    """Return *figures* as two lines of columns, without a legend only the second."""
    cells = [f"{value:.0f}" if name == "count" else human_microseconds(value) for name, value in figures.items()]
    widths = [max(len(name), len(cell)) for name, cell in zip(figures, cells, strict=True)]
    rows = [[name.upper() for name in figures], cells] if legend else [cells]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]


def version_command(context: typer.Context) -> None:
    """Print the versions of sbusctl and of the bus.

    A bus that cannot be reached is reported, and is not an error.
    """
    settings = settings_of(context)
    versions = fetch_versions(settings)
    if settings.json is JsonStyle.OFF:
        write_lines(version_lines(versions))
    else:
        write_json(versions, settings.json)


def fetch_versions(settings: Settings) -> dict[str, str | None]:
    """Return the versions: ``sbusctl``, and ``bus`` and ``switch``, or ``problem`` if no bus responds."""
    from sbusctl.responses import ask, text  # noqa: PLC0415 - whoami and ping start faster without it

    versions: dict[str, str | None] = {"sbusctl": __version__}
    try:
        with settings.connect(_VERSION_SECONDS) as bus:
            stats = ask(bus, controls.STATS)
    except (SbusError, OSError) as error:
        return {**versions, "problem": error_text(error)}
    versions["bus"] = text(stats, "version")
    # The bus reports it to its owner only.
    if switch := text(stats, "switch"):
        versions["switch"] = switch
    return versions


def version_lines(versions: Mapping[str, str | None]) -> list[str]:
    """Return *versions* as text."""
    bus = versions.get("bus") or "version unknown"
    if problem := versions.get("problem"):
        bus = f"not reachable: {problem}"
    elif switch := versions.get("switch"):
        bus = f"{bus} ({switch} switch)"
    return [f"sbusctl {visible(versions['sbusctl'] or '')}", f"bus {visible(bus)}"]
