"""Checks the units of the bus (source: systemctl(1), ``show``), and the extension of the Python client."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from sbusd.client import message_batch
from sbusd.ctl.checks import CheckResult, Finding

_SOCKET = "sbus.socket"
_SERVICE = "sbus.service"
_PROPERTIES = "Id,LoadState,ActiveState,UnitFileState,Result,MainPID"
_PATIENCE_SECONDS = 10.0

Unit = Mapping[str, str]


def check_units(scope: Literal["system", "user"] | None, booted: Path = Path("/run/systemd/system")) -> tuple[list[Finding], int | None]:
    """Return the findings for the units of the bus of *scope*, and the main process of its service if it runs.

    *scope* is None for a bus at another address, which has no units. *booted* exists if systemd is the init system, sd_booted(3).
    """
    if scope is None:
        return [Finding("units", CheckResult.SKIP, "this is neither the system bus nor the user bus, so its units are not known")], None
    if not booted.is_dir():
        return [Finding("units", CheckResult.SKIP, "systemd is not the init system of this machine")], None
    arguments = ["systemctl", *(["--user"] if scope == "user" else []), "show", f"--property={_PROPERTIES}", _SOCKET, _SERVICE]
    try:
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=_PATIENCE_SECONDS, check=False, stdin=subprocess.DEVNULL)
    except FileNotFoundError:
        return [Finding("units", CheckResult.SKIP, "systemctl is not installed")], None
    except subprocess.TimeoutExpired:
        return [Finding("units", CheckResult.WARN, "systemctl does not respond", "check systemd itself (systemctl status)")], None
    if done.returncode:
        said = (done.stderr.strip() or f"status {done.returncode}").splitlines()[0]
        return [Finding("units", CheckResult.SKIP, f"systemctl failed: {said}")], None
    units = parse(done.stdout)
    return judge(units, "systemctl --user" if scope == "user" else "systemctl"), main_process(units)


def parse(shown: str) -> dict[str, Unit]:
    """Return the properties of each unit in the output of ``systemctl show``, by the name of the unit."""
    blocks = (dict(line.split("=", 1) for line in block.splitlines() if "=" in line) for block in shown.split("\n\n"))
    return {block["Id"]: block for block in blocks if "Id" in block}


def main_process(units: Mapping[str, Unit]) -> int | None:
    """Return the main process of the service, None if it does not run."""
    pid = units.get(_SERVICE, {}).get("MainPID", "0")
    return int(pid) if pid.isascii() and pid.isdigit() and int(pid) else None


def judge(units: Mapping[str, Unit], systemctl: str) -> list[Finding]:
    """Return the findings for *units*; *systemctl* is the command that the advice shows."""
    return [_judge_socket(units.get(_SOCKET, {}), systemctl), _judge_service(units.get(_SERVICE, {}), systemctl)]


def _judge_socket(unit: Unit, systemctl: str) -> Finding:
    """Judge the socket unit."""
    if unit.get("LoadState") != "loaded":
        return Finding(
            _SOCKET, CheckResult.WARN, f"not installed ({unit.get('LoadState') or 'unknown'})", "install the units of the package"
        )
    if unit.get("ActiveState") == "failed":
        return Finding(
            _SOCKET, CheckResult.FAIL, f"failed ({unit.get('Result')})", f"check its journal, then: {systemctl} restart {_SOCKET}"
        )
    if unit.get("ActiveState") != "active":
        return Finding(
            _SOCKET,
            CheckResult.WARN,
            f"{unit.get('ActiveState')}: systemd does not listen on the socket",
            f"{systemctl} enable --now {_SOCKET}",
        )
    if unit.get("UnitFileState") not in ("enabled", "enabled-runtime", "static", "generated", "linked"):
        return Finding(_SOCKET, CheckResult.WARN, "active, but not enabled: it does not start at boot", f"{systemctl} enable {_SOCKET}")
    return Finding(_SOCKET, CheckResult.OK, f"{unit.get('UnitFileState')}, active")


def _judge_service(unit: Unit, systemctl: str) -> Finding:
    """Judge the service unit; a service that has not been started yet is fine."""
    if unit.get("LoadState") != "loaded":
        return Finding(
            _SERVICE, CheckResult.WARN, f"not installed ({unit.get('LoadState') or 'unknown'})", "install the units of the package"
        )
    if unit.get("ActiveState") == "failed":
        return Finding(_SERVICE, CheckResult.FAIL, f"failed ({unit.get('Result')})", f"see the reason: {systemctl} status {_SERVICE}")
    if unit.get("ActiveState") == "active":
        return Finding(_SERVICE, CheckResult.OK, "active")
    return Finding(_SERVICE, CheckResult.OK, f"{unit.get('ActiveState')}: it starts with the first connection")


def check_package() -> Finding:
    """Return whether the compiled extension of the Python client is installed; without it the client is slow."""
    if message_batch.IS_COMPILED:
        return Finding("client", CheckResult.OK, "the Python client uses its compiled extension")
    return Finding(
        "client",
        CheckResult.WARN,
        "the compiled extension of the Python client is missing: receiving is several times slower",
        "reinstall the package, or build the source tree: make build",
    )
