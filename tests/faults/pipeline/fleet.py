"""Hosts whose record grows: write-ahead files, the conversion by the recorder, and a shipper to an object store, all as processes."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from sbus_archive.record.schema import Row, batch_of
from sbus_archive.recorder.wal import WalWriter, wal_files
from tests.support.object_stores import BUCKET
from tests.support.traffic import GrowingRecord
from tools.stage import ROOT

_SECONDS = 300


class Host:
    """One host: its rows are written to the write-ahead log in parts, and known here."""

    def __init__(self, folder: Path, name: str, seed: int, rows: int) -> None:
        self.name = name
        self.folder = folder / name
        self.archive, self.spool = self.folder / "archive", self.folder / "spool"
        for path in (self.archive, self.spool):
            path.mkdir(parents=True)
        self.rows: list[Row] = GrowingRecord(seed).fill(rows)
        self._written = 0
        self._conversion: subprocess.Popen[bytes] | None = None
        self._shipper: subprocess.Popen[bytes] | None = None

    def write(self, part: float) -> None:
        """Write rows up to a *part* of all into one write-ahead file."""
        end = int(len(self.rows) * part)
        rows = self.rows[self._written : end]
        if not rows:
            return
        writer = WalWriter.create(self.spool, self.name, rows[0].seq)
        for start in range(0, len(rows), 50):
            writer.append(batch_of(rows[start : start + 50]))
        writer.close()
        self._written = end

    def convert(self) -> None:
        """Start the conversion, unless it runs."""
        if self._conversion is None or self._conversion.poll() is not None:
            self._conversion = self._started("tests.faults.pipeline.conversion", [str(self.spool), str(self.archive), self.name], {})

    def ship(self, environment: Mapping[str, str]) -> None:
        """Start the shipper, unless it runs."""
        if self._shipper is not None and self._shipper.poll() is None:
            return
        settings = {
            "destination": f"s3://{BUCKET}/fleet", "archive": str(self.archive), "host": self.name, "state": str(self.folder / "state"),
            "interval": "1s",
        }  # fmt: skip
        config = self.folder / "ship.toml"
        config.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items()))
        self._shipper = self._started("sbus_archive.shipping.main", ["--config", str(config)], environment)

    def kill(self, what: str) -> bool:
        """Kill the conversion or the shipper; return whether it was running."""
        process = self._conversion if what == "conversion" else self._shipper
        if process is None or process.poll() is not None:
            return False
        process.kill()
        return process.wait(60) == -signal.SIGKILL

    def finish(self, environment: Mapping[str, str]) -> None:
        """Convert and ship everything. Raises AssertionError if it takes too long."""
        deadline = time.monotonic() + _SECONDS
        while wal_files(self.spool) or self._unshipped():
            assert time.monotonic() < deadline, self.log()
            self.convert()
            self.ship(environment)
            time.sleep(0.2)
        self.stop()

    def stop(self) -> None:
        """End the processes."""
        for process in (self._conversion, self._shipper):
            if process is not None and process.poll() is None:
                process.terminate()
                process.wait(60)

    def log(self) -> str:
        """Return what the processes have said."""
        return (self.folder / "log").read_text(errors="replace")

    def _unshipped(self) -> int:
        """Return how many segments are not listed as shipped."""
        listed = self.folder / "state" / "shipped"
        shipped = listed.read_bytes().count(b"\n") - 1 if listed.exists() else 0
        return sum(1 for _ in self.archive.glob("date=*/hour=*/host=*/[!.]*.parquet")) - shipped

    def _started(self, module: str, arguments: list[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """Start a program of this package."""
        kept = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **environment}
        log: IO[bytes]
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen([sys.executable, "-m", module, *arguments], env=kept, cwd=self.folder, stdout=log, stderr=log)


class Fleet:
    """Some hosts, and a random choice among them."""

    def __init__(self, folder: Path, chance: random.Random, rows: int) -> None:
        self.hosts = [Host(folder, name, chance.randrange(1 << 30), rows) for name in ("alpha", "beta", "gamma")]
        self._chance = chance

    @property
    def record(self) -> dict[str, list[Row]]:
        """All rows of each host."""
        return {host.name: host.rows for host in self.hosts}

    def advance(self, part: float, environment: Mapping[str, str]) -> None:
        """Record up to a *part* of all rows, and let the processes work."""
        for host in self.hosts:
            host.write(part)
            host.convert()
            host.ship(environment)

    def finish(self, environment: Mapping[str, str]) -> None:
        """Convert and ship everything that was recorded. Raises AssertionError if it takes too long."""
        for host in self.hosts:
            host.finish(environment)

    def kill(self, what: str) -> bool:
        """Kill a process of one host; return whether it was running."""
        return self._chance.choice(self.hosts).kill(what)

    def stop(self) -> None:
        """End all processes."""
        for host in self.hosts:
            host.stop()
