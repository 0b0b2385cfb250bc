"""Checks of the functions that a program serves with, when it declares them. Spec: sbus-python(3), ``Bus.service``."""

from __future__ import annotations

import inspect

from sbus.arguments import check_type
from sbus.rpc.caller_access import Allow, Twins


class InvalidResultError(TypeError):
    """A handler returns what cannot be sent; callers get these words, which say nothing but its type."""


def check_service(command: object, allow: object, twins: object) -> None:
    """Check the arguments of the decorator ``service``. Raises TypeError, also if the decorator is used without a command."""
    if not isinstance(command, str):
        found = "a function: write @bus.service('command')" if callable(command) else type(command).__name__
        raise TypeError(f"command must be str, not {found}")
    if allow is not None:
        check_type(allow, Allow, "allow", "an Allow, such as Allow(users=('root',))")
    if twins is not None:
        check_type(twins, Twins, "twins", "a Twins, such as Twins(numbers=(7,))")


def check_handler(command: str, handler: object) -> None:
    """Check that *handler* can be called with a request. Raises TypeError."""
    if not callable(handler):
        raise TypeError(f"the handler of {command!r} must be a function, not {type(handler).__name__}")
    try:
        signature = inspect.signature(handler)
    except (TypeError, ValueError):
        return  # a callable of C without a signature
    try:
        signature.bind(None)
    except TypeError as error:
        raise TypeError(f"the handler of {command!r} is called with one argument, the request: {error}") from None
