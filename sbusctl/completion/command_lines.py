"""What an incomplete command line expects next: a command, an option, or a value of some kind."""

from __future__ import annotations

import enum
import types
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple, get_args, get_origin

import typer
from typer.models import ArgumentInfo, OptionInfo

from sbus_programs.helptext import UsageError
from sbusctl.group import ACTIONS, COMMANDS, command_function
from sbusctl.settings import JSON_OPTION, Settings, common_options, settings_of


class Parameter(NamedTuple):
    """One parameter of a command."""

    name: str
    opts: tuple[str, ...]
    """Names of an option; empty for an argument."""
    takes_value: bool
    repeats: bool
    metavar: str
    choices: tuple[str, ...]
    """All values, if there are few."""
    summary: str
    info: ArgumentInfo | OptionInfo


def parameters_of(command: Callable[..., object]) -> list[Parameter]:
    """Return the parameters of the function *command*, in its order."""
    hints = typing.get_type_hints(command, include_extras=True)
    return [_parameter(name, hint) for name, hint in hints.items() if name != "return" and hint is not typer.Context]


def _parameter(name: str, hint: Any) -> Parameter:
    """Return the parameter *name* with the annotation *hint*. Raises TypeError if it is not declared for typer."""
    if get_origin(hint) is not Annotated:
        raise TypeError(f"the parameter {name} is not annotated")
    kind, info, *_ = get_args(hint)
    if not isinstance(info, ArgumentInfo | OptionInfo):
        raise TypeError(f"the parameter {name} is neither an option nor an argument")
    kind, repeats = _value_type(kind)
    opts: tuple[str, ...] = ()
    if isinstance(info, OptionInfo):
        # In an annotation, the first name has the place of the default.
        opts = tuple(each for each in (info.default, *(info.param_decls or ())) if isinstance(each, str) and each.startswith("-"))
        opts = opts or (f"--{name.strip('_').replace('_', '-')}",)
    choices = tuple(str(each.value) for each in kind) if isinstance(kind, type) and issubclass(kind, enum.Enum) else ()
    return Parameter(name, opts, kind is not bool, repeats, info.metavar or "", choices, info.help or "", info)


def _value_type(kind: Any) -> tuple[Any, bool]:
    """Return the type of one value, and whether there can be several."""
    if isinstance(kind, types.UnionType):
        kind = next(each for each in get_args(kind) if each is not types.NoneType)
    return (get_args(kind)[0], True) if get_origin(kind) is list else (kind, False)


class ValueKind(enum.Enum):
    """A kind of value."""

    NOTHING = "nothing"
    FILE = "file"
    KEY = "key"
    PATTERN = "pattern"
    SERVICE = "service"
    USER = "user"
    GROUP = "group"
    STREAM = "stream"
    QUEUE = "queue"


_KINDS = {
    **dict.fromkeys(("ADDRESS", "ARCHIVE", "ARG", "DIR", "FILE", "PROGRAM", "REDIS"), ValueKind.FILE),
    "COMMAND": ValueKind.SERVICE,
    "GROUP": ValueKind.GROUP,
    "KEY": ValueKind.KEY,
    "PATTERN": ValueKind.PATTERN,
    "QUEUE": ValueKind.QUEUE,
    "STREAM": ValueKind.STREAM,
    "USER": ValueKind.USER,
}
"""The kind of a value by the metavariable of its parameter."""


@dataclass(slots=True)
class Expected:
    """What can be the last word."""

    kind: ValueKind = ValueKind.NOTHING
    words: list[tuple[str, str]] = field(default_factory=list)
    """Words with their descriptions, which can be empty."""
    prefix: str = ""
    """What precedes a value of *kind* in the word: ``--option=``."""
    is_argument: bool = True
    """Whether a value that begins with a hyphen would be an option."""
    settings: Settings = field(default_factory=Settings)
    """The global options."""


class _Context:
    """The part of typer.Context that the callbacks of global options use."""

    def __init__(self) -> None:
        self.obj: object = None
        self.resilient_parsing = False

    def find_root(self) -> _Context:
        """Return this context."""
        return self


