"""The record of the demonstration, the tables that Spark makes of it, and the page that is left in the end."""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sbusd.archive.tables.reader import read_tables
from tools.demo.activation import ActivatedBus
from tools.demo.narrator import DemoError, Narrator
from tools.demo.programs import Programs

PIPELINE_SECONDS = 480.0
"""When Spark, which takes some ten seconds to start and a few for each table, never will be done, on a machine however slow."""


class Record:
    """What root writes down of everything that goes over the bus, in *folder*."""

    def __init__(self, bus: ActivatedBus, programs: Programs, narrator: Narrator, folder: Path) -> None:
        """*programs* are run as root, by the Python that runs this."""
        self._bus = bus
        self._programs = programs
        self._narrator = narrator
        self._archive = str(folder / "record")
        self._tables = folder / "tables"

    @contextmanager
    def running(self) -> Iterator[subprocess.Popen[str]]:
        """Record what happens meanwhile; give what is had to :meth:`finish` before the end."""
        self._narrator.step("root records all traffic of the bus from now on")
        with self._programs.running(None, "sbusctl", "record", "--archive", self._archive) as recorder:
            self._bus.wait_for_tap(recorder)
            yield recorder

    def finish(self, recorder: subprocess.Popen[str], report: Path) -> None:
        """End the record, let Spark make tables of it, and write the page *report*."""
        narrator = self._narrator
        narrator.step("The recording ends; Spark creates tables from it, and sbusctl a report with charts")
        recorder.terminate()
        self._programs.finish(recorder)
        narrator.remark("Spark takes a while to start")
        self._programs.run(None, "sbus-pipeline", "--archive", self._archive, "--tables", str(self._tables), seconds=PIPELINE_SECONDS)
        self._tell_of_feeds()
        if not report.parent.is_dir():
            report.parent.mkdir()
            _give_to_caller(report.parent)
        self._programs.run(None, "sbusctl", "report", "--tables", str(self._tables), "-o", str(report))
        if not report.is_file():
            raise DemoError(f"{report} was not written")
        _give_to_caller(report)

    def _tell_of_feeds(self) -> None:
        """Say how many of the machine's own events are in the tables; those of its network must be."""
        counts: Counter[str] = Counter()
        for row in read_tables(self._tables).tables["traffic"].select(["prefix", "messages"]).to_pylist():
            counts[str(row["prefix"]).partition("/")[0]] += row["messages"]
        if not counts["net"]:
            raise DemoError("the record contains no network events")
        self._narrator.remark(f"the record contains {counts['net']} network events and {counts['journal']} journal entries of this machine")


def _give_to_caller(path: Path) -> None:
    """Let who called sudo(8) own what is left: the page is readable for its owner alone."""
    uid, gid = (os.environ.get(name, "") for name in ("SUDO_UID", "SUDO_GID"))
    if uid.isdigit() and gid.isdigit():
        os.chown(path, int(uid), int(gid))
