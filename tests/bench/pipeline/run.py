"""``make bench-pipeline``: the record, the pipeline and the report at full size, compared with other engines for the same tables.

0: every line holds; 1: one does not (0 all the same with ``--no-fail``); 2: it could not be measured. Needs 10 GB of disk for 20 million
records.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq

from sbus_archive.tables.storage import read_tables
from tests.bench import recording
from tests.bench.figures import Bound, Line, Unit, table
from tests.bench.pipeline.archive import make_archive, make_part
from tests.bench.pipeline.engines import COMPARED
from tests.bench.pipeline.processes import Measured, measure
from tests.bench.programs import BenchError
from tests.support.browser import Chromium

ROWS = 20_000_000
PARTS = (4, 2, 1)
"""What part of the archive is the pipeline given: the same, twice and four times the data."""

RECORDER_ROWS = 500_000

RECORDER = Bound(100_000.0, at_least=True)
"""Rows a second of one core; a quiet machine with two cores does 2 % more."""
GROWTH = Bound(4.4)
"""Four times the data takes four times the processor time, and a tenth for chance; the start of Spark only makes it less."""
MEMORY = Bound(4.0 * (1 << 30))
"""Java's heap of 2 GiB, which little data fills already, Java itself, and Python workers: a bound that does not grow with the data."""
DUCKDB = Bound(8.0)
"""Times the processor time of DuckDB, which does not run on a cluster; five times less is usual."""
OPENING = Bound(3e9)
PAGE = Bound(6.0 * 1e6)
ANY = Bound(float("inf"))
ANY_RATE = Bound(0.0, at_least=True)
"""For figures that are reported without a limit."""

