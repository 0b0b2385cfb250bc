"""The programs that commands run for others: found before anything is taken or served."""

from __future__ import annotations

import shutil

import typer


def find_program(name: str, hint: str) -> str:
    """Return the path of the program *name*, a path or a name in PATH. Raises BadParameter about the parameter *hint*."""
    found = shutil.which(name)
    if found is None:
        raise typer.BadParameter(f"no executable program {name!r}", param_hint=hint)
    return found
