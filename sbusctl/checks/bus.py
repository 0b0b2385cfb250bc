"""Checks the socket of the bus: that its unit listens, and that the bus accepts connections and responds as sbusd of this version does."""

from __future__ import annotations

import errno
import os
import re
import socket
import stat
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sbus import Bus, Disconnected, NoBus
from sbus.bus_documents import JsonObject
from sbus.bus_unit import BusUnit, named_unit
from sbus.protocol import __version__, controls
from sbus.protocol.addresses import InheritedDescriptor, RandomAbstract, parse_address
from sbus.protocol.errors import BadAddressError, ErrorCode, SbusError
from sbus_programs.systemd.processes import UNKNOWN, command_name
from sbusctl.checks import CheckResult, Finding
from sbusctl.checks.installation import list_faults
from sbusctl.checks.units import Unit, main_process, shown_units, socket_of
from sbusctl.errors import error_text
from sbusctl.processes import user_name
from sbusctl.responses import ask, integer, mapping, text
from sbusctl.settings import Settings

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


CHECK_SECONDS = 10.0
"""Long enough for the service manager to start the bus."""

_UCRED = struct.Struct("iII")


@dataclass(frozen=True, slots=True)
class SocketFacts:
    """The relevant results of stat(2) and access(2) for a socket and its directory; modes include the file type."""

    mode: int
    uid: int
    is_writable: bool
    folder_mode: int
    folder_uid: int


def check_socket(address: str, *, is_for_all: bool) -> list[Finding]:
    """Return the findings for *address*; with *is_for_all* every user of the machine should be able to connect."""
    try:
        parsed = parse_address(address)
    except BadAddressError as error:
        return [Finding("address", CheckResult.FAIL, str(error.reason), "use a path, or /dev/unix/abstract/HEX as the bus prints it")]
    if isinstance(parsed, RandomAbstract):
        return [
            Finding(
                "address",
                CheckResult.FAIL,
                "not the address of a bus: the server chooses a random name",
                "use the address that the server prints",
            )
        ]
    if isinstance(parsed, InheritedDescriptor) or parsed.is_abstract:
        return [Finding("socket", CheckResult.SKIP, "not a file, so it has no mode and no owner")]
    path = os.fsdecode(parsed.name)
    try:
        facts = _gather(path)
    except FileNotFoundError:
        return [Finding("socket", CheckResult.FAIL, "no such socket", _start(address))]
    except OSError as error:
        return [
            Finding(
                "socket",
                CheckResult.FAIL,
                f"cannot read its status: {error.strerror}",
                "allow this user to search the directories of the path",
            )
        ]
    return judge_socket(facts, named_unit(address), is_for_all=is_for_all)


def _start(address: str) -> str:
    """Return the advice if *address* has no socket."""
    unit = named_unit(address)
    if unit is None:
        return "start the bus, or use another address"
    socket = socket_of(unit)
    shown = shown_units("user" if unit.is_user else "system", socket)
    if isinstance(shown, dict) and shown.get(socket, {}).get("LoadState") == "masked":
        return f"see {socket}: it is masked"
    return f"{unit.systemctl} restart {socket}, or use another address"


def judge_socket(facts: SocketFacts, unit: BusUnit | None, *, is_for_all: bool) -> list[Finding]:
    """Return the findings for *facts* at the address of *unit*; None: no unit of the packages has this address."""
    if not stat.S_ISSOCK(facts.mode):
        # At any other address the file, such as /dev/null, may be right, and the address wrong.
        advice = f"remove it, then: {unit.systemctl} restart {socket_of(unit)}" if unit else "use the address of a bus"
        return [Finding("socket", CheckResult.FAIL, "the file at this path is not a socket", advice)]
    what = f"mode {stat.S_IMODE(facts.mode):04o}, owner {user_name(facts.uid)}"
    return [_judge_mode(facts, what, is_for_all=is_for_all), _judge_owner(facts), _judge_folder(facts)]


def _judge_mode(facts: SocketFacts, what: str, *, is_for_all: bool) -> Finding:
    """Judge which users may connect."""
    if not facts.is_writable:
        return Finding(
            "socket", CheckResult.FAIL, f"{what}: this user may not connect", "change its mode or its group (SocketMode=, sbusd -g or -o)"
        )
    if is_for_all and not facts.mode & stat.S_IWOTH:
        return Finding("socket", CheckResult.WARN, f"{what}: other users may not connect", "set SocketMode=0666, or start sbusd with -o")
    return Finding("socket", CheckResult.OK, what)


def _judge_owner(facts: SocketFacts) -> Finding:
    """Judge whether the owner of the socket is trustworthy: the owner can read what is sent to it."""
    if facts.uid in (0, os.geteuid()):
        return Finding("owner", CheckResult.OK, "root" if facts.uid == 0 else "this user")
    reason = f"user {user_name(facts.uid)} created this socket, and can read all messages sent to it"
    return Finding("owner", CheckResult.WARN, reason, "check that the bus is supposed to run as this user")


