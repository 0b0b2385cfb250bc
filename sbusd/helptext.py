"""Help texts of the programs, the same with every typer: as it is written here, and with what an argument may be in the usage line.

typer before 0.16, which Debian 13 has, escapes brackets for rich also where rich does not show the text: ``\\[required]``. Versions differ
in the usage line too: of ``pub KEY [PAYLOAD]`` one leaves out the brackets of a metavar, and another puts braces around the first.
"""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup

_MANY = -1
"""``nargs`` of an argument that can be given any number of times, as click has it."""


class PlainCommand(TyperCommand):
    """A command with such a help text."""

    # The types of contexts and formatters moved from click into typer; Any holds for both.
    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the words of the usage line behind the command's name."""
        arguments = [each for each in self.get_params(ctx) if each.param_type_name == "argument"]
        return ["[OPTIONS]", *(_usage(each) for each in arguments)]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help text into *formatter*."""
        super().format_help(ctx, formatter)
        _unescape(formatter)


class PlainGroup(TyperGroup):
    """A group of commands with such a help text."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help text into *formatter*."""
        super().format_help(ctx, formatter)
        _unescape(formatter)


def _usage(argument: Any) -> str:
    """Return *argument* as a usage line shows it: ``KEY``, ``[PAYLOAD]``, ``PATTERN...`` or ``[ARG]...``."""
    name = argument.metavar or (argument.name or "").upper()
    return f"{name if argument.required else f'[{name}]'}{'...' if argument.nargs == _MANY else ''}"


def _unescape(formatter: Any) -> None:
    """Take away what escapes brackets in the text of *formatter*."""
    formatter.buffer = [text.replace("\\[", "[") for text in formatter.buffer]
