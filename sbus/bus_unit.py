"""The systemd unit of a bus, and why it does not start: what a client reports instead of waiting for a bus that will not come.

Every user may read these properties of a unit. sbusd reports why it cannot start as its status, see ``sbusd/daemon/main.py``; the reason
of a program that ended in another way is in the journal, which not every user may read. Spec: systemctl(1), ``show``; systemd.exec(5).
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sbus.bus_socket import SYSTEM_ADDRESS
from sbus.errors import NoBus

STATUS_HEAD = "cannot start: "
"""The status of a bus that ends because it cannot start begins with this."""

WAIT_SECONDS = (1.0, 0.4, 0.4, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
"""Times that a client waits for a response before it checks the unit, and between later checks.

The first is longer than a bus takes to start on an idle machine. A bus that fails to start is seen within a few checks, because it restarts
after a second at most. Later checks are rare: on a busy machine, many clients may wait for a bus that works.
"""

_SYSTEM_FOLDER = "/run/sbus/"
_BOOTED = Path("/run/systemd/system")
"""Exists if systemd is the init system, sd_booted(3)."""

_COMMAND_SECONDS = 2.0
_REASON_CHARACTERS = 300

_REASON_SECONDS = 5.0
"""Maximum time to wait for the end of the next start, if that of the last one was missed."""

_REASON_INTERVAL_SECONDS = 0.1

_PROPERTIES = (
    "ActiveState,SubState,Result,StatusText,InvocationID,NRestarts,ExecMainStatus,"
    "ActiveEnterTimestampMonotonic,ExecMainStartTimestampMonotonic"
)


@dataclass(frozen=True, slots=True)
class BusUnit:
    """The service of a bus."""

    name: str
    """Such as ``sbus.service``."""
    is_user: bool
    """Whether the service manager of the calling user runs it."""

    @property
    def instance(self) -> str:
        """The name of a bus that is an instance of ``sbus@.service``; empty for the others."""
        return self.name.removesuffix(".service").partition("@")[2]

    @property
    def systemctl(self) -> str:
        """The command that controls it."""
        return "systemctl --user" if self.is_user else "systemctl"


def unit_of(address: str, booted: Path = _BOOTED) -> BusUnit | None:
    """Return the service of the bus at *address*, None if no unit of the packages has this address, or systemd does not run."""
    return named_unit(address) if booted.is_dir() else None


def named_unit(address: str) -> BusUnit | None:
    """Return the service of the bus at *address*, whether or not systemd runs; None if no unit of the packages has this address."""
    variable = os.environ.get("XDG_RUNTIME_DIR", "")
    folder = os.path.join(variable, "") if variable.startswith("/") else ""
    for place, is_user in ((SYSTEM_ADDRESS, False), (f"{folder}sbus.socket" if folder else "", True)):
        if place and address == place:
            return BusUnit("sbus.service", is_user)
    for head, is_user in ((_SYSTEM_FOLDER, False), (f"{folder}sbus/" if folder else "", True)):
        instance = address.removeprefix(head).removesuffix(".socket")
        if head and address == f"{head}{instance}.socket" and instance and "/" not in instance:
            return BusUnit(f"sbus@{instance}.service", is_user)
    return None


class UnitCheck:
    """Finds out whether the service of a bus fails to start. One object may be used again; it remembers what it saw last."""

    def __init__(self, unit: BusUnit) -> None:
        self.unit = unit
        self._previous: Mapping[str, str] = {}

    def failure(self) -> str | None:
        """Return in one line why the bus does not start; None if it runs, is still starting, or nothing is known.

        Takes up to 8 s, if systemd does not respond or the service has just been started again. Safe to call in any thread.
        """
        previous, self._previous = self._previous, self._properties()
        if not has_failed(self._previous, previous):
            return None
        reason = self._reason(self._previous) or self._reason(previous)
        end = time.monotonic() + _REASON_SECONDS
        while not reason and self._previous.get("ActiveState") == "activating" and time.monotonic() < end:
            # It has just been started again, and fails again soon.
            time.sleep(_REASON_INTERVAL_SECONDS)
            self._previous = self._properties()
            reason = self._reason(self._previous)
        reason = reason or f"{self.unit.name} restarts again and again"
        return f"the bus does not start: {reason}; see: {self.unit.systemctl} status {self.unit.name}"

    def _properties(self) -> Mapping[str, str]:
        """Return the properties of the service now, empty if they are not known."""
        shown = self._ask("systemctl", "show", f"--property={_PROPERTIES}", self.unit.name)
        return dict(line.partition("=")[::2] for line in shown.splitlines())

    def _reason(self, found: Mapping[str, str]) -> str:
        """Return why the start with the properties *found* failed; empty if it has not yet."""
        if reason := start_error(found.get("StatusText", "")):
            return reason
        if found.get("Result", "success") == "success":
            return ""
        from sbus.exit_statuses import named  # noqa: PLC0415 - most clients never need it

        result = f"{self.unit.name} failed ({found['Result']}, status {named(found.get('ExecMainStatus') or 'unknown')})"
        return self._last_line(found.get("InvocationID", "")) or result

    def _last_line(self, invocation: str) -> str:
        """Return the last line in the journal of one run of the service, empty if there is none, or this user may not read it."""
        if not invocation:
            return ""
        lines = self._ask("journalctl", "--quiet", "--output=cat", "--lines=1", f"_SYSTEMD_INVOCATION_ID={invocation}").splitlines()
        return _short(lines[-1]) if lines else ""

    def _ask(self, program: str, *arguments: str) -> str:
        """Return the output of a program of systemd, empty if it fails."""
        import subprocess  # noqa: PLC0415 - most clients never need it, and it takes milliseconds

        command: Sequence[str] = [program, *(["--user"] if self.unit.is_user else []), *arguments]
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=_COMMAND_SECONDS, check=False
            )
        except (OSError, subprocess.SubprocessError):
            return ""
        return done.stdout if done.returncode == 0 else ""


def explained(error: NoBus, check: UnitCheck | None) -> NoBus:
    """Return *error*, or one that says why the service of the bus does not start, if nothing listens because of that."""
    if check is None or error.errno not in (errno.ENOENT, errno.ECONNREFUSED):
        return error
    reason = check.failure()
    return error if reason is None else NoBus(error.address, reason, error.errno)


def has_failed(now: Mapping[str, str], before: Mapping[str, str]) -> bool:
    """Return whether the service with the properties *now* fails to start; *before* are earlier ones, or empty.

    A service that has run, and is restarted after a crash, has not failed to start.
    """
    state, substate = now.get("ActiveState"), now.get("SubState", "")
    if state == "failed":
        return True
    if state != "activating":
        return False
    if substate.startswith("auto-restart"):
        # Its last process started after the service was last active, so that process never became ready.
        return _number(now, "ExecMainStartTimestampMonotonic") > _number(now, "ActiveEnterTimestampMonotonic")
    same = _number(now, "ActiveEnterTimestampMonotonic") == _number(before, "ActiveEnterTimestampMonotonic")
    return before.get("ActiveState") == "activating" and same and _number(now, "NRestarts") > _number(before, "NRestarts")


def start_error(status: str) -> str:
    """Return why sbusd cannot start, if its *status* says so; otherwise an empty text."""
    return _short(status.removeprefix(STATUS_HEAD)) if status.startswith(STATUS_HEAD) else ""


def _short(text: str) -> str:
    """Return *text* in one line of limited length."""
    line = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text.strip())
    return line if len(line) <= _REASON_CHARACTERS else f"{line[: _REASON_CHARACTERS - 1]}…"


def _number(unit: Mapping[str, str], name: str) -> int:
    """Return the number of a property, 0 without one."""
    text = unit.get(name, "0")
    return int(text) if text.isascii() and text.isdecimal() else 0
