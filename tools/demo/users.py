"""The two users of the demonstration, which are created for it and removed afterwards."""

from __future__ import annotations

import pwd
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

MARK = "sbusd demonstration"
"""The comment in passwd(5) that identifies a user left over from a killed run."""


@dataclass(frozen=True, slots=True)
class DemoUser:
    """A user who is not root."""

    name: str
    uid: int
    gid: int


RAW_IDS = {"sbus-demo-a": 61_011, "sbus-demo-b": 61_012}
"""User ids for a machine that cannot create users; the kernel accepts any number."""


@contextmanager
def two_users() -> Iterator[tuple[DemoUser, DemoUser]]:
    """Create two system users, and remove them in the end; if useradd(8) is missing or fails, use plain numbers."""
    with ExitStack() as cleanup:
        first, second = (_make_user(name, cleanup) for name in RAW_IDS)
        yield first, second


def _make_user(name: str, cleanup: ExitStack) -> DemoUser:
    """Create the user *name*; *cleanup* removes it."""
    if _find(name) is None and shutil.which("useradd"):
        command = ["useradd", "--system", "--user-group", "--no-create-home", "--shell", "/usr/sbin/nologin", "--comment", MARK, name]
        subprocess.run(command, capture_output=True, check=False)
    entry = _find(name)
    if entry is None or entry.pw_gecos != MARK:
        return DemoUser(f"uid {RAW_IDS[name]}", RAW_IDS[name], RAW_IDS[name])
    cleanup.callback(_remove, name)
    return DemoUser(name, entry.pw_uid, entry.pw_gid)


def _find(name: str) -> pwd.struct_passwd | None:
    """Return the entry of the user *name*, if it exists."""
    try:
        return pwd.getpwnam(name)
    except KeyError:
        return None


def _remove(name: str) -> None:
    """Remove the user *name*; report a failure, because the user must then be removed manually."""
    done = subprocess.run(["userdel", name], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"cannot remove user {name}: {done.stderr.strip()}; remove it with: userdel {name}")
