"""Help texts and usage errors of the programs, independent of the version of typer.

Versions of typer differ in the usage line, in types and ranges, and in error texts. typer before 0.16 (Debian 13) also escapes brackets for
rich where rich does not print the text: ``\\[required]``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import SequenceMatcher
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperCommand, TyperGroup

from sbus.protocol import __version__
from sbus_programs.exhaustion import exhausted
from sbus_programs.standard_error import fail, write_errors
from sbus_programs.standard_output import exit_unwritten, require_open

_MANY = -1
"""The ``nargs`` of a repeatable argument in click."""

UsageError: Any = typer.BadParameter.__base__
"""The exception of click, which newer versions of typer define themselves. Raise it for options that exclude each other."""

_NOTES = re.compile(r"  \\?\[([^\]]*)\]$")
"""Default, range and ``required`` at the end of the help of a parameter."""

_OPTIONAL = re.compile(r" (\[=[A-Z]+\])")

_RANGE = re.compile(r"(?P<least>[\d.]+)<=x<=(?P<most>[\d.]+)")


def _print_version(context: typer.Context, value: bool) -> None:
    """Print name and version of the program, and exit."""
    if value and not context.resilient_parsing:
        typer.echo(f"{context.find_root().info_name} {__version__}")
        raise typer.Exit


VersionOption = Annotated[
    bool, typer.Option("--version", callback=_print_version, expose_value=False, is_eager=True, help="Print the version and exit.")
]
"""The option of every program that prints its version; its parameter is ``_version``."""

CheckOption = Annotated[bool, typer.Option("--check", help="Check the configuration and exit.")]


AddressOption = Annotated[str | None, typer.Option("--address", metavar="ADDRESS", help="Connect to the bus at this address.")]
SystemOption = Annotated[bool, typer.Option("--system", help="Connect to the system bus.")]
UserOption = Annotated[bool, typer.Option("--user", help="Connect to the calling user's bus.")]


def scope_of(address: str | None, *, system: bool, user: bool) -> Literal["system", "user"] | None:
    """Return the bus that these options name, None for the default or an *address*. Raises BadParameter if they name two."""
    if (address is not None) + system + user > 1:
        raise typer.BadParameter("--address, --system and --user are mutually exclusive")
    return "system" if system else "user" if user else None


def program_app(words: str, program: str) -> typer.Typer:
    """Return the application of *program*, whose help begins with *words*."""
    return typer.Typer(help=words, epilog=f"See {program}(8).", add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


def config_option(file_name: str) -> Any:
    """Return the option that names another configuration file than *file_name* of /etc/sbus."""
    return typer.Option("--config", "-C", metavar="FILE", help=f"Configuration file (default: /etc/sbus/{file_name}).")


_MAY_BE_EMPTY = frozenset(("ARG", "DATA", "KEY", "PATTERN", "PAYLOAD"))
"""Metavariables of arguments whose empty value has a meaning, such as the pattern that matches every key."""


def may_be_empty(metavar: str | None, *, is_option: bool, is_repeatable: bool) -> bool:
    """Return whether the empty text is a value of the parameter with *metavar*.

    It is not one of an option: the program could not tell it from an omitted option, and it is often an unset variable of a shell. One of
    several patterns can be the empty one. The words after a program to run are arguments of that program.
    """
    if is_option:
        return is_repeatable and metavar == "PATTERN"
    return metavar in _MAY_BE_EMPTY or (is_repeatable and metavar == "COMMAND")


def _refuse_empty_values(context: Any, arguments: list[str]) -> None:
    """Raise UsageError if a value in *arguments* is empty, and its parameter has no meaning for that.

    They are parsed again, because conversions hide it: the empty path becomes the working directory. Few command lines can have one.
    """
    if not any(word == "" or word.endswith("=") for word in arguments):
        return
    values, _, _ = context.command.make_parser(context).parse_args(arguments)
    for each in context.command.get_params(context):
        given = values.get(each.name)
        is_option = each.param_type_name == "option"
        is_repeatable = getattr(each, "multiple", False) or each.nargs == _MANY
        is_allowed = may_be_empty(each.metavar, is_option=is_option, is_repeatable=is_repeatable)
        if "" in (given if isinstance(given, list | tuple) else (given,)) and not is_allowed:
            raise typer.BadParameter("must not be empty", context, each)


_PLAIN_NUMBERS = {int: re.compile(r"-?[0-9]+"), float: re.compile(r"-?[0-9]+(\.[0-9]+)?")}
"""How numbers are written. Python reads more: ``+5``, ``1_000``, a number with spaces, ``1e3``, and the digits of other scripts."""


def _refuse_other_numbers(context: Any, arguments: list[str]) -> None:
    """Raise UsageError if a number in *arguments*, which was read, is not written in plain digits.

    They are parsed again, because conversions hide it.
    """
    if not any(type(value) in _PLAIN_NUMBERS for value in context.params.values()):
        return
    values, _, _ = context.command.make_parser(context).parse_args(arguments)
    for each in context.command.get_params(context):
        kind, given = type(context.params.get(each.name)), values.get(each.name)
        if kind in _PLAIN_NUMBERS and isinstance(given, str) and not _PLAIN_NUMBERS[kind].fullmatch(given):
            raise typer.BadParameter(f"{given!r} is not a {'whole ' if kind is int else ''}number", context, each)


def require_only(context: typer.Context, mode: str, *used: str) -> None:
    """Raise UsageError if the command line has an option that has no effect with *mode*; it uses only the parameters *used*."""
    for each in context.command.params:
        source = context.get_parameter_source(each.name or "")
        if source is not None and source.name == "COMMANDLINE" and each.name not in used:
            raise UsageError(f"{max(each.opts, key=len)} has no effect with {mode}; omit it", context)


class _Plain:
    """The common part of commands and groups."""

    # Any, because the types of contexts and formatters moved from click to typer.
    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Parse a command line. Exits after printing an error: with status 2 for a usage error, 1 for a full disk."""
        command: Any = self
        fallback: Any = typer.Context(command, info_name=info_name, parent=parent, **command.context_settings)
        words = list(args)
        program = fallback.find_root().info_name or ""
        with _usage_errors(fallback):
            try:
                made = super().make_context(info_name, args, parent=parent, **extra)  # type: ignore[misc]
            # --help and --version print and exit, everything else only parses.
            except typer.Exit:
                require_open(program)
                raise
            except OSError as error:
                exit_unwritten(program, error)
            _refuse_empty_values(made, words)
            _refuse_other_numbers(made, words)
            return made

    def invoke(self, ctx: Any) -> Any:
        """Run the command. Exits with status 2 after printing a usage error."""
        with _usage_errors(ctx):
            return super().invoke(ctx)  # type: ignore[misc]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help text into *formatter*."""
        super().format_help(ctx, formatter)  # type: ignore[misc]
        # A value that can be omitted has a metavariable such as [=STYLE], without a space before it.
        formatter.buffer = [_OPTIONAL.sub(r"\1 ", text.replace("\\[", "[")) for text in formatter.buffer]