_SECONDS = re.compile(r"^(\w+) .* ([0-9.]+) s$", re.MULTILINE)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the bench and return its exit status."""
    options = _parser().parse_args(arguments)
    try:
        with tempfile.TemporaryDirectory(prefix="sbusd-bench-", dir=options.folder) as folder:
            lines = _measure(Path(folder), options.rows)
    except BenchError as error:
        print(f"bench-pipeline: {error}", file=sys.stderr)
        return 2
    print(table(lines))
    broken = [line.name for line in lines if not line.holds]
    print(f"{len(broken)} of {len(lines)} lines do not hold" if broken else f"all {len(lines)} lines hold")
    return 1 if broken and not options.no_fail else 0


def _parser() -> argparse.ArgumentParser:
    """Describe the command line."""
    parser = argparse.ArgumentParser(prog="bench-pipeline", description="Measure the record, the pipeline and the report.")
    parser.add_argument("--rows", type=int, default=ROWS, help="records of the archive; default: %(default)s")
    parser.add_argument("--folder", type=Path, help="on the disk to be measured; default: the temporary folder's")
    parser.add_argument("--no-fail", action="store_true", help="exit with status 0 even if a line does not hold")
    return parser


def _measure(folder: Path, rows: int) -> list[Line]:
    """Measure everything, and say on standard error how far it is."""
    lines = _recorder(folder)
    archive = folder / "archive"
    begun = time.monotonic()
    make_archive(archive, rows)
    _say(f"{rows:,} records made in {time.monotonic() - begun:.0f} s")
    runs: list[Measured] = []
    for part in PARTS:
        source = folder / f"part{part}"
        count = make_part(archive, source, rows // part)
        runs.append(_pipeline(source, folder / f"tables{part}"))
        _say(f"pipeline: {count:,} records, {_told(runs[-1])}")
    lines += _growth(runs)
    lines += _engines(folder, archive, runs[-1], folder / "tables1")
    return lines + _report(folder, folder / "tables1")


def _recorder(folder: Path) -> list[Line]:
    """Return the rate of the recorder: packets of the tap to rows on the disk. On a busy machine its time includes other programs."""
    target = folder / "recorder"
    target.mkdir()
    figures = recording.measure(RECORDER_ROWS, target)
    shutil.rmtree(target)
    return [
        Line("recorder: rows to the disk", Unit.PER_SECOND, (figures["recorded rows/s"],), ANY_RATE),
        Line("the same, by processor time", Unit.PER_SECOND, (figures["recorded rows/s of processor time"],), RECORDER),
    ]


def _pipeline(archive: Path, tables: Path) -> Measured:
    """Run the pipeline once, as a process of its own."""
    command = [sys.executable, "-m", "sbus_archive.pipeline", "--archive", str(archive), "--tables", str(tables)]
    return measure(command, tables.with_suffix(".log"))


def _growth(runs: Sequence[Measured]) -> list[Line]:
    """Return how time and memory grow with the data."""
    once, _, whole = runs
    return [
        *(
            Line(f"pipeline: {max(PARTS) // part} times the data", Unit.MILLISECONDS, (run.seconds * 1e9,), ANY)
            for part, run in zip(PARTS, runs, strict=True)
        ),
        Line("pipeline: time of 4 times by 1", Unit.MILLISECONDS, (whole.seconds * 1e9,), ANY, (once.seconds * 1e9,)),
        Line("the same, of processors", Unit.MILLISECONDS, (whole.processor_seconds * 1e9,), GROWTH, (once.processor_seconds * 1e9,)),
        Line("pipeline: memory of all processes", Unit.MEBIBYTES, (float(whole.peak_bytes),), MEMORY),
        Line("pipeline: memory of a quarter", Unit.MEBIBYTES, (float(once.peak_bytes),), MEMORY),
    ]


def _engines(folder: Path, archive: Path, spark: Measured, tables: Path) -> list[Line]:
    """Return the cost of the compared tables with Spark and with other engines, which must produce equal tables."""
    per_table = {name: float(seconds) for name, seconds in _SECONDS.findall(spark.output)}
    lines = []
    for engine, names in COMPARED.items():
        if missing := set(names) - per_table.keys():
            raise BenchError(f"the pipeline did not say how long {', '.join(sorted(missing))} took: {spark.output!r}")
        seconds = sum(per_table[name] for name in names)
        made = folder / engine
        made.mkdir()
        run = measure([sys.executable, "-m", "tests.bench.pipeline.engines", engine, str(archive), str(made)], folder / f"{engine}.log")
        _say(f"{engine}: {_told(run)}")
        _compare(engine, made, tables)
        lines += [
            Line(f"spark by {engine}, {len(names)} tables", Unit.MILLISECONDS, (seconds * 1e9,), ANY, (run.seconds * 1e9,)),
            Line(f"all of the pipeline by {engine}", Unit.MILLISECONDS, (spark.seconds * 1e9,), ANY, (run.seconds * 1e9,)),
            Line(
                f"all of the pipeline by {engine}, processors",
                Unit.MILLISECONDS,
                (spark.processor_seconds * 1e9,),
                DUCKDB if engine == "duckdb" else ANY,
                (run.processor_seconds * 1e9,),
            ),
        ]
    return lines


_SUMS = {
    "traffic": ("messages", "bytes", "recipients", "undeliverable"),
    "users": ("messages", "requests", "replies", "denials", "connections", "lost"),
    "calls": ("calls", "answered", "errors", "timeouts", "unanswered", "undelivered"),
    "flows": ("deliveries", "bytes"),
    "losses": ("events", "count", "duration_us"),
    "security": ("events",),
    "relay": ("attempts", "retries", "calls"),
}
"""Columns whose sums are compared."""

_NAMED = {"flows": "to_uid"}
"""Columns without which a row is not compared: deliveries whose recipient is not identified."""


def _compare(engine: str, made: Path, tables: Path) -> None:
    """Raise BenchError unless an engine's tables add up to what Spark's do."""
    found = read_tables(tables, names=COMPARED[engine]).tables
    for name in COMPARED[engine]:
        sums = _SUMS[name]
        for is_named in (False, True) if name in _NAMED else (False,):
            pair = [found[name], pq.read_table(made / f"{name}.parquet")]
            if is_named:
                pair = [each.filter(pc.is_valid(each.column(_NAMED[name]))) for each in pair]
            for column in sums:
                ours, theirs = (sum(value or 0 for value in each.column(column).to_pylist()) for each in pair)
                if ours != theirs:
                    raise BenchError(f"{name}.{column} is {ours} by Spark and {theirs} by {engine}")


def _report(folder: Path, tables: Path) -> list[Line]:
    """Return how large the report is, and how long a browser takes to open it."""
    page = folder / "report.html"
    program = shutil.which("chromium")
    if program is None:
        raise BenchError("needs chromium: apt-get install chromium")
    made = measure([sys.executable, "-m", "sbusctl.main", "report", "--tables", str(tables), "-o", str(page)], folder / "report.log")
    opened = [asyncio.run(_open(program, folder / f"browser{number}", page)) for number in range(3)]
    return [
        Line("report: made", Unit.MILLISECONDS, (made.seconds * 1e9,), ANY),
        Line("report: size", Unit.BYTES, (float(page.stat().st_size),), PAGE),
        Line("report: opened, charts in sight", Unit.MILLISECONDS, tuple(seconds * 1e9 for seconds, _ in opened), OPENING),
        Line("the same, of the page's thread", Unit.MILLISECONDS, tuple(busy * 1e9 for _, busy in opened), ANY),
    ]


async def _open(program: str, folder: Path, page: Path) -> tuple[float, float]:
    """Return the seconds from the demand for *page* to all that is in sight, in a browser that is there already.

    And how many of them the page's own thread worked, which on a busy machine are fewer.
    """
    folder.mkdir()
    with Chromium(program, folder) as chromium:
        async with chromium.page() as shown:
            await shown.ask("Performance.enable", timeDomain="threadTicks")
            begun = time.monotonic()
            await shown.open(page, mark="drawn")
            seconds = time.monotonic() - begun
            reported = await shown.ask("Performance.getMetrics")
            busy = next(each["value"] for each in reported["metrics"] if each["name"] == "TaskDuration")
            if shown.complaints:
                raise BenchError(f"the report complains: {shown.complaints[0][:300]}")
    return seconds, busy


def _told(run: Measured) -> str:
    """Return what one run took, in words."""
    return f"{run.seconds:.1f} s, {run.processor_seconds:.1f} s of processors, {run.peak_bytes >> 20} MiB"


def _say(words: str) -> None:
    """Say how far it is."""
    print(f"bench-pipeline: {words}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
