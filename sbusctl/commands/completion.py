"""``sbusctl completion``: prints the script that completes command lines of sbusctl in a shell."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer

from sbusctl import completion
from sbusctl.output import flush, write_bytes
from sbusctl.settings import forbid_bus, forbid_json

_FILES = {"bash": "sbusctl", "zsh": "_sbusctl", "fish": "sbusctl.fish"}
"""The scripts, by shell; packages install them under these names."""


class ShellName(enum.Enum):
    """A shell that can complete command lines of sbusctl."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion_command(
    context: typer.Context,
    shell: Annotated[ShellName, typer.Argument(metavar="SHELL", help="The word bash, zsh or fish.", show_default=False)],
) -> None:
    """Print the completion script for a shell."""
    forbid_json(context, "completion")
    forbid_bus(context, "completion")
    write_bytes(Path(str(completion.__file__)).with_name(_FILES[shell.value]).read_bytes())
    flush()
