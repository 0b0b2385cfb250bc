"""``sbusctl bench``: measures the speed of the bus for Python programs."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType
from typing import Annotated

import typer

from sbus import Bus
from sbusctl.bench.results import COLUMNS, ProgressLine, RunResult, result_of, spread_of
from sbusctl.bench.workers import LEAST_BYTES, MOST_BYTES, Plan, WorkerPool
from sbusctl.formatting import human_microseconds, table_lines, wrapped
from sbusctl.output import JsonStyle, terminal_width, write_json, write_lines
from sbusctl.settings import settings_of

DEFAULT_SECONDS = 3.0
"""How long a run publishes without ``--count`` and ``--duration``."""

_MOST_WORKERS = 128
"""Maximum number of publishers, and of subscribers. Each is a process of some megabytes; more would measure the scheduler."""

_SKIPPED_TRIPS = 20
"""The first round trips do not count: caches are cold, and the first connection is being set up."""

_TRIP_SECONDS = 10.0
"""A message that takes longer counts as lost."""

CAVEATS = (
    "publishers and subscribers are Python programs that share the CPUs with the bus: C programs reach higher rates",
    "the figures include the effect of other users on the bus and the machine, which sbusctl cannot measure",
    "P50 to MAX: time from publish to receive at full load, mostly spent in queues",
)
"""Limitations of the figures."""


def bench_command(
    context: typer.Context,
    *,
    clients: Annotated[
        int, typer.Option("--clients", "-c", min=1, max=_MOST_WORKERS, metavar="COUNT", help="Number of publishing clients.")
    ] = 1,
    subscribers: Annotated[
        int,
        typer.Option(
            "--subscribers", "-S", min=0, max=_MOST_WORKERS, metavar="COUNT", help="Number of subscribers; each receives every message."
        ),
    ] = 1,
    size: Annotated[str, typer.Option("--size", "-s", metavar="SIZE[,SIZE]...", help="Payload size in bytes; one run for each.")] = "64",
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, metavar="COUNT", help="Messages per publisher.")] = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            "--duration",
            "-t",
            min=0.1,
            max=86_400,
            metavar="SECONDS",
            help=f"How long a run publishes, if --count is not given. Default: {DEFAULT_SECONDS}.",
        ),
    ] = None,
    coalesce: Annotated[bool, typer.Option("--coalesce", help="Send several messages in one packet.")] = False,
    trips: Annotated[
        int, typer.Option("--round-trips", min=0, max=10_000_000, metavar="COUNT", help="Number of round trips to measure before the runs.")
    ] = 1000,
) -> None:
    """Measure throughput, latency and losses.

    Publishers and subscribers are Python processes. They use a private key of the caller, so other users do not receive the messages.
    """
    settings = settings_of(context)
    if count is not None and seconds is not None:
        raise typer.BadParameter("--count and --duration are mutually exclusive")
    try:
        sizes = parse_sizes(size)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--size") from None
    plans = [Plan(clients, subscribers, each, count, DEFAULT_SECONDS if seconds is None else seconds, coalesce) for each in sizes]
    report = _BenchReport()
    try:
        with ProgressLine() as progress:
            _measure(settings.connect, report, plans, trips, progress)
    finally:
        # Also after Ctrl-C or an error in a later run: print what was measured.
        if report.is_worth_reading:
            if settings.json is JsonStyle.OFF:
                write_lines(report.lines(legend=settings.legend))
            else:
                write_json({"clients": clients, "subscribers": subscribers, "coalesce": coalesce, **report.as_json()}, settings.json)


class _BenchReport:
    """The results so far."""

    def __init__(self) -> None:
        self.results: list[RunResult] = []
        self.trips: list[float] = []
        self._load_before = os.getloadavg()[0]

    @property
    def is_worth_reading(self) -> bool:
        """Whether anything was measured."""
        return bool(self.results or self.trips)

    def lines(self, *, legend: bool) -> list[str]:
        """Return the report as lines of text."""
        width = terminal_width()
        lines = table_lines(COLUMNS, [result.cells() for result in self.results], legend=legend, width=width) if self.results else []
        if self.trips:
            words = "  ".join(f"{name} {human_microseconds(time)}" for name, time in spread_of(sorted(self.trips)).items())
            lines.append(f"round trip (idle): {words}")
        if legend:
            notes = [*(each for result in self.results for each in result.notes()), *CAVEATS, self._load()]
            lines += [line for each in notes for line in wrapped(f"note: {each}", width, "      ")]
        return lines

    def as_json(self) -> dict[str, object]:
        """Return the report as a JSON object."""
        return {
            "runs": [result.as_json() for result in self.results],
            "trips": {"count": len(self.trips), **spread_of(sorted(self.trips))},
            "notes": [*(each for result in self.results for each in result.notes()), *CAVEATS, self._load()],
        }

    def _load(self) -> str:
        """Return the load averages before and after the benchmark, which contributes to them."""
        return f"load average {self._load_before:.1f} before, {os.getloadavg()[0]:.1f} now, on {os.cpu_count() or 1} CPUs"


def _measure(connect: Callable[[], Bus], report: _BenchReport, plans: list[Plan], trips: int, progress: ProgressLine) -> None:
    """Make all runs; after Ctrl-C the current run is stopped and counted."""
    with connect() as bus:
        whoami = bus.whoami().encode()
    if trips:
        _measure_trips(connect, private_key(whoami), trips, report.trips)
    for plan in plans:
        progress.begin()
        with WorkerPool(plan, connect, private_key(whoami)) as pool:
            pool.start()
            with _stop_on_interrupt(pool):
                report.results.append(result_of(plan, *pool.run(partial(progress.show, plan))))


def _measure_trips(connect: Callable[[], Bus], key: bytes, count: int, times: list[float]) -> None:
    """Append *count* round trips to *times*, in seconds: from publish on one connection to receive on another.

    Raises:
        SbusError: the bus refused a message, or a message did not return in time.
    """
    with connect() as source, connect() as drain, drain.subscribe(key) as subscription:
        for number in range(_SKIPPED_TRIPS + count):
            begin = time.perf_counter()
            source.publish(key, bytes(LEAST_BYTES))
            subscription.receive(_TRIP_SECONDS)
            if number >= _SKIPPED_TRIPS:
                times.append(time.perf_counter() - begin)


@contextlib.contextmanager
def _stop_on_interrupt(pool: WorkerPool) -> Iterator[None]:
    """Stop the publishers at the first Ctrl-C, and exit after the results are collected; exit immediately at the second."""
    interrupted = False

    def stop(_number: int, _frame: FrameType | None) -> None:
        nonlocal interrupted
        if interrupted:
            raise KeyboardInterrupt
        interrupted = True
        pool.stop()

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if interrupted:
        raise KeyboardInterrupt


def parse_sizes(text: str) -> list[int]:
    """Return the payload sizes in *text*, separated by commas.

    Raises:
        ValueError: one is not a number, or out of range.
    """
    sizes = []
    for part in text.split(","):
        word = part.strip()
        if not (word.isascii() and word.isdigit() and len(word) < 10 and LEAST_BYTES <= int(word) <= MOST_BYTES):
            raise ValueError(f"invalid payload size {word!r}: must be {LEAST_BYTES} to {MOST_BYTES} bytes")
        sizes.append(int(word))
    return sizes


def private_key(whoami: bytes) -> bytes:
    """Return a random private key of the user, from the reply to whoami. No wildcard matches it, and no other user can subscribe to it.

    It is ``!/cred//UID//bench/NAME``, after the prefix that the bus adds to credentials. Spec: sbus-protocol(7) §4.
    """
    head, _, uid, _ = whoami.rsplit(b"/", 3)
    return b"%b//%b//bench/%b" % (head, uid, secrets.token_hex(16).encode())
