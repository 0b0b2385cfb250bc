"""The group of commands: imports only the one that is called, and turns every expected failure into one line and a status."""

from __future__ import annotations

import signal
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand

from sbusd.ctl.output import OutputClosedError, complain, words_of
from sbusd.ctl.statuses import status_of
from sbusd.helptext import PlainCommand, PlainGroup
from sbusd.protocol.errors import SbusError

COMMANDS = (
    "whoami",
    "pub",
    "sub",
    "call",
    "serve",
    "members",
    "presence",
    "monitor",
    "ping",
    "bench",
    "connections",
    "top",
    "stats",
    "trace",
    "explain",
    "record",
    "replay",
    "report",
    "relay",
    "doctor",
    "version",
)
"""All commands, as the manual orders them; each is the function ``command`` of the module of that name."""

INTERRUPTED = 128 + signal.SIGINT
"""Status after Ctrl-C, as a shell would report it."""

OUTPUT_CLOSED = 128 + signal.SIGPIPE
"""Status when the reader of standard output has gone, as a shell would report it of a program that SIGPIPE ends."""


class CommandGroup(PlainGroup):
    """The commands, and the boundary behind which no traceback passes."""

    # The types of contexts moved from click into typer; Any holds for both.
    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        """Return the names of all commands."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> TyperCommand | None:
        """Return the command called *cmd_name*, or None; an unknown one loads all, so that typer can suggest one of them."""
        if cmd_name not in COMMANDS:
            for name in COMMANDS:
                self.get_command(ctx, name)
            return None
        command = _load(cmd_name)
        command.params.extend(parameter for parameter in self.params if (parameter.name or "").startswith("_"))
        self.commands[cmd_name] = command
        return command

    def invoke(self, ctx: Any) -> Any:
        """Run the command.

        Raises:
            typer.Exit: with 130 after Ctrl-C; 141 when standard output's reader has gone; after any error of the bus, of its files or
                of the system, and one line on standard error, what :func:`~sbusd.ctl.statuses.status_of` says.
        """
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        except OutputClosedError:
            raise typer.Exit(OUTPUT_CLOSED) from None
        except (SbusError, OSError) as error:
            complain(words_of(error))
            raise typer.Exit(status_of(error)) from None


def _load(name: str) -> TyperCommand:
    """Return the command *name*, from its own module."""
    module = import_module(f"sbusd.ctl.commands.{name}")
    app = typer.Typer(add_completion=False, rich_markup_mode=None, context_settings=CONTEXT)
    app.command(name, cls=PlainCommand)(module.command)
    command = typer.main.get_command(app)
    if not isinstance(command, TyperCommand):
        raise TypeError(f"sbusd.ctl.commands.{name}.command does not make a command")
    return command


CONTEXT = {"help_option_names": ["-h", "--help"]}
"""busctl's ``-h`` too."""
