"""The user of a service: root checks a configuration as this user, because the service cannot read all that root can.

Source: systemctl(1), ``show``; systemd.exec(5), ``User=``. The directories that a unit hides, such as with ``ProtectHome=``, are not known.
"""

from __future__ import annotations

import grp
import os
import pwd
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

SYSTEM_FOLDER = Path("/etc/sbus")
"""The configuration of the services of the machine. Other files belong to services that the caller starts."""

CHECKS_FOR_ITSELF = "SBUSD_CHECKS_FOR_ITSELF"
"""Environment variable of a check that a running bus makes before its restart: that bus may run as root, without its unit."""

_BOOTED = Path("/run/systemd/system")
_COMMAND_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class ServiceUser:
    """The user and the groups of a service."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]


def user_of(unit: str, main_file: Path, booted: Path = _BOOTED) -> ServiceUser | None:
    """Return the user of the service *unit* of the machine, which reads *main_file*.

    None: this process is not root, the file is not one of the machine's, or the unit is not installed, runs as root, or is not known.
    """
    if os.geteuid() or main_file.parent != SYSTEM_FOLDER or CHECKS_FOR_ITSELF in os.environ or not booted.is_dir():
        return None
    command = ["systemctl", "show", "--property=LoadState,User,Group,SupplementaryGroups", unit]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_COMMAND_SECONDS, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    return parse_user(dict(line.partition("=")[::2] for line in done.stdout.splitlines()))


def parse_user(shown: dict[str, str]) -> ServiceUser | None:
    """Return the user in the properties of a unit, None if there is none, or it is root or does not exist."""
    name = shown.get("User", "")
    if shown.get("LoadState") != "loaded" or name in ("", "root", "0"):
        return None
    try:
        account = pwd.getpwuid(int(name)) if name.isdecimal() else pwd.getpwnam(name)
        gid = _gid(shown["Group"]) if shown.get("Group") else account.pw_gid
        more = [_gid(group) for group in shown.get("SupplementaryGroups", "").split()]
    except KeyError:
        return None
    return ServiceUser(account.pw_name, account.pw_uid, gid, tuple({gid, *os.getgrouplist(account.pw_name, gid), *more}))


@contextmanager
def acting_as_user_of(unit: str, main_file: Path) -> Iterator[str]:
    """Read files as the user of the service *unit* in the block, and yield the name of that user; empty: this process is as it was.

    It applies to all threads. See :func:`user_of`.
    """
    user = user_of(unit, main_file)
    if user is None:
        yield ""
        return
    groups, gid = os.getgroups(), os.getegid()
    os.setgroups(user.groups)
    os.setegid(user.gid)
    os.seteuid(user.uid)
    try:
        yield user.name
    finally:
        os.seteuid(0)
        os.setegid(gid)
        os.setgroups(groups)


def valid(user: str) -> str:
    """Return what ``--check`` prints for a valid configuration that was read as *user*, or as the caller if that is empty."""
    return f"configuration is valid for the user {user}" if user else "configuration is valid"


def _gid(group: str) -> int:
    """Return the id of *group*. Raises KeyError."""
    return grp.getgrgid(int(group)).gr_gid if group.isdecimal() else grp.getgrnam(group).gr_gid
