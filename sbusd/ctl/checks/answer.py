"""Does something listen, does it answer as sbusd does, and is it of this version?"""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass

from sbusd import __version__
from sbusd.client import Bus
from sbusd.client.errors import systemctl
from sbusd.ctl.answers import JsonObject, ask, integer, mapping, text
from sbusd.ctl.checks.finding import Finding, Result
from sbusd.ctl.output import words_of
from sbusd.ctl.settings import Settings
from sbusd.protocol import controls
from sbusd.protocol.errors import SbusError

PATIENCE_SECONDS = 10.0
"""Long enough for a service manager to start the bus first."""

_UCRED = struct.Struct("iII")


@dataclass(frozen=True, slots=True)
class Answer:
    """What a bus said; ``features`` is None if it did not answer as sbusd, and ``peer`` is who listens: the bus, or who started it."""

    features: list[str] | None
    stats: JsonObject
    peer: int
    problem: str = ""


def reach(settings: Settings) -> Answer:
    """Return what the bus says. Raises SbusError or OSError if nothing can be reached."""
    with settings.connect(PATIENCE_SECONDS) as bus:
        peer = _peer(bus)
        try:
            features = bus.control(controls.FEATURES).decode("utf-8", "replace").split()
            stats = ask(bus, controls.STATS)
        except SbusError as error:
            return Answer(None, {}, peer, words_of(error))
    return Answer(features, stats, peer)


def judge(answer: Answer) -> list[Finding]:
    """Return what *answer* means."""
    reached = Finding("connection", Result.OK, "the bus accepts connections of this user")
    if answer.features is None:
        return [
            reached,
            Finding(
                "protocol",
                Result.FAIL,
                f"the process at this address is not sbusd: {answer.problem}",
                "find the process that listens there (ss -xlp)",
            ),
        ]
    spoken = Finding("protocol", Result.OK, "sbusd, features: " + (" ".join(answer.features) or "none"))
    return [reached, spoken, _judge_version(text(answer.stats, "version")), *_judge_faults(answer.stats)]


def unreachable(error: Exception, address: str) -> list[Finding]:
    """Return the finding for a bus at *address* that cannot be reached."""
    journalctl = "journalctl --user" if systemctl(address) != "systemctl" else "journalctl"
    return [Finding("connection", Result.FAIL, words_of(error), f"if the bus should be running, see: {journalctl} -u sbus.service")]


def open_connections(answer: Answer) -> int | None:
    """Return how many connections the bus has, or None if it does not tell this user."""
    return integer(mapping(answer.stats, "counters"), "connections")


def _judge_faults(stats: JsonObject) -> list[Finding]:
    """Judge the configuration that the bus holds to, if it tells this user: what root can read, the bus's own user may not."""
    faults = integer(mapping(stats, "control"), "configuration_faults")
    if faults is None:
        return []
    if not faults:
        return [Finding("faults", Result.OK, "the bus applied all of its configuration")]
    reason = f"the bus rejected parts of its configuration, and denies access to the affected keys; faults: {faults}"
    return [Finding("faults", Result.FAIL, reason, "list the faults: journalctl SBUS_EVENT=configuration-fault")]


def _judge_version(version: str | None) -> Finding:
    """Judge whether bus and client belong together."""
    if version is None:
        return Finding("version", Result.WARN, "the bus does not report its version", "upgrade the bus if it is older than this sbusctl")
    if version != __version__:
        return Finding(
            "version",
            Result.WARN,
            f"the bus has version {version}, sbusctl has version {__version__}",
            "install the same version of both, and restart the bus",
        )
    return Finding("version", Result.OK, f"bus and sbusctl have version {version}")


def _peer(bus: Bus) -> int:
    """Return the process at the other end, at the moment it began to listen. Source: unix(7), SO_PEERCRED."""
    with socket.socket(fileno=socket.dup(bus.fileno())) as twin:
        pid, _, _ = _UCRED.unpack(twin.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return int(pid)
