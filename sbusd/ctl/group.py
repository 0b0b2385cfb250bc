"""The group of commands. It imports only the command that is called."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand

from sbusd.ctl.errors import exit_on_error
from sbusd.ctl.output import JsonStyle
from sbusd.ctl.settings import JSON_OPTION
from sbusd.helptext import PlainCommand, PlainGroup, UsageError

SECTIONS = {
    "Message": {
        "pub": "Publish a message, and wait until the bus has routed it.",
        "sub": "Subscribe to patterns, and print each message.",
        "blob": "Get a blob by its ticket, or list and drop blobs of this user.",
    },
    "Service": {
        "call": "Call a service, and print its response.",
        "serve": "Serve a command by running a program for each call.",
        "members": "List the subscribers that would receive a message with a key.",
    },
    "Inspection": {
        "monitor": "Print all traffic on the bus as it happens.",
        "presence": "Print connects, disconnects, subscriptions and unsubscriptions.",
        "connections": "List connections and their counters.",
        "top": "Show rates, queues and losses by connection or user.",
        "stats": "Print the counters of the bus.",
    },
    "Diagnostic": {
        "trace": "Show for each connection whether it would receive a message, and why.",
        "explain": "Show whether a user may publish or subscribe, and why.",
        "doctor": "Check the installation, and suggest fixes.",
    },
    "Measurement": {
        "ping": "Measure the round-trip time to the bus.",
        "bench": "Measure throughput, latency and losses.",
    },
    "Recording": {
        "record": "Record the traffic of the bus into an archive.",
        "replay": "Publish the messages of an archive again.",
        "report": "Write an HTML page with charts of the recorded traffic.",
    },
    "Other": {
        "relay": "Show the state of calls between hosts.",
        "link": "Show the state of the link to other hosts.",
        "store": "Show and change what sbus-store has stored.",
        "whoami": "Print the caller's identity, as the kernel reports it.",
        "version": "Print the versions of sbusctl and of the bus.",
        "completion": "Print the completion script for a shell.",
    },
}
"""The commands by section, in the order of the manual, with the first sentence of their help."""

COMMANDS = {name: summary for section in SECTIONS.values() for name, summary in section.items()}
"""All commands."""

_MODULES = {
    "connections": "counters",
    "explain": "routing",
    "members": "routing",
    "ping": "bus",
    "presence": "monitor",
    "record": "recording",
    "replay": "recording",
    "stats": "counters",
    "trace": "routing",
    "version": "bus",
    "whoami": "bus",
}
"""The modules of those commands that are not in a module of their own name."""


_COMMANDS_OF_OTHERS = {
    "consumer": "store",
    "info": "stats",
    "kv": "store",
    "listen": "sub",
    "psubscribe": "sub",
    "publish": "pub",
    "queue": "store",
    "reply": "serve",
    "request": "call",
    "services": "members",
    "stream": "store",
    "subscribe": "sub",
}
"""Commands of the programs of NATS, Redis and MQTT, and those that do the same here."""


class CommandGroup(PlainGroup):
    """The commands; errors are printed in one line."""

    # Any, because the types of contexts moved from click to typer.
    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        """Return the names of all commands."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> TyperCommand | None:
        """Return the command *cmd_name*, or None. For an unknown one all are loaded, so that typer can suggest similar names."""
        if cmd_name not in COMMANDS:
            for name in COMMANDS:
                self.get_command(ctx, name)
            return None
        command = _load(cmd_name)
        command.params.extend(parameter for parameter in self.params if (parameter.name or "").startswith("_"))
        self.commands[cmd_name] = command
        return command

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the name and the command in *args*, and the rest of them. Raises UsageError for an unknown command."""
        if args and args[0] in [style.value for style in JsonStyle]:
            raise UsageError(f"unknown command {args[0]!r}; write the style of JSON as {JSON_OPTION}={args[0]}", ctx)
        if args and args[0] in _COMMANDS_OF_OTHERS:
            raise UsageError(f"unknown command {args[0]!r}; use 'sbusctl {_COMMANDS_OF_OTHERS[args[0]]}'", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        """Write the list of commands into *formatter* without importing them."""
        width = max(map(len, COMMANDS))
        for title, commands in SECTIONS.items():
            with formatter.section(f"{title} Commands"):
                formatter.write_dl([(name.ljust(width), summary) for name, summary in commands.items()])

    def invoke(self, ctx: Any) -> Any:
        """Run the command. Raises what :func:`exit_on_error` raises."""
        with exit_on_error():
            return super().invoke(ctx)


def module_of(name: str) -> str:
    """Return the name of the module that has the command *name*."""
    return f"sbusd.ctl.commands.{_MODULES.get(name, name)}"


def command_function(name: str) -> Callable[..., object]:
    """Return the function of the command *name*, ``<name>_command`` in its module."""
    function: Callable[..., object] = getattr(import_module(module_of(name)), f"{name}_command")
    return function


def _load(name: str) -> TyperCommand:
    """Return the command *name* for typer."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None, context_settings=CONTEXT)
    app.command(name, cls=PlainCommand)(command_function(name))
    command = typer.main.get_command(app)
    if not isinstance(command, TyperCommand):
        raise TypeError(f"{name}_command does not make a command")
    return command


CONTEXT = {"help_option_names": ["-h", "--help"]}
"""Also ``-h``, as in busctl."""
