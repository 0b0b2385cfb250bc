"""Checks of the functions that a program serves with, when it declares them. Spec: sbus-python(3), ``Bus.service``."""

from __future__ import annotations

import inspect


class InvalidResultError(TypeError):
    """A handler returns what cannot be sent; callers get these words, which say nothing but its type."""


def check_command(command: object) -> None:
    """Check the first argument of the decorator ``service``. Raises TypeError if the decorator is used without a command."""
    if not isinstance(command, str):
        found = "a function: write @bus.service('command')" if callable(command) else type(command).__name__
        raise TypeError(f"command must be str, not {found}")


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
