"""Checks that a bus accepts connections, responds as sbusd does, and has this version."""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass

from sbusd import __version__
from sbusd.client import Bus
from sbusd.client.errors import systemctl
from sbusd.ctl.checks import CheckResult, Finding
from sbusd.ctl.output import error_text
from sbusd.ctl.responses import JsonObject, ask, integer, mapping, text
from sbusd.ctl.settings import Settings
from sbusd.protocol import controls
from sbusd.protocol.errors import SbusError

PATIENCE_SECONDS = 10.0
"""Long enough for the service manager to start the bus."""

_UCRED = struct.Struct("iII")


@dataclass(frozen=True, slots=True)
class BusResponse:
    """The responses of a bus. ``features`` is None if it is not sbusd. ``peer`` is the listening process: the bus or the service
    manager."""

    features: list[str] | None
    stats: JsonObject
    peer: int
    problem: str = ""


def reach(settings: Settings) -> BusResponse:
    """Return the responses of the bus. Raises SbusError or OSError if it cannot be reached."""
    with settings.connect(PATIENCE_SECONDS) as bus:
        peer = _peer(bus)
        try:
            features = bus.control(controls.FEATURES).decode("utf-8", "replace").split()
            stats = ask(bus, controls.STATS)
        except SbusError as error:
            return BusResponse(None, {}, peer, error_text(error))
    return BusResponse(features, stats, peer)


def judge(answer: BusResponse) -> list[Finding]:
    """Return the findings for *answer*."""
    reached = Finding("connection", CheckResult.OK, "the bus accepts connections of this user")
    if answer.features is None:
        return [
            reached,
            Finding(
                "protocol",
                CheckResult.FAIL,
                f"the process at this address is not sbusd: {answer.problem}",
                "find the process that listens there (ss -xlp)",
            ),
        ]
    spoken = Finding("protocol", CheckResult.OK, "sbusd, features: " + (" ".join(answer.features) or "none"))
    return [reached, spoken, _judge_version(text(answer.stats, "version")), *_judge_faults(answer.stats)]


def unreachable(error: Exception, address: str) -> list[Finding]:
    """Return the finding for a bus at *address* that cannot be reached."""
    journalctl = "journalctl --user" if systemctl(address) != "systemctl" else "journalctl"
    return [Finding("connection", CheckResult.FAIL, error_text(error), f"if the bus should be running, see: {journalctl} -u sbus.service")]


def open_connections(answer: BusResponse) -> int | None:
    """Return the number of connections, None if the bus does not report it to this user."""
    return integer(mapping(answer.stats, "counters"), "connections")


def _judge_faults(stats: JsonObject) -> list[Finding]:
    """Judge the configuration that the bus has applied, if it reports that to this user. The bus may not be able to read files that
    root can."""
    faults = integer(mapping(stats, "control"), "configuration_faults")
    if faults is None:
        return []
    if not faults:
        return [Finding("faults", CheckResult.OK, "the bus applied all of its configuration")]
    reason = f"the bus rejected parts of its configuration, and denies access to the affected keys; faults: {faults}"
    return [Finding("faults", CheckResult.FAIL, reason, "list the faults: journalctl SBUS_EVENT=configuration-fault")]


def _judge_version(version: str | None) -> Finding:
    """Judge whether the bus has the version of sbusctl."""
    if version is None:
        return Finding(
            "version", CheckResult.WARN, "the bus does not report its version", "upgrade the bus if it is older than this sbusctl"
        )
    if version != __version__:
        return Finding(
            "version",
            CheckResult.WARN,
            f"the bus has version {version}, sbusctl has version {__version__}",
            "install the same version of both, and restart the bus",
        )
    return Finding("version", CheckResult.OK, f"bus and sbusctl have version {version}")


def _peer(bus: Bus) -> int:
    """Return the process that listens at the other end. Source: unix(7), SO_PEERCRED."""
    with socket.socket(fileno=socket.dup(bus.fileno())) as twin:
        pid, _, _ = _UCRED.unpack(twin.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return int(pid)
