"""The record of the demonstration, the tables that Spark creates from it, and the report."""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sbus_archive.tables.storage import read_tables
from tools.demo.activation import ActivatedBus
from tools.demo.narrator import DemoError, Narrator
from tools.demo.programs import Programs

PIPELINE_SECONDS = 480.0
"""Timeout of Spark, which takes ten seconds to start and a few per table, long enough for any machine."""


class RecordDemo:
    """Records all traffic of the bus in *folder*."""

    def __init__(self, bus: ActivatedBus, programs: Programs, narrator: Narrator, folder: Path) -> None:
        """*programs* run as root, with the Python that runs this."""
        self._bus = bus
        self._programs = programs
        self._narrator = narrator
        self._archive = str(folder / "record")
        self._tables = folder / "tables"

    @contextmanager
    def running(self) -> Iterator[subprocess.Popen[str]]:
        """Record the traffic within the context; call :meth:`finish` before its end."""
        self._narrator.step("root records all traffic of the bus from now on")
        with self._programs.running(None, "sbusctl", "record", "--archive", self._archive) as recorder:
            self._bus.wait_for_tap(recorder)
            yield recorder

    def finish(self, recorder: subprocess.Popen[str], report: Path) -> None:
        """Stop recording, let Spark create tables, and write the *report*."""
        narrator = self._narrator
        narrator.step("The recording ends; Spark creates tables from it, and sbusctl a report with charts")
        recorder.terminate()
        self._programs.finish(recorder)
        narrator.remark("Spark takes a while to start")
        self._programs.run(None, "sbus-pipeline", "--archive", self._archive, "--tables", str(self._tables), seconds=PIPELINE_SECONDS)
        self._report_feeds()
        if not report.parent.is_dir():
            report.parent.mkdir()
            _give_to_caller(report.parent)
        self._programs.run(None, "sbusctl", "report", "--tables", str(self._tables), "-o", str(report))
        if not report.is_file():
            raise DemoError(f"{report} was not written")
        _give_to_caller(report)

    def _report_feeds(self) -> None:
        """Remark how many events of this machine the tables contain; there must be network events."""
        counts: Counter[str] = Counter()
        for row in read_tables(self._tables).tables["traffic"].select(["prefix", "messages"]).to_pylist():
            counts[str(row["prefix"]).partition("/")[0]] += row["messages"]
        if not counts["net"]:
            raise DemoError("the record contains no network events")
        self._narrator.remark(f"the record contains {counts['net']} network events and {counts['journal']} journal entries of this machine")


def _give_to_caller(path: Path) -> None:
    """Make the user that called sudo(8) the owner of *path*: only the owner can read the report."""
    uid, gid = (os.environ.get(name, "") for name in ("SUDO_UID", "SUDO_GID"))
    if uid.isdigit() and gid.isdigit():
        os.chown(path, int(uid), int(gid))
