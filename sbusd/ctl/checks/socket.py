"""Checks that the socket exists, and that the right users can connect to it or replace it."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass

from sbusd.client.errors import systemctl
from sbusd.ctl.checks import CheckResult, Finding
from sbusd.ctl.processes import user_name
from sbusd.protocol.addresses import InheritedDescriptor, RandomAbstract, parse_address
from sbusd.protocol.errors import BadAddressError


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
    return judge(facts, is_for_all=is_for_all)


def _start(address: str) -> str:
    """Return the advice if *address* has no socket."""
    return f"start the bus ({systemctl(address)} enable --now sbus.socket), or use another address"


def judge(facts: SocketFacts, *, is_for_all: bool) -> list[Finding]:
    """Return the findings for *facts*."""
    if not stat.S_ISSOCK(facts.mode):
        return [Finding("socket", CheckResult.FAIL, "the file at this path is not a socket", "remove it, and start the bus")]
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
