"""Checks units (source: systemctl(1), ``show``), configuration, kernel limits, and the extension of the Python client."""

from __future__ import annotations

import os
import re
import resource
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from sbusd.client import incoming
from sbusd.client.bus_unit import start_error
from sbusd.config import ConfigError, check_daemon_settings, configuration_files, default_main_file, describe
from sbusd.config.files import SYSTEM_FOLDER, drop_in_folders
from sbusd.ctl.checks import CheckResult, Finding
from sbusd.protocol.packets import MAX_PACKET_BYTES

_SOCKET = "sbus.socket"
_SERVICE = "sbus.service"
_PROPERTIES = "Id,LoadState,ActiveState,SubState,UnitFileState,Result,StatusText,NRestarts,MainPID"
_PATIENCE_SECONDS = 10.0

Unit = Mapping[str, str]

_ENABLED = ("enabled", "enabled-runtime")

_WMEM_MAX = Path("/proc/sys/net/core/wmem_max")

FEW_DESCRIPTORS = 4_096
"""A bus with a lower limit refuses clients before the machine is busy; the units set 16,384."""


def check_units(scope: Literal["system", "user"] | None, booted: Path = Path("/run/systemd/system")) -> tuple[list[Finding], int | None]:
    """Return the findings for the units of the bus of *scope*, and the main process of its service if it runs.

    *scope* is None for a bus at another address, which has no units. *booted* exists if systemd is the init system, sd_booted(3).
    """
    units = shown_units(scope, _SOCKET, _SERVICE, booted=booted)
    if isinstance(units, Finding):
        return [units], None
    return judge_units(units, systemctl_of(scope)), main_process(units)


def systemctl_of(scope: Literal["system", "user"] | None) -> str:
    """Return the command that controls the units of *scope*."""
    return "systemctl --user" if scope == "user" else "systemctl"


def shown_units(
    scope: Literal["system", "user"] | None, *names: str, booted: Path = Path("/run/systemd/system")
) -> dict[str, Unit] | Finding:
    """Return the properties of the units *names* of *scope*, or why they are not known."""
    if scope is None:
        return Finding("units", CheckResult.SKIP, "this is neither the system bus nor the user bus, so its units are not known")
    if not booted.is_dir():
        return Finding("units", CheckResult.SKIP, "systemd is not the init system of this machine")
    arguments = [*systemctl_of(scope).split(), "show", f"--property={_PROPERTIES}", *names]
    try:
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=_PATIENCE_SECONDS, check=False, stdin=subprocess.DEVNULL)
    except FileNotFoundError:
        return Finding("units", CheckResult.SKIP, "systemctl is not installed")
    except subprocess.TimeoutExpired:
        return Finding("units", CheckResult.WARN, "systemctl does not respond", "check systemd itself (systemctl status)")
    if done.returncode:
        said = (done.stderr.strip() or f"status {done.returncode}").splitlines()[0]
        return Finding("units", CheckResult.SKIP, f"systemctl failed: {said}")
    return parse_units(done.stdout)


def is_enabled(unit: Unit) -> bool:
    """Return whether *unit* is started with the machine, or with the session of the user."""
    return unit.get("UnitFileState") in _ENABLED


def parse_units(shown: str) -> dict[str, Unit]:
    """Return the properties of each unit in the output of ``systemctl show``, by the name of the unit."""
    blocks = (dict(line.split("=", 1) for line in block.splitlines() if "=" in line) for block in shown.split("\n\n"))
    return {block["Id"]: block for block in blocks if "Id" in block}


def main_process(units: Mapping[str, Unit]) -> int | None:
    """Return the main process of the service, None if it does not run."""
    pid = units.get(_SERVICE, {}).get("MainPID", "0")
    return int(pid) if pid.isascii() and pid.isdigit() and int(pid) else None


def judge_units(units: Mapping[str, Unit], systemctl: str) -> list[Finding]:
    """Return the findings for *units*; *systemctl* is the command that the advice shows."""
    return [_judge_socket(units.get(_SOCKET, {}), systemctl), _judge_service(units.get(_SERVICE, {}), systemctl)]


