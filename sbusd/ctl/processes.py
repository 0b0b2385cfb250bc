"""Names for the numbers that the bus knows of a process: its user, its command."""

from __future__ import annotations

import pwd
from functools import cache
from pathlib import Path

from sbusd.ctl.quantities import NOTHING


@cache
def user_name(uid: int | None) -> str:
    """Return the name of user *uid*, the number where it has none, ``-`` for None."""
    if uid is None:
        return NOTHING
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return str(uid)


def command_name(pid: int | None) -> str:
    """Return the name of the process that has the number *pid* now, ``-`` if there is none or it may not be read.

    It is what the process calls itself: a hint for people, never a proof. Source: proc(5), ``/proc/PID/comm``.
    """
    if pid is None or pid <= 0:
        return NOTHING
    try:
        return Path(f"/proc/{pid}/comm").read_text("utf-8", "replace").removesuffix("\n")
    except OSError:
        return NOTHING
