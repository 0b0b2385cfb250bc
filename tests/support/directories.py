"""A directory service for tests that does not answer, as LDAP whose server is down."""

from __future__ import annotations

from pathlib import Path

from tests.support.c_programs import compile_program

_SOURCE = Path(__file__).with_name("slow_directory.c")


def slow_directory(folder: Path, slow: Path) -> dict[str, str]:
    """Return the environment in which no program gets an answer about users, groups and hosts while the file *slow* exists.

    The library for it goes into *folder*.
    """
    command = ("gcc", "-Wall", "-Wextra", "-Werror", "-O1", "-fPIC", "-shared", "-ldl")
    library = compile_program([_SOURCE], folder / "slow_directory.so", command)
    return {"LD_PRELOAD": str(library), "SLOW_DIRECTORY": str(slow)}
