"""Checks the configuration, the limits of the kernel, and the extension of the Python client."""

from __future__ import annotations

import os
import re
import resource
import socket
from pathlib import Path

from sbus import incoming
from sbus.bus_unit import BusUnit
from sbus.protocol.packets import MAX_PACKET_BYTES
from sbus_programs.config import ConfigError, check_daemon_settings, configuration_files, default_main_file, describe
from sbus_programs.config.files import drop_in_folders
from sbus_programs.systemd.service_user import acting_as_user_of
from sbusctl.checks import CheckResult, Finding

_WMEM_MAX = Path("/proc/sys/net/core/wmem_max")

FEW_DESCRIPTORS = 4_096
"""A bus with a lower limit refuses clients before the machine is busy; the units set 16,384."""


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


def check_configuration(unit: BusUnit | None) -> Finding:
    """Return the finding for the configuration of the bus of *unit*; None: the files of this bus are not known."""
    if unit is None:
        return Finding("configuration", CheckResult.SKIP, "this is the bus of no unit of the packages, so its files are not known")
    return check_file(main_file_of(unit), unit)


def main_file_of(unit: BusUnit) -> Path:
    """Return the main file of the bus of *unit*, which may be an instance."""
    return default_main_file(f"{unit.instance}.toml" if unit.instance else "sbusd.toml", user_bus=unit.is_user)


def check_file(main_file: Path, unit: BusUnit) -> Finding:
    """Return the finding for *main_file* and its drop-ins; root reads those of the machine as the user of the service *unit*."""
    with acting_as_user_of(unit.name, main_file) as reader:
        if not reader and (hidden := _unreadable(main_file)):
            return Finding("configuration", CheckResult.SKIP, f"{hidden} is not readable by this user")
        try:
            configuration = check_daemon_settings(main_file)
        except ConfigError as error:
            if reader and not os.access(error.file, os.R_OK, effective_ids=True) and os.path.lexists(error.file):
                advice = f"let the user {reader} read it, such as: chmod a+rX {error.file}; then: {_reload(unit)}"
                return Finding("configuration", CheckResult.FAIL, str(error), advice)
            socket = f"{unit.name.removesuffix('.service')}.socket"
            start = f"{unit.systemctl} reset-failed {unit.name} {socket}; {unit.systemctl} restart {socket}"
            return Finding("configuration", CheckResult.FAIL, str(error), f"correct {error.file}, then: {start}")
    if not configuration.faults:
        return Finding("configuration", CheckResult.OK, describe(configuration, main_file, reader))
    first, more = configuration.faults[0], len(configuration.faults) - 1
    reason = f"{first} ({more} more; {list_faults(unit)} lists them)" if more else str(first)
    return Finding("configuration", CheckResult.FAIL, reason, f"correct or remove the file, then: {_reload(unit)}")


def list_faults(unit: BusUnit) -> str:
    """Return the command that lists the faults in the configuration of *unit*."""
    which = f" -C {main_file_of(unit)}" if unit.instance else " --user" if unit.is_user else ""
    return f"sbusd --check-config{which}"


def _reload(unit: BusUnit) -> str:
    """Return the command that reloads the configuration."""
    return f"{unit.systemctl} try-reload-or-restart {unit.name}"


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


def check_descriptors(pid: int | None, connections: int | None, unit: BusUnit | None) -> Finding:
    """Return whether process *pid*, the bus of *unit*, can have enough descriptors for its *connections*; all can be None if unknown."""
    if pid is None:
        return Finding("descriptors", CheckResult.SKIP, "the process of the bus is not known")
    limit = _descriptor_limit(pid)
    if limit is None:
        return Finding("descriptors", CheckResult.SKIP, f"this user may not read the limits of the bus (PID {pid})")
    return judge_descriptors(limit, connections, unit)


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


def judge_descriptors(limit: int, connections: int | None, unit: BusUnit | None) -> Finding:
    """Return the finding for a *limit* of open descriptors of the bus of *unit* with *connections*."""
    advice = (
        f"raise LimitNOFILE= of {unit.name}, or ulimit -n if the bus is started manually"
        if unit
        else "start the bus with a higher ulimit -n"
    )
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
