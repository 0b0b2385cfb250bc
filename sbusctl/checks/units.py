"""Checks the state of each unit of the packages. Source: systemctl(1), ``show``; systemd.exec(5), process exit codes."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from sbus.bus_unit import BusUnit, start_error
from sbus.exit_statuses import NAMESPACE, failed_step
from sbusctl.checks import CheckResult, Finding

Unit = Mapping[str, str]
Scope = Literal["system", "user"]

_PROPERTIES = (
    "Id,LoadState,ActiveState,SubState,UnitFileState,Result,StatusText,NRestarts,MainPID,ExecMainStatus,InvocationID"
    ",ConditionResult,ConditionTimestampMonotonic,TriggeredBy"
)
_COMMAND_SECONDS = 10.0
_MAX_LINE = 1_000
"""Characters of a line of the journal that are shown: as many as the programs print of one error, whose end says what to do."""

_BOOTED = Path("/run/systemd/system")
_ENABLED = ("enabled", "enabled-runtime")
RECORD = "/var/lib/sbus-recorder/"
RECORDER = "sbus-recorder.service"
"""The directory of the record, and the service that creates it."""

DATE_JUMPED = "the date jumped"
"""In the status of a service that removes messages by age, while it doubts the date."""

_FEEDS = tuple(f"sbus-feed@{name}.service" for name in ("netlink", "udev", "journal", "systemd", "logind", "dbus"))
ADDONS: Mapping[Scope, tuple[str, ...]] = {
    "system": (
        "sbus-stream.socket", "sbus-store.service", "sbus-link.service", "sbus-trigger.service", "sbus-relay.service",
        "redis-server@sbus-relay.service", "sbus-blob.socket", "sbus-blob.service", "sbus-metrics.socket", "sbus-metrics.service",
        "sbus-recorder.service", "sbus-ship.service", "sbus-live.service", "sbus-pipeline.timer", "sbus-pipeline.service", *_FEEDS,
    ),
    "user": (
        "sbus-stream.socket", "sbus-store.service", "sbus-trigger.service", "sbus-blob.socket", "sbus-blob.service", "sbus-web.service",
        *_FEEDS,
    ),
}  # fmt: skip
"""The units of the packages, besides those of the bus."""


def systemctl_of(scope: Scope | None) -> str:
    """Return the command that controls the units of *scope*."""
    return "systemctl --user" if scope == "user" else "systemctl"


def socket_of(unit: BusUnit) -> str:
    """Return the socket unit of the bus *unit*."""
    return f"{unit.name.removesuffix('.service')}.socket"


def shown_units(scope: Scope | None, *names: str, booted: Path = _BOOTED) -> dict[str, Unit] | Finding:
    """Return the properties of the units *names* of *scope*, or why they are not known. *booted* exists under systemd, sd_booted(3)."""
    if scope is None:
        return Finding("units", CheckResult.SKIP, "this is the bus of no unit of the packages, so its units are not known")
    if not booted.is_dir():
        return Finding("units", CheckResult.SKIP, "systemd is not the init system of this machine")
    try:
        done = _ask([*systemctl_of(scope).split(), "show", f"--property={_PROPERTIES}", *names])
    except FileNotFoundError:
        return Finding("units", CheckResult.SKIP, "systemctl is not installed")
    except subprocess.TimeoutExpired:
        return Finding("units", CheckResult.WARN, "systemctl does not respond", "check systemd itself (systemctl status)")
    if done.returncode:
        said = (done.stderr.strip() or f"status {done.returncode}").splitlines()[0]
        return Finding("units", CheckResult.SKIP, f"systemctl failed: {said}")
    return parse_units(done.stdout)


def parse_units(shown: str) -> dict[str, Unit]:
    """Return the properties of each unit in the output of ``systemctl show``, by the name of the unit."""
    blocks = (dict(line.split("=", 1) for line in block.splitlines() if "=" in line) for block in shown.split("\n\n"))
    return {block["Id"]: block for block in blocks if "Id" in block}


def is_enabled(unit: Unit) -> bool:
    """Return whether *unit* is started with the machine, or with the session of the user."""
    return unit.get("UnitFileState") in _ENABLED


def is_missing(unit: Unit) -> bool:
    """Return whether systemd has no *unit* to start: its package was removed and its configuration stayed, or it is masked."""
    return unit.get("LoadState") in ("not-found", "masked")


def main_process(unit: Unit) -> int | None:
    """Return the main process of the service *unit*, None if it does not run."""
    pid = unit.get("MainPID", "0")
    return int(pid) if pid.isascii() and pid.isdigit() and int(pid) else None


def failure_of(unit: Unit, scope: Scope) -> str:
    """Return in one line why *unit* has failed, from its status, its exit status, or the last line of its last run in the journal."""
    if reason := start_error(unit.get("StatusText", "")):
        return reason
    result = unit.get("Result") or "unknown"
    status = unit.get("ExecMainStatus", "0")
    known = f"{result}, status {status}" if status not in ("", "0") else result
    line = _last_line(unit.get("InvocationID", ""), scope) if unit.get("Id", "").endswith(".service") else ""
    if step := failed_step(status):
        return f"{step}: {line}" if line else step
    return f"{line} ({known})" if line else known


def repair_of(unit: Unit, name: str, scope: Scope) -> str:
    """Return the commands that start the failed *unit* again."""
    systemctl = systemctl_of(scope)
    return f"{_remedy(unit)}, then: {systemctl} reset-failed {name}; {systemctl} restart {name}"


def _remedy(unit: Unit) -> str:
    """Return what to do about the cause before the failed *unit* is started again."""
    if unit.get("ExecMainStatus") == str(NAMESPACE):
        return "in a container, allow nesting or use the drop-in of sbus(7), CONTAINERS"
    return "remove the cause"


def check_bus_units(unit: BusUnit | None, *, booted: Path = _BOOTED) -> tuple[list[Finding], dict[str, Unit]]:
    """Return the findings for the socket and the service *unit* of a bus, and the properties of both; None: no unit has its address."""
    if unit is None:
        shown = shown_units(None)
        return ([shown] if isinstance(shown, Finding) else []), {}
    scope: Scope = "user" if unit.is_user else "system"
    socket = f"{unit.name.removesuffix('.service')}.socket"
    shown = shown_units(scope, socket, unit.name, booted=booted)
    if isinstance(shown, Finding):
        return [shown], {}
    return [_judge_socket(shown.get(socket, {}), socket, scope), judge_service(shown.get(unit.name, {}), unit.name, scope)], shown


def _judge_load(unit: Unit, name: str, scope: Scope) -> Finding | None:
    """Return the finding for a *unit* of a bus that systemd has not loaded."""
    state = unit.get("LoadState") or "unknown"
    if state == "loaded":
        return None
    if state == "masked":
        systemctl, stem = systemctl_of(scope), name.rpartition(".")[0]
        service, socket = f"{stem}.service", f"{stem}.socket"
        # The socket fails at the first connection while its service is masked. A mask until the next boot needs an option.
        runtime = " --runtime" if unit.get("UnitFileState") == "masked-runtime" else ""
        advice = f"{systemctl} unmask{runtime} {service} {socket}; {systemctl} restart {socket}"
        return Finding(name, CheckResult.FAIL, "masked: systemd does not start it", advice)
    return Finding(name, CheckResult.WARN, f"not installed ({state})", "install the units of the package")


def _judge_socket(unit: Unit, name: str, scope: Scope) -> Finding:
    """Judge the socket unit of a bus."""
    if found := _judge_load(unit, name, scope):
        return found
    systemctl = systemctl_of(scope)
    if unit.get("ActiveState") == "failed":
        service = f"{name.removesuffix('.socket')}.service"
        advice = f"remove the cause, then: {systemctl} reset-failed {service} {name}; {systemctl} start {name}"
        return Finding(name, CheckResult.FAIL, f"failed ({unit.get('Result')})", advice)
    if unit.get("ActiveState") != "active":
        return Finding(
            name, CheckResult.WARN, f"{unit.get('ActiveState')}: systemd does not listen on the socket", f"{systemctl} enable --now {name}"
        )
    if unit.get("UnitFileState") not in (*_ENABLED, "static", "generated", "linked"):
        return Finding(name, CheckResult.WARN, "active, but not enabled: it does not start at boot", f"{systemctl} enable {name}")
    return Finding(name, CheckResult.OK, f"{unit.get('UnitFileState')}, active")


def judge_service(unit: Unit, name: str, scope: Scope) -> Finding:
    """Judge the service unit of a bus; a service that has not been started yet is fine."""
    if found := _judge_load(unit, name, scope):
        return found
    systemctl = systemctl_of(scope)
    state, socket = unit.get("ActiveState"), f"{name.removesuffix('.service')}.socket"
    if state == "failed":
        advice = f"{_remedy(unit)}, then: {systemctl} reset-failed {name} {socket}; {systemctl} start {socket}"
        return Finding(name, CheckResult.FAIL, f"failed: {failure_of(unit, scope)}", advice)
    if state == "active":
        return Finding(name, CheckResult.OK, "active")
    if state == "activating" and unit.get("SubState", "").startswith("auto-restart"):
        advice = f"{_remedy(unit)}; systemd tries again until it fails for good. See: {systemctl} status {name}"
        return Finding(name, CheckResult.FAIL, f"restarts again and again: {failure_of(unit, scope)}", advice)
    if state == "activating" and unit.get("NRestarts", "0") != "0":
        reason = f"starting, after {unit['NRestarts']} restarts since it was started by hand"
        return Finding(name, CheckResult.WARN, reason, f"see: {systemctl} status {name}")
    return Finding(name, CheckResult.OK, f"{unit.get('ActiveState')}: it starts with the first connection")


def check_addons(scope: Scope, *, booted: Path = _BOOTED) -> list[Finding]:
    """Return a finding for each unit of the other packages that is enabled, runs, or has failed."""
    shown = shown_units(scope, *ADDONS[scope], booted=booted)
    if isinstance(shown, Finding):
        return []
    return [found for name in ADDONS[scope] if (found := judge_addon(shown.get(name, {}), name, scope)) is not None]


def judge_addon(unit: Unit, name: str, scope: Scope) -> Finding | None:
    """Judge a unit of another package; None if it is not installed, masked, or off."""
    if unit.get("LoadState") != "loaded":
        return None
    state = unit.get("ActiveState", "")
    restarts = state == "activating" and unit.get("SubState", "").startswith("auto-restart")
    if state == "failed" or restarts:
        reason = f"{'restarts again and again' if restarts else 'failed'}: {failure_of(unit, scope)}"
        return Finding(name, CheckResult.FAIL, reason, repair_of(unit, name, scope))
    if state in ("active", "activating", "reloading"):
        return date_doubted(name, name) if DATE_JUMPED in unit.get("StatusText", "") else Finding(name, CheckResult.OK, state)
    if has_unmet_condition(unit) and (is_enabled(unit) or unit.get("TriggeredBy")):
        return _judge_condition(name, scope)
    if is_enabled(unit):
        return Finding(name, CheckResult.WARN, f"enabled, but {state or 'unknown'}", f"{systemctl_of(scope)} restart {name}")
    return None


def has_unmet_condition(unit: Unit) -> bool:
    """Return whether the last start of *unit* did nothing, because of a condition; ``systemctl start`` succeeds then."""
    return unit.get("ConditionResult") == "no" and unit.get("ConditionTimestampMonotonic", "0") not in ("", "0")


def _judge_condition(name: str, scope: Scope) -> Finding:
    """Return the finding for the unit *name*, whose condition was not met."""
    systemctl = systemctl_of(scope)
    try:
        text = _ask([*systemctl.split(), "cat", name]).stdout
    except (OSError, subprocess.SubprocessError):
        text = ""
    conditions = conditions_in(text)
    shown = f": {'; '.join(conditions)}" if conditions else ""
    start = f"{systemctl} restart {name}"
    advice = f"see: {systemctl} status {name}; meet the condition, or change it in a drop-in, then: {start}"
    if any(RECORD in each for each in conditions):
        advice = f"{systemctl} enable --now {RECORDER}; {start}; for another archive, replace the condition in a drop-in"
    return Finding(name, CheckResult.WARN, f"it did not start, because a condition was not met{shown}", advice)


def conditions_in(text: str) -> list[str]:
    """Return the conditions in *text*, a unit and its drop-ins; an empty one removes those before it. Source: systemd.unit(5)."""
    found: list[str] = []
    for line in text.splitlines():
        if match := re.match(r"\s*Condition\w+\s*=\s*(.*)", line):
            found = [*found, line.strip()] if match[1].strip() else []
    return found


def date_doubted(check: str, name: str) -> Finding:
    """Return the finding for the service *name*, which removes nothing because of a date that has jumped."""
    reason = f"{DATE_JUMPED}: {name} removes nothing because of the new date until it is believed"
    advice = "correct the clock; if the date is right, run the command in the log of the service as root: sbus(7), DATES THAT JUMP"
    return Finding(check, CheckResult.WARN, reason, advice)


def without_package(name: str, unit: Unit, main_file: Path) -> Finding:
    """Return the finding for the configuration *main_file* of the service *name*, whose *unit* is missing, see :func:`is_missing`."""
    if unit.get("LoadState") == "masked":
        # On purpose, or by the removal of the package: older versions of Debian mask its units until it is purged.
        return Finding(name, CheckResult.SKIP, f"configuration without a service: {main_file} has settings, but {name} is masked")
    return Finding(name, CheckResult.SKIP, f"configuration without the package: {main_file} has settings, but {name} is not installed")


def _last_line(invocation: str, scope: Scope) -> str:
    """Return the last line in the journal of one run of a service; empty if there is none, or this user may not read it."""
    if not invocation:
        return ""
    user = ["--user"] if scope == "user" else []
    command = ["journalctl", *user, "--quiet", "--output=cat", "--lines=20", f"_SYSTEMD_INVOCATION_ID={invocation}"]
    try:
        lines = [line for line in _ask(command).stdout.splitlines() if line.strip()]
    except (OSError, subprocess.SubprocessError):
        return ""
    return lines[-1].strip()[:_MAX_LINE] if lines else ""


def _ask(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a program of systemd. Raises OSError, TimeoutExpired."""
    return subprocess.run(
        command, capture_output=True, text=True, errors="replace", timeout=_COMMAND_SECONDS, check=False, stdin=subprocess.DEVNULL
    )