def _judge_socket(unit: Unit, systemctl: str) -> Finding:
    """Judge the socket unit."""
    if unit.get("LoadState") != "loaded":
        return Finding(
            _SOCKET, CheckResult.WARN, f"not installed ({unit.get('LoadState') or 'unknown'})", "install the units of the package"
        )
    if unit.get("ActiveState") == "failed":
        advice = f"remove the cause, then: {systemctl} reset-failed {_SERVICE} {_SOCKET}; {systemctl} start {_SOCKET}"
        return Finding(_SOCKET, CheckResult.FAIL, f"failed ({unit.get('Result')})", advice)
    if unit.get("ActiveState") != "active":
        return Finding(
            _SOCKET,
            CheckResult.WARN,
            f"{unit.get('ActiveState')}: systemd does not listen on the socket",
            f"{systemctl} enable --now {_SOCKET}",
        )
    if unit.get("UnitFileState") not in (*_ENABLED, "static", "generated", "linked"):
        return Finding(_SOCKET, CheckResult.WARN, "active, but not enabled: it does not start at boot", f"{systemctl} enable {_SOCKET}")
    return Finding(_SOCKET, CheckResult.OK, f"{unit.get('UnitFileState')}, active")


def _judge_service(unit: Unit, systemctl: str) -> Finding:
    """Judge the service unit; a service that has not been started yet is fine."""
    if unit.get("LoadState") != "loaded":
        return Finding(
            _SERVICE, CheckResult.WARN, f"not installed ({unit.get('LoadState') or 'unknown'})", "install the units of the package"
        )
    state, reason = unit.get("ActiveState"), start_error(unit.get("StatusText", "")) or unit.get("Result")
    if state == "failed":
        advice = f"remove the cause, then: {systemctl} reset-failed {_SERVICE} {_SOCKET}; {systemctl} start {_SOCKET}"
        return Finding(_SERVICE, CheckResult.FAIL, f"failed: {reason}", advice)
    if state == "active":
        return Finding(_SERVICE, CheckResult.OK, "active")
    if state == "activating" and unit.get("SubState", "").startswith("auto-restart"):
        advice = f"remove the cause; systemd tries again until it fails for good. See: {systemctl} status {_SERVICE}"
        return Finding(_SERVICE, CheckResult.FAIL, f"restarts again and again: {reason}", advice)
    if state == "activating" and unit.get("NRestarts", "0") != "0":
        reason = f"starting, after {unit['NRestarts']} restarts since it was started by hand"
        return Finding(_SERVICE, CheckResult.WARN, reason, f"see: {systemctl} status {_SERVICE}")
    return Finding(_SERVICE, CheckResult.OK, f"{unit.get('ActiveState')}: it starts with the first connection")


def check_package() -> Finding:
    """Return whether the compiled extension of the Python client is installed; without it the client is slow."""
    if incoming.IS_COMPILED:
        return Finding("client", CheckResult.OK, "the Python client uses its compiled extension")
    return Finding(
        "client",
        CheckResult.WARN,
        "the compiled extension of the Python client is missing: receiving is several times slower",
        "reinstall the package, or build the source tree: make build",
    )


def check_configuration(scope: Literal["system", "user"] | None) -> Finding:
    """Return the finding for the configuration of the bus of *scope*; None: the files of this bus are not known."""
    if scope is None:
        return Finding("configuration", CheckResult.SKIP, "this is neither the system bus nor the user bus, so its files are not known")
    return check_file(default_main_file(user_bus=scope == "user"))


def check_file(main_file: Path) -> Finding:
    """Return the finding for *main_file* and its drop-ins."""
    if hidden := _unreadable(main_file):
        return Finding("configuration", CheckResult.SKIP, f"{hidden} is not readable by this user")
    try:
        configuration = check_daemon_settings(main_file)
    except ConfigError as error:
        advice = "correct the file: with a faulty main file the bus does not start, with an unreadable drop-in it denies every key"
        return Finding("configuration", CheckResult.FAIL, str(error), advice)
    if not configuration.faults:
        return Finding("configuration", CheckResult.OK, describe(configuration, main_file))
    first, more = configuration.faults[0], len(configuration.faults) - 1
    reason = f"{first} ({more} more; sbusd --check-config lists them)" if more else str(first)
    return Finding("configuration", CheckResult.FAIL, reason, f"correct or remove the file, then: {_reload(main_file)}")


