"""Checks that the socket at the address of a bus is the one on which its socket unit listens. Source: unix(7), proc(5), ``net/unix``."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Mapping
from pathlib import Path

from sbusd.client import NoBus
from sbusd.client.bus_unit import BusUnit
from sbusd.ctl.checks import CheckResult, Finding
from sbusd.ctl.checks.units import Unit, main_process
from sbusd.systemd.processes import UNKNOWN, command_name

_SERVICE_MANAGER = "systemd"
_PROC = Path("/proc")


def check_listener(unit: BusUnit, shown: Mapping[str, Unit], address: str, peer: int | None, error: Exception | None) -> list[Finding]:
    """Return a finding if the active socket unit of *unit* is not what serves *address*; an empty list if it is, or is not known.

    *peer* is the process that called listen(2) for the socket that answers, None if none does, because of *error*.
    """
    name = f"{unit.name.removesuffix('.service')}.socket"
    if shown.get(name, {}).get("ActiveState") != "active":
        return []
    advice = f"{unit.systemctl} restart {name}"
    if isinstance(error, NoBus) and error.errno in (errno.ENOENT, errno.ECONNREFUSED):
        reason = f"{name} is active, but {address} does not lead to its socket: the path was removed or replaced"
        return [Finding("listener", CheckResult.FAIL, reason, advice)]
    if peer is None or peer <= 0:
        return []
    main = main_process(shown.get(unit.name, {}))
    if peer not in (1, main) and main is not None and command_name(peer) not in (_SERVICE_MANAGER, UNKNOWN):
        reason = f"process {peer} listens at {address}, and not {unit.name}: {name} has lost its path"
        return [Finding("listener", CheckResult.WARN, reason, f"stop that process, then: {advice}")]
    manager = parent_of(main) if unit.is_user else 1
    if manager is not None and manager_holds(manager, address) is False:
        holder = "the service manager" if unit.is_user else "systemd"
        reason = f"{holder} does not hold the socket of {name} any more, as after mask and unmask: the next start of the bus would fail"
        return [Finding("listener", CheckResult.FAIL, reason, advice)]
    return []


def check_errors(pid: int | None, unit: BusUnit | None, proc: Path = _PROC) -> list[Finding]:
    """Return a finding if standard error of the bus, process *pid* of *unit*, is the null device: what libraries print is lost."""
    if pid is None or unit is None:
        return []
    try:
        target = os.readlink(proc / str(pid) / "fd/2")
    except OSError:
        return []
    if target != os.devnull:
        return []
    reason = "standard error is the null device, because journald did not run when the bus started: tracebacks of the interpreter are lost"
    return [Finding("standard error", CheckResult.WARN, reason, f"{unit.systemctl} restart {unit.name}")]


def parent_of(pid: int | None) -> int | None:
    """Return the parent of the process *pid*: of a user's service that is their service manager. None if it is not known."""
    if pid is None:
        return None
    try:
        return int((_PROC / str(pid) / "status").read_text(errors="replace").partition("\nPPid:")[2].split()[0])
    except (OSError, ValueError, IndexError):
        return None


def manager_holds(manager: int, address: str, proc: Path = _PROC) -> bool | None:
    """Return whether the process *manager* has a socket open that is bound to *address*; None if this user may not know."""
    try:
        bound = {line.split()[6] for line in (proc / "net/unix").read_text().splitlines()[1:] if line.split()[7:8] == [address]}
        folder = proc / str(manager) / "fd"
        held = {match[1] for fd in os.listdir(folder) if (match := re.fullmatch(r"socket:\[(\d+)\]", _target(folder / fd)))}
    except OSError:
        return None
    return bool(bound & held) if bound else None


def _target(path: Path) -> str:
    """Return what a link in /proc leads to; empty if it is gone."""
    try:
        return os.readlink(path)
    except FileNotFoundError:
        return ""
