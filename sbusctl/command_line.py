"""A fast parser for simple command lines, without typer.

The parameters of typer need pydantic from typer 0.29 on, whose import takes longer than that of typer. This parser reads the same
declarations from the signature of a command, and accepts only command lines that are certainly valid. For all others, from ``--help`` to an
invalid number, it returns None, and typer parses them. tests/property/test_command_lines.py compares the two parsers.
"""

from __future__ import annotations

import enum
import re
import types
from collections.abc import Callable, Container, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

import typer
from typer.models import ArgumentInfo, OptionInfo

from sbus_programs.helptext import UsageError, may_be_empty
from sbusctl.group import ACTIONS, COMMANDS, command_function
from sbusctl.settings import common_options

_INTEGER = re.compile(r"[0-9]{1,15}")
_FLOAT = re.compile(r"[0-9]{1,15}(\.[0-9]{1,15})?")


class Call(NamedTuple):
    """A parsed command line."""

    name: str
    """The name of the command, and that of its action after a space if it has one."""
    run: Callable[[], object]


class _Unsupported(Exception):  # noqa: N818 - not an error: typer parses instead
    """This parser does not support the command line."""


class _Context:
    """The part of typer.Context that commands and callbacks use."""

    def __init__(self) -> None:
        self.obj: object = None
        self.resilient_parsing = False

    def find_root(self) -> _Context:
        """Return this context: there are no others."""
        return self


class _Parameter(NamedTuple):
    """One parameter of a command."""

    name: str
    opts: list[str]
    """Names of an option; empty for an argument. Callbacks use it."""
    kind: Any
    """bool, str, int, float, list[str], or an Enum."""
    info: Any
    is_required: bool


class _Declared(NamedTuple):
    """The parameters of a command."""

    options: dict[str, _Parameter]
    """By each of their names."""
    arguments: list[_Parameter]


def read_call(arguments: Sequence[str]) -> Call | None:
    """Return the call for *arguments*, a command line without the program name, or None if typer must parse it."""
    context = _Context()
    try:
        common = _declared(common_options)
        name, rest = _leave_common(context, common, COMMANDS, list(arguments))
        if name in ACTIONS:
            action, rest = _leave_common(context, common, ACTIONS[name], rest)
            name = f"{name} {action}"
        command = command_function(name)
        values = _read(context, _declared(command), common, rest)
    except (_Unsupported, UsageError):
        # Callbacks have changed only the settings of this context, so typer can parse the line again.
        return None
    return Call(name, lambda: command(context, **values))


def _leave_common(context: _Context, common: _Declared, names: Container[str], rest: list[str]) -> tuple[str, list[str]]:
    """Apply the options before the name of a command or an action, one of *names*; return the name and the rest."""
    given: list[tuple[_Parameter, Any]] = []
    while rest and rest[0].startswith("-"):
        given.append(_option(common.options, rest))
    _apply(context, given)
    if not rest or rest[0] not in names:
        raise _Unsupported
    return rest[0], rest[1:]


def _read(context: _Context, declared: _Declared, common: _Declared, rest: list[str]) -> dict[str, Any]:
    """Return the values for a command by parameter name, and apply the global options."""
    options = {**common.options, **declared.options}
    given: list[tuple[_Parameter, Any]] = []
    words: list[str] = []
    while rest:
        if rest[0] == "--":
            words += rest[1:]
            break
        if len(rest[0]) > 1 and rest[0].startswith("-"):
            given.append(_option(options, rest))
        else:
            words.append(rest.pop(0))
    own = [each for each in given if each[0].info.expose_value]
    _apply(context, [each for each in given if not each[0].info.expose_value])
    values = {parameter.name: value for parameter, value in own}
    if len(values) < len(own) or any(each.is_required and each.name not in values for each in declared.options.values()):
        raise _Unsupported
    return {**values, **_fill(declared.arguments, words)}


def _option(options: dict[str, _Parameter], rest: list[str]) -> tuple[_Parameter, Any]:
    """Remove one option with its value from the front of *rest*."""
    word = rest.pop(0)
    name, equals, value = word.partition("=")
    parameter = options.get(name)
    if parameter is None or (equals and (parameter.kind is bool or not name.startswith("--"))):
        raise _Unsupported
    if getattr(parameter.info, "is_eager", False):  # such as --version, which ends the program
        raise _Unsupported
    if parameter.kind is bool:
        return parameter, True
    if not equals:
        if not rest or rest[0].startswith("-"):
            raise _Unsupported
        value = rest.pop(0)
    return parameter, _converted(parameter, value)


