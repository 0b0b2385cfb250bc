"""The names of processes: their commands and units, as hints for people. Source: proc(5)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sbusd.systemd.cgroups import is_older, start_ticks, unit_of_process

UNKNOWN = "-"
"""Replaces the name of a process that does not exist or may not be read."""


def command_name(pid: int | None) -> str:
    """Return the name of process *pid*, ``-`` if it does not exist or may not be read.

    The process chooses this name itself: it is a hint, not a proof. Source: proc(5), ``/proc/PID/comm``.
    """
    if pid is None or pid <= 0:
        return UNKNOWN
    try:
        return Path(f"/proc/{pid}/comm").read_text("utf-8", "replace").removesuffix("\n")
    except OSError:
        return UNKNOWN


@dataclass(frozen=True, slots=True)
class Process:
    """The command name and the unit of a process; ``-`` if unknown."""

    command: str = UNKNOWN
    unit: str = UNKNOWN


def process_of(pid: int | None, since: float | None) -> Process:
    """Return name and unit of process *pid*, if it already had that number at *since*, in seconds since 1970.

    A process that started later, or that changes during this call, is a different one; its name and unit are unknown.
    """
    begun = start_ticks(pid)
    if begun is None or since is None or not is_older(begun, since):
        return Process()
    found = Process(command_name(pid), unit_of_process(pid) or UNKNOWN)
    return found if start_ticks(pid) == begun else Process()
