"""``make bench-index``: a run of the pipeline over the index of a year of HOSTS (100) hosts, with nothing new and with one new hour.

0: each line holds; 1: one does not. Needs 2 GB of disk for 3.5 million segments. The segments themselves do not exist: without changes a
run does not look at them.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import gzip
import io
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from sbus_archive.pipeline.progress import Progress
from sbus_archive.pipeline.run import KnownIndex, PipelineRun
from sbus_archive.record.index import DayName, list_index
from sbus_archive.record.layout import HOUR_NS, INDEX, IndexEntry, SegmentName
from sbus_archive.record.segments import RecordReader
from sbus_archive.storage.store import LocalStore
from sbus_archive.tables.hours import Hour, Manifest
from sbus_archive.tables.publication import TableWriter
from tests.bench.figures import Bound, Line, Unit, table
from tests.support.records import message
from tests.support.traffic import deliver

DAYS = 365
OPEN_DAYS = 2
"""Days whose entries are not merged yet."""

PER_HOUR = 4
START = datetime.datetime(2025, 11, 20, tzinfo=datetime.UTC)

SECONDS = Bound(5e9)
MEMORY = Bound(512.0 * (1 << 20))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the bench and return its exit status."""
    parser = argparse.ArgumentParser(prog="bench-index", description="Measure a run over the index of a year.")
    parser.add_argument("--hosts", type=int, default=100, help="number of hosts; default: %(default)s")
    parser.add_argument("--plan", type=Path, metavar="FOLDER", help="only plan a run in FOLDER, for this program itself")
    options = parser.parse_args(arguments)
    if options.plan is not None:
        _plan(options.plan)
        return 0
    with tempfile.TemporaryDirectory(prefix="sbusd-bench-") as folder:
        root = Path(folder)
        count = _make(root / "archive", options.hosts)
        print(f"{count:,} segments of {options.hosts} hosts in {DAYS} days", file=sys.stderr)
        _know(root, options.hosts)
        places = ["--archive", str(root / "archive"), "--tables", str(root / "tables")]
        lines = _measured("nothing new", "sbus_archive.pipeline", "--quiet", *places)
        deliver(root / "archive", "host-000", [message(1, ts=_ns(DAYS) + HOUR_NS)])
        lines += _measured("plan of one new segment", "tests.bench.index_year", "--plan", folder)
    print(table(lines))
    return 0 if all(line.holds for line in lines) else 1


def _ns(day: int) -> int:
    """Return the start of a day in nanoseconds since 1970."""
    return int(START.timestamp() + day * 86_400) * 10**9


def _entries(day: int, host: str) -> list[IndexEntry]:
    """Return the entries of a day and host."""
    found = []
    for number in range(24 * PER_HOUR):
        ts = _ns(day) + number * HOUR_NS // PER_HOUR
        seq = (day * 24 * PER_HOUR + number) * 1_000 + 1
        name = SegmentName.at(ts, host, seq)
        digest = f"{hash((host, seq)) & (1 << 64) - 1:016x}" * 4
        found.append(
            IndexEntry(
                path=name.path, date=name.date, hour=name.hour, host=host, rows=1_000, bytes=40_000 + number, sha256=digest, min_ts=ts,
                max_ts=ts + 800 * 10**9, first_seq=seq, last_seq=seq + 999, kinds={"message": 900, "subscribe": 100},
                users={"0": 1_000, "1000": 40_000}, unnamed=0,
            )
        )  # fmt: skip
    return found


def _make(archive: Path, hosts: int) -> int:
    """Write the index; return the number of segments."""
    days = archive / INDEX / "days"
    days.mkdir(parents=True)
    count = 0
    for host in (f"host-{number:03}" for number in range(hosts)):
        for day in range(DAYS):
            entries = _entries(day, host)
            count += len(entries)
            if day < DAYS - OPEN_DAYS:
                lines = "".join(f"{each.to_json()}\n" for each in entries).encode()
                (days / DayName(entries[0].date, host).file).write_bytes(gzip.compress(lines, 1, mtime=0))
            else:
                for each in entries:
                    (archive / each.name.index_path).write_text(each.to_json() + "\n")
    return count


def _know(root: Path, hosts: int) -> None:
    """Write what runs leave that have computed the year, except for rows: the manifest of each hour, in a commit for each day."""
    tables = root / "tables"
    writer = TableWriter(tables)
    writer.prepare()
    for day in range(DAYS):
        listed = [each for number in range(hosts) for each in _entries(day, f"host-{number:03}")]
        by_hour: defaultdict[Hour, list[IndexEntry]] = defaultdict(list)
        for each in listed:
            by_hour[Hour(each.date, each.hour)].append(each)
        writer.publish([Manifest(hour, 0, tuple(segments)) for hour, segments in by_hour.items()])
        writer.maintain()
    KnownIndex(LocalStore(tables)).save(list_index(root / "archive"))


class _SparkNeededError(Exception):
    """The plan is made: what follows is the same for each size of the index."""


def _plan(root: Path) -> None:
    """Run the pipeline until it needs Spark. Raises RuntimeError if it does not."""

    def start(*, is_small: bool) -> NoReturn:
        raise _SparkNeededError

    with contextlib.suppress(_SparkNeededError):
        PipelineRun(RecordReader(root / "archive"), root / "tables", Progress(errors=io.StringIO()), start).run()
        raise RuntimeError("nothing was new")


def _measured(name: str, module: str, *arguments: str) -> list[Line]:
    """Return the time and the peak memory of a program."""
    begun = time.monotonic_ns()
    pid = os.posix_spawn(sys.executable, [sys.executable, "-m", module, *arguments], os.environ)
    _, status, usage = os.wait4(pid, 0)
    seconds = float(time.monotonic_ns() - begun)
    if status:
        raise SystemExit("bench-index: the run failed")
    return [
        Line(f"{name}: time", Unit.MILLISECONDS, (seconds,), SECONDS),
        Line(f"{name}: memory", Unit.MEBIBYTES, (float(usage.ru_maxrss << 10),), MEMORY),
    ]


if __name__ == "__main__":
    sys.exit(main())
