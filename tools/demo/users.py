"""The two users of the demonstration: made for it, removed after it."""

from __future__ import annotations

import pwd
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

MARK = "sbusd demonstration"
"""The comment in passwd(5) by which a user left over from a killed run is known to be ours."""


@dataclass(frozen=True, slots=True)
class Person:
    """A user who is not root."""

    name: str
    uid: int
    gid: int


RAW_IDS = {"sbus-demo-a": 61_011, "sbus-demo-b": 61_012}
"""Ids for a machine on which no user can be added; the kernel needs no more than a number."""


@contextmanager
def two_people() -> Iterator[tuple[Person, Person]]:
    """Make two system users, and remove them in the end; without useradd(8), or where it fails, use plain numbers."""
    with ExitStack() as cleanup:
        first, second = (_person(name, cleanup) for name in RAW_IDS)
        yield first, second


def _person(name: str, cleanup: ExitStack) -> Person:
    """Return the user *name*, made now; *cleanup* removes it."""
    if _find(name) is None and shutil.which("useradd"):
        command = ["useradd", "--system", "--user-group", "--no-create-home", "--shell", "/usr/sbin/nologin", "--comment", MARK, name]
        subprocess.run(command, capture_output=True, check=False)
    entry = _find(name)
    if entry is None or entry.pw_gecos != MARK:
        return Person(f"uid {RAW_IDS[name]}", RAW_IDS[name], RAW_IDS[name])
    cleanup.callback(_remove, name)
    return Person(name, entry.pw_uid, entry.pw_gid)


def _find(name: str) -> pwd.struct_passwd | None:
    """Return the entry of the user *name*, if there is one."""
    try:
        return pwd.getpwnam(name)
    except KeyError:
        return None


def _remove(name: str) -> None:
    """Remove the user *name*, and say so when that fails: somebody would have to do it by hand."""
    done = subprocess.run(["userdel", name], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"cannot remove user {name}: {done.stderr.strip()}; remove it with: userdel {name}")
