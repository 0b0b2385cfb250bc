"""Checks the service for large messages: its socket, and its right."""

from __future__ import annotations

import os
import stat
from typing import Literal

from sbusd.ctl.checks import CheckResult, Finding
from sbusd.ctl.checks.rights import check_rights
from sbusd.ctl.checks.units import Unit, is_enabled, is_missing, systemctl_of
from sbusd.protocol.blobs import blob_address

UNIT = "sbus-blob.socket"

EFFECTS = {"presence": "blobs cannot be given to a single connection"}
"""What fails without a right."""


def check_blobs(unit: Unit, bus: str, scope: Literal["system", "user"]) -> list[Finding]:
    """Return the findings for the socket next to the bus at *bus*; an empty list without a socket and if its *unit* is not enabled."""
    address = blob_address(bus)
    try:
        is_socket = stat.S_ISSOCK(os.stat(address).st_mode)
    except OSError:
        is_socket = False
    if is_missing(unit) or (not is_enabled(unit) and not is_socket):
        return []
    return [judge_socket(unit, address, scope, is_socket=is_socket), *check_rights("sbus-blob", scope, EFFECTS)]


def judge_socket(unit: Unit, address: str, scope: Literal["system", "user"], *, is_socket: bool) -> Finding:
    """Judge the socket at *address*."""
    systemctl = systemctl_of(scope)
    if not is_socket:
        state = unit.get("ActiveState") or "unknown"
        reason = f"{UNIT} is enabled, but the socket {address} does not exist ({state}): large messages fail"
        return Finding("blob socket", CheckResult.FAIL, reason, f"{systemctl} restart {UNIT}")
    if unit.get("LoadState") == "loaded" and unit.get("ActiveState") != "active":
        reason = f"{address} exists, but {UNIT} is {unit.get('ActiveState') or 'unknown'}: nothing may listen"
        return Finding("blob socket", CheckResult.WARN, reason, f"{systemctl} restart {UNIT}")
    return Finding("blob socket", CheckResult.OK, address)