def _reload(main_file: Path) -> str:
    """Return the command that reloads the configuration."""
    return "systemctl reload sbus.service" if main_file.parent == SYSTEM_FOLDER else "systemctl --user reload sbus.service"


def _unreadable(main_file: Path) -> Path | None:
    """Return an existing file or directory of the configuration that this user may not read, if any."""
    for place in (main_file.parent, *drop_in_folders(main_file)):
        if place.exists() and not os.access(place, os.R_OK | os.X_OK):
            return place
    return next((file for file in configuration_files(main_file) if file.exists() and not os.access(file, os.R_OK)), None)


def check_packet(size: int = MAX_PACKET_BYTES) -> Finding:
    """Return whether a client can send a packet of *size* bytes, by trying it on a pair of sockets."""
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with left, right:
        left.setblocking(False)
        # The kernel limits the value to net.core.wmem_max, and doubles it: socket(7).
        left.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size)
        try:
            left.send(bytes(size))
        except OSError as error:
            reason = f"clients cannot send packets of the maximum size, {size} bytes: {error.strerror}; net.core.wmem_max is {_wmem_max()}"
            return Finding("packets", CheckResult.WARN, reason, f"sysctl net.core.wmem_max={size}, and add the setting to /etc/sysctl.d")
    return Finding("packets", CheckResult.OK, f"clients can send packets of the maximum size, {size} bytes")


def check_descriptors(pid: int | None, connections: int | None) -> Finding:
    """Return whether process *pid*, the bus, can have enough descriptors for its *connections*; both can be None if unknown."""
    if pid is None:
        return Finding("descriptors", CheckResult.SKIP, "the process of the bus is not known")
    limit = _descriptor_limit(pid)
    if limit is None:
        return Finding("descriptors", CheckResult.SKIP, f"this user may not read the limits of the bus (PID {pid})")
    return judge_descriptors(limit, connections)


def _descriptor_limit(pid: int) -> int | None:
    """Return the soft limit of descriptors of process *pid*, None if it is not known. Source: proc(5), ``/proc/PID/limits``."""
    try:
        found = re.search(r"^Max open files +(\w+) ", Path(f"/proc/{pid}/limits").read_text("ascii"), re.MULTILINE)
    except OSError:
        return None
    if found is None:
        return None
    return int(found[1]) if found[1].isdecimal() else resource.RLIM_INFINITY


RESTART_PERCENT = 40
"""Part of the limit above which few more connections fit: users other than owners have 43 percent together, see sbusd.toml(5)."""


def judge_descriptors(limit: int, connections: int | None) -> Finding:
    """Return the finding for a *limit* of open descriptors of a bus with *connections*."""
    advice = "raise LimitNOFILE= of sbus.service, or ulimit -n if the bus is started manually"
    if limit == resource.RLIM_INFINITY:
        return Finding("descriptors", CheckResult.OK, "the bus may open any number of descriptors")
    if connections is not None and connections > limit * 9 // 10:
        return Finding("descriptors", CheckResult.FAIL, f"the bus has {connections} connections and may open {limit} descriptors", advice)
    if connections is not None and connections * 100 > limit * RESTART_PERCENT:
        reason = f"the bus has {connections} connections and may open {limit} descriptors; a restart needs two for each"
        return Finding("descriptors", CheckResult.WARN, reason, f"{advice}; sbusctl users shows which user has most")
    if limit < FEW_DESCRIPTORS:
        return Finding("descriptors", CheckResult.WARN, f"the bus may open only {limit} descriptors, and needs one per connection", advice)
    return Finding("descriptors", CheckResult.OK, f"the bus may open {limit} descriptors")


def _wmem_max() -> str:
    """Return net.core.wmem_max as text."""
    try:
        return _WMEM_MAX.read_text("ascii").strip()
    except OSError:
        return "not readable"