def _judge_folder(facts: SocketFacts) -> Finding:
    """Judge whether another user can replace the socket."""
    if facts.folder_mode & stat.S_IWOTH and not facts.folder_mode & stat.S_ISVTX:
        return Finding("directory", CheckResult.WARN, "every user can replace the socket", "remove write permission for others from it")
    if facts.folder_uid not in (0, os.geteuid()):
        reason = f"user {user_name(facts.folder_uid)} owns the directory, and can replace the socket"
        return Finding("directory", CheckResult.WARN, reason, "use a directory that root or this user owns")
    return Finding("directory", CheckResult.OK, "only root and this user can replace the socket")


def _gather(path: str) -> SocketFacts:
    """Return the facts about the socket at *path*. Raises OSError as stat(2) does."""
    found = os.stat(path)
    folder = os.stat(os.path.dirname(os.path.abspath(path)))
    return SocketFacts(found.st_mode, found.st_uid, os.access(path, os.W_OK), folder.st_mode, folder.st_uid)


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
    with settings.connect(CHECK_SECONDS) as bus:
        peer = _peer(bus)
        try:
            features = bus.control(controls.FEATURES).decode("utf-8", "replace").split()
            stats = ask(bus, controls.STATS)
        except Disconnected as error:
            if error.fault is not None:
                raise  # such as a service that fails to start
            return BusResponse(None, {}, peer, error_text(error))
        except SbusError as error:
            return BusResponse(None, {}, peer, error_text(error))
    return BusResponse(features, stats, peer)


def judge_response(answer: BusResponse, unit: BusUnit | None) -> list[Finding]:
    """Return the findings for *answer* of the bus of *unit*; None: no unit has its address."""
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
    return [reached, spoken, _judge_version(text(answer.stats, "version")), *_judge_faults(answer.stats, unit), *_judge_kept(answer.stats)]


def unreachable(error: Exception, address: str) -> list[Finding]:
    """Return the finding for a bus at *address* that cannot be reached."""
    unit = named_unit(address)
    if isinstance(error, NoBus) and error.reason.startswith(f"{ErrorCode.EDQUOT.name} "):
        # The user may not be able to read the journal, and no command of sbusctl can connect.
        processes = "list the connected processes of this user, and end some: ss -xpH | grep 'u_seq.*users:'"
        advice = f"{processes}; root sees the largest holders: {_records('quota-refused', unit)}"
        return [Finding("connection", CheckResult.FAIL, error_text(error), advice)]
    advice = f"see: {unit.systemctl} status {unit.name}" if unit else "start the bus, or use another address"
    return [Finding("connection", CheckResult.FAIL, error_text(error), advice)]


def _records(event: str, unit: BusUnit | None) -> str:
    """Return where the bus of *unit* has logged *event*."""
    if unit is None:
        return f"the log of the bus, or its standard error, event {event}"
    user = " --user" if unit.is_user else ""
    return f"journalctl{user} --unit={unit.name} SBUS_EVENT={event}"


def status_faults(status: str, unit: BusUnit) -> list[Finding]:
    """Return the finding for the faults in the *status* of the service *unit*, for a user that the bus refuses because of them."""
    _, found, names = status.partition("configuration faults: ")
    if not found:
        return []
    reason = f"the bus runs with faults in its configuration, and denies access because of them: {names}"
    return [Finding("faults", CheckResult.FAIL, reason, f"list the faults: {list_faults(unit)}")]


def open_connections(answer: BusResponse) -> int | None:
    """Return the number of connections, None if the bus does not report it to this user."""
    return integer(mapping(answer.stats, "counters"), "connections")


def _judge_faults(stats: JsonObject, unit: BusUnit | None) -> list[Finding]:
    """Judge the configuration that the bus has applied, if it reports that to this user. The bus may not be able to read files that
    root can."""
    faults = integer(mapping(stats, "control"), "configuration_faults")
    if faults is None:
        return []
    if not faults:
        return [Finding("faults", CheckResult.OK, "the bus applied all of its configuration")]
    reason = f"the bus rejected parts of its configuration, and denies access to the affected keys; faults: {faults}"
    return [Finding("faults", CheckResult.FAIL, reason, f"list the faults: {_records('configuration-fault', unit)}")]


def _judge_kept(stats: JsonObject) -> list[Finding]:
    """Return a finding if a restart of the bus may close connections, as far as it reports that to this user."""
    missing = integer(mapping(stats, "control"), "connections_missing")
    if not missing:
        return []
    reason = f"connections that could not be stored for the next process, and that a restart would close: {missing}"
    advice = "raise LimitNOFILE= of every bus of the same user above twice the sum of their connections, then restart this one"
    return [Finding("restart", CheckResult.WARN, reason, advice)]


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
