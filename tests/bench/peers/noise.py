"""Other work of the machine during the measurement: throughput figures are only meaningful on an idle machine."""

from __future__ import annotations

import os
import platform
import resource
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self

_IDLE = (3, 4)
"""Columns of /proc/stat that do not count as work: idle, and waiting for a disk. Source: proc(5)."""
_STEAL = 7
_WORK_COLUMNS = 8
"""The columns behind these, for guests, are counted in the first two already."""


@dataclass(frozen=True, slots=True)
class Moment:
    """The machine's counters at one time, in seconds of CPU since it began, and the load average."""

    clock: float
    busy: float
    stolen: float
    own: float
    load: float

    @classmethod
    def now(cls) -> Self:
        """Look."""
        ticks = [int(cell) for cell in Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:]][:_WORK_COLUMNS]
        busy, stolen = work_of(ticks)
        hertz = os.sysconf("SC_CLK_TCK")
        usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        own = sum(usage.ru_utime + usage.ru_stime for usage in usages)
        return cls(time.monotonic(), busy / hertz, stolen / hertz, own, os.getloadavg()[0])


def work_of(ticks: list[int]) -> tuple[int, int]:
    """Return, of a line of /proc/stat, what was work here, and what a hypervisor gave to others."""
    stolen = ticks[_STEAL] if len(ticks) > _STEAL else 0
    return sum(ticks) - stolen - sum(ticks[column] for column in _IDLE), stolen


def words(before: Moment, after: Moment, cpus: int) -> str:
    """Return what others took between two moments, when all that the bench had started has ended."""
    whole = (after.clock - before.clock) * cpus
    others = max(0.0, after.busy - before.busy - (after.own - before.own)) / whole
    stolen = (after.stolen - before.stolen) / whole
    return (
        f"other processes had {others:.0%} of the CPUs' time, other machines {stolen:.0%}; "
        f"load average {before.load:.1f} at the beginning, {after.load:.1f} at the end"
    )


def machine() -> str:
    """Return what was measured on: processor, number of CPUs, kernel."""
    model = "an unnamed processor"
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return f"{len(os.sched_getaffinity(0))} CPUs ({model}), Linux {platform.release()}, Python {platform.python_version()}"
