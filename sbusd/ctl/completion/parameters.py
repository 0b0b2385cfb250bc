"""The parameters of commands, as completion needs them: read from the annotations, because the parameters of typer are slow to make."""

from __future__ import annotations

import enum
import types
import typing
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple, get_args, get_origin

import typer
from typer.models import ArgumentInfo, OptionInfo


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