class _Line:
    """The words before the last one, read up to now."""

    def __init__(self) -> None:
        self.common = parameters_of(common_options)
        self.own: list[Parameter] = []
        self.command = ""
        """The command; with an action, both with a space between them."""
        self.arguments: list[str] = []
        self.given: set[str] = set()
        """The options that were read."""
        self.waiting: Parameter | None = None
        """The option whose value is the next word."""
        self.only_arguments = False
        self.context = _Context()

    def read(self, word: str) -> None:
        """Read one word."""
        if self.waiting is not None:
            self._apply(self.waiting, word)
            self.waiting = None
        elif self.only_arguments or word == "-" or not word.startswith("-"):
            self._read_argument(word)
        elif word == "--":
            self.only_arguments = True
        else:
            self._read_option(word)

    def option(self, name: str) -> Parameter | None:
        """Return the option *name*."""
        return next((each for each in (*self.common, *self.own) if name in each.opts), None)

    def argument(self) -> Parameter | None:
        """Return the parameter of the next argument."""
        declared = [each for each in self.own if not each.opts]
        if len(self.arguments) < len(declared):
            return declared[len(self.arguments)]
        return declared[-1] if declared and declared[-1].repeats else None

    def _read_argument(self, word: str) -> None:
        if self.command and self.command not in ACTIONS:
            self.arguments.append(word)
            return
        is_known = word in (ACTIONS[self.command] if self.command else COMMANDS)
        self.command = f"{self.command} {word}".lstrip()
        if is_known and self.command not in ACTIONS:
            self.own = parameters_of(command_function(self.command))

    def _read_option(self, word: str) -> None:
        name, equals, value = word.partition("=")
        option = self.option(name)
        if option is None:
            return
        self.given.update(option.opts)
        if option.takes_value and not equals and name != JSON_OPTION:
            self.waiting = option
        else:
            self._apply(option, value)

    def _apply(self, option: Parameter, word: str) -> None:
        """Apply a global option, if it selects a bus."""
        callback = option.info.callback
        if option not in self.common or callback is None or "parameter" not in callback.__annotations__:
            return
        try:
            callback(self.context, option, word if option.takes_value else True)
        except UsageError:
            # The command itself will report it.
            return


def expected_after(words: Sequence[str], last: str) -> Expected:
    """Return what can be the last word of a command line, which begins with *last*, after *words*, without the program name."""
    line = _Line()
    for word in words:
        line.read(word)
    found = _expected(line, last)
    found.settings = settings_of(line.context)  # type: ignore[arg-type]  # it uses only this part of typer.Context
    return found


def _expected(line: _Line, last: str) -> Expected:
    """Return what *line* expects."""
    if line.waiting is not None:
        return _value_of(line.waiting, line, is_argument=False)
    if last.startswith("-") and not line.only_arguments:
        name, equals, _ = last.partition("=")
        if not equals:
            return Expected(words=_option_names(line))
        option = line.option(name)
        found = Expected() if option is None or not option.takes_value else _value_of(option, line, is_argument=False)
        found.prefix = f"{name}="
        return found
    if not line.command:
        return Expected(words=list(COMMANDS.items()))
    if line.command in ACTIONS:
        return Expected(words=list(ACTIONS[line.command].items()))
    parameter = line.argument()
    return Expected() if parameter is None else _value_of(parameter, line, is_argument=not line.only_arguments)


def _option_names(line: _Line) -> list[tuple[str, str]]:
    """Return the long names of options, with their descriptions, and short names of those that have no other."""
    found = []
    for each in (*line.own, *line.common):
        names = [name for name in each.opts if name.startswith("--")] or list(each.opts)
        found += [(name, each.summary) for name in names]
    return [*found, ("--help", "Print the options.")]


def _value_of(parameter: Parameter, line: _Line, *, is_argument: bool) -> Expected:
    """Return what can be the value of *parameter*."""
    choices = parameter.choices
    if callable(completer := getattr(parameter.info, "autocompletion", None)):
        choices = tuple(completer(""))
    elif parameter.metavar.islower():
        # The word itself.
        choices = (parameter.metavar,)
    kind = _KINDS.get(parameter.metavar, ValueKind.NOTHING)
    if line.command == "explain" and kind is ValueKind.KEY and line.arguments[1:2] == ["subscribe"]:
        kind = ValueKind.PATTERN
    if line.command == "store work" and kind is ValueKind.SERVICE:
        kind = ValueKind.FILE  # a program
    if line.command.startswith("store ") and parameter.metavar == "NAME" and not parameter.opts:
        kind = ValueKind.QUEUE if "--queue" in line.given else ValueKind.STREAM
    return Expected(kind, [(each, "") for each in choices], is_argument=is_argument)
