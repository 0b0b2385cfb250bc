"""A directory service for tests that does not answer, as LDAP whose server is down."""

from __future__ import annotations

import subprocess
from pathlib import Path

_SOURCE = Path(__file__).with_name("slow_directory.c")


def slow_directory(folder: Path, slow: Path) -> dict[str, str]:
    """Return the environment in which no program gets an answer about users, groups and hosts while the file *slow* exists.

    The library for it goes into *folder*.
    """
    library = folder / "slow_directory.so"
    command = ["gcc", "-Wall", "-Wextra", "-Werror", "-O1", "-fPIC", "-shared", "-o", str(library), str(_SOURCE), "-ldl"]
    subprocess.run(command, check=True, timeout=60)
    return {"LD_PRELOAD": str(library), "SLOW_DIRECTORY": str(slow)}