class PlainCommand(_Plain, TyperCommand):
    """A command with this help text."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the words of the usage line after the name of the command."""
        arguments = [each for each in self.get_params(ctx) if each.param_type_name == "argument"]
        return ["[OPTIONS]", *(_usage(each) for each in arguments)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments, options and global options into *formatter*."""
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": [], "Global Options": []}
        for each in self.get_params(ctx):
            if (record := each.get_help_record(ctx)) is None:
                continue
            if each.param_type_name == "argument":
                sections["Arguments"].append((_name(each), _NOTES.sub("", record[1])))
            else:
                is_global = (each.name or "").startswith("_") and each.name != "_version"
                title = "Global Options" if is_global else "Options"
                sections[title].append((record[0], _NOTES.sub(_notes, record[1])))
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


class PlainGroup(_Plain, TyperGroup):
    """A group of commands with this help text."""


_NO_NUMBER = re.compile(r"(?P<value>.+) is not a valid (?P<kind>integer|float)\.?")
_OUT_OF_RANGE = re.compile(r"(?P<value>\S+) is not in the range (?:(?P<least>[\d.]+)<=x<=(?P<most>[\d.]+)|x>=(?P<bound>[\d.]+))\.?")
"""The texts of click for an invalid number."""


_QUOTED_OPTION = re.compile(r"(?<=[Oo]ption )'(--?[A-Za-z][\w-]*)'")
"""The name of an option in a text of click. Values are quoted, names are not."""

_OPTIONS_OF_OTHERS = {"--queue": "--group", "--server": "--address", "-s": "--address"}
"""Options of the programs of NATS, and those that do the same here."""

_LEAST_SIMILARITY = 0.7
"""From 0 to 1. Those of click are suggested from 0.6 on, which short options with nothing in common reach."""


_TYPED_CHARACTERS = 480
"""Maximum length of an error line about typed words: six lines of a terminal, even if it quotes a long value."""


def shortened(line: str) -> str:
    """Return *line*, truncated in the middle, where a long value is quoted: the reason is at the end."""
    half = _TYPED_CHARACTERS // 2
    return line if len(line) <= _TYPED_CHARACTERS else f"{line[:half]}…{line[-half:]}"


def show_usage_error(error: Any) -> None:
    """Print the usage error *error* to standard error: the program, the problem, and how to get help."""
    error.message = _invalid_number(error) or _missing_action(error) or error.message
    if type(error).__name__ == "NoSuchOption":
        _suggest_option(error)
    if getattr(error, "param", None) is not None and not error.param_hint:
        error.param_hint = _name(error.param)
    words = error.format_message().replace("Value error, ", "").removeprefix("Invalid value: ").rstrip(".")
    words = _QUOTED_OPTION.sub(r"\1", words)
    context = error.ctx
    path = context.command_path if context else ""
    program, _, command = path.partition(" ")
    lines = [shortened(": ".join(filter(None, (program, command, words[:1].lower() + words[1:]))))]
    if type(error).__name__ == "NoSuchOption" and any(each.param_type_name == "argument" for each in context.command.params):
        lines.append("Write '--' before arguments that begin with '-'.")
    if context:
        lines += [context.get_usage(), f"Try '{path} --help' for more information."]
    write_errors("".join(f"{line}\n" for line in lines))


@contextmanager
def _usage_errors(context: Any) -> Iterator[None]:
    """Print a usage error, in its own context or else in *context*, and exit with its status; with 1 if the machine is exhausted."""
    try:
        yield
    except UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            raise
        error.ctx = error.ctx or context
        show_usage_error(error)
        raise typer.Exit(error.exit_code) from None
    except Exception as error:
        if (reason := exhausted(error)) is None:
            raise
        fail(context.find_root().info_name or "", reason)


def _suggest_option(error: Any) -> None:
    """Let *error* say which action has the option, or suggest the option that other programs call so, or else only similar names."""
    if text := _option_of_an_action(error):
        error.message, error.possibilities = text, None
        return
    known = [name for each in error.ctx.command.params for name in each.opts] if error.ctx else []
    name = error.option_name
    same = [each for each in (_OPTIONS_OF_OTHERS.get(name),) if each in known]
    similar = [each for each in error.possibilities or () if SequenceMatcher(None, name, each).ratio() >= _LEAST_SIMILARITY]
    error.possibilities = same or similar or None


def _option_of_an_action(error: Any) -> str:
    """Return which actions of the same command have the unknown option in *error*; empty if none has."""
    name, place = error.option_name, error.ctx
    for context in (place, place.parent) if place else ():
        command = context and context.command
        actions: list[str] = command.actions_with(name) if hasattr(command, "actions_with") else []
        if actions and context is place:
            return f"{name} is an option of {' and '.join(actions)}; write it after the action"
        if actions:
            return f"{name} is not an option of {place.info_name}; it is one of {' and '.join(actions)}"
    return ""


def _missing_action(error: Any) -> str:
    """Return which actions there are if *error* is about a missing one; empty for other errors."""
    command = error.ctx and error.ctx.command
    if error.message != "Missing command." or not hasattr(command, "actions_with"):
        return ""
    return f"missing action; use {', '.join(command.list_commands(error.ctx))}"


def _invalid_number(error: Any) -> str:
    """Return why the number in *error* is invalid; empty for other errors. Newer versions of typer validate with pydantic."""
    if hasattr(error.__cause__, "errors"):
        first = error.__cause__.errors()[0]
        value, kind, limits = first["input"], first["type"], first.get("ctx", {})
    elif match := _NO_NUMBER.fullmatch(error.message):
        value, kind, limits = match["value"].strip("'"), "int_" if match["kind"] == "integer" else "float_", {}
    elif match := _OUT_OF_RANGE.fullmatch(error.message):
        value, kind, limits = match["value"], "", {"ge": float(match["least"] or match["bound"])}
        if match["most"] and float(value) > float(match["most"]):
            limits = {"le": float(match["most"])}
    else:
        return ""
    if kind.startswith(("int_", "float_")) or str(value).lower() == "nan":
        return f"{value!r} is not a {'whole ' if kind.startswith('int_') else ''}number"
    for name, words in (("ge", "least"), ("le", "most")):
        if name in limits:
            return f"must be at {words} {limits[name]:.16g}, not {value}"
    return ""


def _name(parameter: Any) -> str:
    """Return the name of *parameter* in help texts and errors: the longest of an option, such as ``--count``, and else ``KEY``."""
    if parameter.param_type_name == "option":
        return str(max(parameter.opts, key=len))
    return parameter.metavar or (parameter.name or "").upper()


def _usage(argument: Any) -> str:
    """Return *argument* in a usage line: ``KEY``, ``[PAYLOAD]``, ``PATTERN...`` or ``[ARG]...``."""
    name = _name(argument)
    return f"{name if argument.required else f'[{name}]'}{'...' if argument.nargs == _MANY else ''}"


def _notes(found: re.Match[str]) -> str:
    """Return the notes on an option, with the range in words; a lower bound alone is omitted."""
    notes = [_RANGE.sub(r"\g<least> to \g<most>", each) for each in found[1].split("; ") if not re.match(r"x>=?[\d.]+$", each)]
    return f"  [{'; '.join(notes)}]" if notes else ""
