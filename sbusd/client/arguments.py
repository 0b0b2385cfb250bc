"""Checks of the arguments that a program connects with, so that a mistake is reported where it is made."""

from __future__ import annotations

from typing import NoReturn, TypeVar

L = TypeVar("L")


def check_timeout(timeout: object) -> None:
    """Check a number of seconds, or None for no limit.

    Raises:
        TypeError: it is neither.
        ValueError: it is negative, or not a number.
    """
    if timeout is None:
        return
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        raise TypeError(f"timeout must be a number of seconds or None, not {type(timeout).__name__}")
    if not timeout >= 0:
        raise ValueError(f"invalid timeout {timeout}: must be 0 or more seconds, or None for no limit")


def check_connection(timeout: object, separator: object) -> None:
    """Check two arguments of ``connect``. Raises TypeError, ValueError."""
    check_timeout(timeout)
    if not isinstance(separator, bytes):
        raise TypeError(f"separator must be bytes, such as b'/', not {type(separator).__name__}")


def made_link(link: object, kind: type[L], name: str) -> L:
    """Return *link*, which the class *name* is made with. Raises TypeError if a program has called the class itself."""
    if not isinstance(link, kind):
        raise TypeError(f"use {name}.connect() instead of {name}()")
    return link


class WithBlock:
    """A bus that is used with ``with``; ``async with`` raises an error that says so."""

    def __aenter__(self) -> NoReturn:
        """Raise TypeError."""
        raise TypeError("a Bus does not work with 'async with': use 'with Bus.connect(...)' or 'async with AsyncBus.connect(...)'")

    def __aexit__(self, *_error: object) -> NoReturn:
        """Do as ``__aenter__``; without this method Python does not look for that."""
        self.__aenter__()


class AsyncWithBlock:
    """A bus that is used with ``async with``; ``with`` raises an error that says so."""

    def __enter__(self) -> NoReturn:
        """Raise TypeError."""
        raise TypeError("an AsyncBus does not work with 'with': use 'async with AsyncBus.connect(...)' or 'with Bus.connect(...)'")

    def __exit__(self, *_error: object) -> NoReturn:
        """Do as ``__enter__``; without this method Python does not look for that."""
        self.__enter__()