def _fill(parameters: Iterable[_Parameter], words: list[str]) -> dict[str, Any]:
    """Return the values of the arguments."""
    values: dict[str, Any] = {}
    for parameter in parameters:
        if words and parameter.kind == list[str]:
            values[parameter.name] = [_converted(parameter, word) for word in words]
            words = []
        elif words:
            values[parameter.name] = _converted(parameter, words[0])
            words = words[1:]
        elif parameter.is_required or parameter.kind == list[str]:
            raise _Unsupported
    if words:
        raise _Unsupported
    return values


def _apply(context: _Context, given: list[tuple[_Parameter, Any]]) -> None:
    """Call the callbacks of options in the given order; typer decides if an option is repeated."""
    if len({parameter.name for parameter, _ in given}) < len(given):
        raise _Unsupported
    for parameter, value in given:
        callback = parameter.info.callback
        if "parameter" in callback.__annotations__:
            callback(context, parameter, value)
        else:
            callback(context, value)


def _converted(parameter: _Parameter, word: str) -> Any:
    """Return the value of *word*. Raises _Unsupported unless it is certainly valid."""
    kind, info = parameter.kind, parameter.info
    if kind is Path:
        raise _Unsupported  # typer checks the file
    if not word and not may_be_empty(info.metavar, is_option=isinstance(info, OptionInfo), is_repeatable=kind == list[str]):
        raise _Unsupported
    if kind in (str, list[str]):
        return _text(word)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        if word not in [each.value for each in kind]:
            raise _Unsupported
        return kind(word)
    if not (_INTEGER if kind is int else _FLOAT).fullmatch(word):
        raise _Unsupported
    number = kind(word)
    if (info.min is not None and number < info.min) or (info.max is not None and number > info.max):
        raise _Unsupported
    return number


def _text(word: str) -> str:
    """Return *word*. Raises _Unsupported if it contains bytes that are not text."""
    try:
        word.encode()
    except UnicodeEncodeError:
        raise _Unsupported from None
    return word


def _declared(command: Callable[..., object]) -> _Declared:
    """Return the parameters of *command*. Raises _Unsupported if one has an unknown type."""
    found = _Declared({}, [])
    defaults = getattr(command, "__kwdefaults__", None) or {}
    for name, hint in get_type_hints(command, include_extras=True).items():
        if name == "return" or hint is typer.Context:
            continue
        parameter = _parameter(name, hint, is_required=name not in defaults)
        if isinstance(parameter.info, ArgumentInfo):
            if found.arguments and found.arguments[-1].kind == list[str]:
                raise _Unsupported
            found.arguments.append(parameter)
        else:
            found.options.update(dict.fromkeys(parameter.opts, parameter))
    return found


def _parameter(name: str, hint: Any, *, is_required: bool) -> _Parameter:
    """Return one parameter from its annotation. Raises _Unsupported if it has an unknown type."""
    kind, info = _annotated(hint)
    known = kind in (str, int, float, Path) or (isinstance(kind, type) and issubclass(kind, enum.Enum))
    names: list[str] = []
    if isinstance(info, ArgumentInfo):
        is_plain = known or kind == list[str]
    else:
        # In an annotation, the first name has the place of the default.
        names = [each for each in (info.default, *(info.param_decls or ())) if isinstance(each, str)]
        is_plain = (known or kind is bool) and bool(names) and all(each.startswith("-") and "/" not in each for each in names)
    # Newer versions of typer do not have click_type.
    if not is_plain or info.envvar or info.parser or getattr(info, "click_type", None) or (info.callback is None) != info.expose_value:
        raise _Unsupported
    return _Parameter(name, names, kind, info, is_required)


def _annotated(hint: Any) -> tuple[Any, ArgumentInfo | OptionInfo]:
    """Return the type in an annotation, without None, and the declaration of the parameter."""
    if get_origin(hint) is not Annotated:
        raise _Unsupported
    kind, info, *_ = get_args(hint)
    if isinstance(kind, types.UnionType):
        kinds = [each for each in get_args(kind) if each is not types.NoneType]
        kind = kinds[0] if len(kinds) == 1 else None
    if not isinstance(info, ArgumentInfo | OptionInfo):
        raise _Unsupported
    return kind, info
