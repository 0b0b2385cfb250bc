"""The group of commands. It imports only the command that is called."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand

from sbus_programs.helptext import PlainCommand, PlainGroup, UsageError
from sbusctl.errors import exit_on_error
from sbusctl.output import JsonStyle
from sbusctl.settings import JSON_OPTION

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

ACTIONS = {
    "blob": {
        "get": "Write a blob to standard output, or into a file.",
        "list": "List the blobs of this user.",
        "drop": "Delete a blob of this user.",
        "stats": "Print the usage and the quotas of this user.",
    },
    "relay": {
        "status": "Show the state of calls between hosts.",
    },
    "link": {
        "status": "Show the link, and the hosts that it knows.",
        "sync": "Wait until all live hosts know the subscriptions of this host.",
        "config": "Print a configuration for a NATS server.",
    },
    "store": {
        "streams": "List streams and queues.",
        "put": "Store a message, and print its number.",
        "last": "Print the last value of each key that matches.",
        "read": "Print the messages of a stream in order.",
        "peek": "Print messages of a stream or jobs of a queue.",
        "work": "Run a program for each job of a queue.",
        "purge": "Remove messages of a stream, or dead letters of a queue.",
        "forget": "Remove all messages with some keys from a stream.",
        "revive": "Return dead letters to their queue as jobs.",
        "acknowledge": "Acknowledge gaps and damaged messages.",
    },
}
"""The actions of those commands that have some, in the order of the manual, with the first sentence of their help."""

CALLABLE = tuple(f"{name} {action}".rstrip() for name in COMMANDS for action in ACTIONS.get(name, ("",)))
"""What has options of its own: the commands without actions, and the actions after their commands, such as ``store put``."""

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


class _Group(PlainGroup):
    """A group whose commands also have the global options."""

    # Any, because the types of contexts moved from click to typer.
    def with_global_options(self, command: Any) -> Any:
        """Add the global options to *command*, note it, and return it."""
        command.params.extend(parameter for parameter in self.params if (parameter.name or "").startswith("_"))
        self.commands[command.name] = command
        return command


class ActionGroup(_Group):
    """A command with actions. Each action has options of its own, and does not have those of the others."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        """Return the names of all actions."""
        return list(ACTIONS[self.name or ""])

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the action *cmd_name*, or None. For an unknown one all are loaded, so that typer can suggest similar names."""
        for name in self.list_commands(ctx) if cmd_name not in self.list_commands(ctx) else (cmd_name,):
            self.with_global_options(_load(f"{self.name} {name}", name))
        return self.commands.get(cmd_name)

    def actions_with(self, option: str) -> list[str]:
        """Return the actions that have an option *option*."""
        commands = {name: self.get_command(None, name) for name in self.list_commands(None)}
        return [name for name, command in commands.items() if any(option in each.opts for each in command.params)]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the name and the action in *args*, and the rest of them. Raises UsageError for an unknown action."""
        if args and args[0] not in ACTIONS[self.name or ""]:
            near = get_close_matches(args[0], self.list_commands(ctx))
            more = f"did you mean {near[0]!r}?" if near else f"use {', '.join(self.list_commands(ctx))}"
            raise UsageError(f"unknown action {args[0]!r}; {more}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        """Write the list of actions into *formatter* without importing them."""
        with formatter.section("Actions"):
            formatter.write_dl(list(ACTIONS[self.name or ""].items()))


class CommandGroup(_Group):
    """The commands; errors are printed in one line."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        """Return the names of all commands."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command *cmd_name*, or None. For an unknown one all are loaded, so that typer can suggest similar names."""
        if cmd_name not in COMMANDS:
            for name in COMMANDS:
                self.get_command(ctx, name)
            return None
        if cmd_name in ACTIONS:
            usage = "ACTION [ARGUMENT]..."
            return self.with_global_options(
                ActionGroup(
                    name=cmd_name, help=COMMANDS[cmd_name], context_settings=CONTEXT, rich_markup_mode=None, subcommand_metavar=usage
                )
            )
        return self.with_global_options(_load(cmd_name, cmd_name))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the name and the command in *args*, and the rest of them. Raises UsageError for an unknown command."""
        if args and args[0] in [style.value for style in JsonStyle]:
            raise UsageError(f"unknown command {args[0]!r}; write the style of JSON as {JSON_OPTION}={args[0]}", ctx)
        if args and args[0] == "help":
            raise UsageError(f"unknown command 'help'; use 'sbusctl {' '.join((*args[1:2], '--help'))}'", ctx)
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
    return f"sbusctl.commands.{_MODULES.get(name, name)}"


def command_function(name: str) -> Callable[..., object]:
    """Return the function of *name*, one of CALLABLE: ``<command>_command`` or ``<action>_action`` in the module of the command."""
    command, _, action = name.partition(" ")
    function: Callable[..., object] = getattr(import_module(module_of(command)), f"{action}_action" if action else f"{command}_command")
    return function


def _load(name: str, shown: str) -> TyperCommand:
    """Return *name*, one of CALLABLE, as a command of typer that is called *shown*."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None, context_settings=CONTEXT)
    app.command(shown, cls=PlainCommand)(command_function(name))
    command = typer.main.get_command(app)
    if not isinstance(command, TyperCommand):
        raise TypeError(f"{name} does not make a command")
    return command


CONTEXT = {"help_option_names": ["-h", "--help"]}
"""Also ``-h``, as in busctl."""
