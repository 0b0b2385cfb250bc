"""Checks of the arguments of public functions, so that a mistake is reported where it is made, before anything is sent."""

from __future__ import annotations

from typing import NoReturn, TypeVar

L = TypeVar("L")

LONGEST_SECONDS = 1e9
"""A longer wait, of 31 years, has no limit: the numbers of system calls, and of the interpreter's locks, end somewhere above."""

LONGEST_TERM = 1e15
"""The largest number of seconds in a request, for durations and for times since 1970."""

LARGEST_COUNT = (1 << 53) - 1
"""The largest integer that every reader of JSON has."""


def time_limit(timeout: float | None, name: str = "timeout") -> float | None:
    """Return the seconds to wait for at most, or None for no limit: also of infinity.

    Raises:
        TypeError: it is neither a number nor None.
        ValueError: it is negative, or not a number.
    """
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        raise TypeError(f"{name} must be a number of seconds or None, not {type(timeout).__name__}")
    if not timeout >= 0:
        raise ValueError(f"invalid {name} {timeout}: must be 0 or more seconds, or None for no limit")
    return None if timeout > LONGEST_SECONDS else float(timeout)


def check_seconds(seconds: object, name: str, most: float = LONGEST_TERM, least: float = 0) -> None:
    """Check a number of seconds that is sent. Raises TypeError; ValueError if it is not *least* to *most*."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise TypeError(f"{name} must be a number of seconds, not {type(seconds).__name__}")
    if not least <= seconds <= most:
        range_words = f"{least:g} to {most:.0f}" if most < LONGEST_TERM else f"{least:g} to {most:g}"
        raise ValueError(f"invalid {name} {_shown(seconds)}: must be {range_words} seconds")


def check_count(count: object, name: str, least: int = 0, most: int = LARGEST_COUNT) -> None:
    """Check an integer. Raises TypeError; ValueError if it is not *least* to *most*."""
    if isinstance(count, bool) or not isinstance(count, int):
        raise TypeError(f"{name} must be int, not {type(count).__name__}")
    if not least <= count <= most:
        words = f"at least {least}" if count < least and most == LARGEST_COUNT else f"{least} to {most}"
        raise ValueError(f"invalid {name} {_shown(count)}: must be {words}")


def check_type(value: object, kinds: type | tuple[type, ...], name: str, words: str) -> None:
    """Raise TypeError unless *value*, the argument *name*, is of one of *kinds*, which are *words* for people."""
    if not isinstance(value, kinds):
        raise TypeError(f"{name} must be {words}, not {type(value).__name__}")


def check_callable(function: object, name: str) -> None:
    """Raise TypeError unless *function*, the argument *name*, can be called or is None."""
    if function is not None and not callable(function):
        raise TypeError(f"{name} must be a function or None, not {type(function).__name__}")


def check_connection(timeout: float | None, separator: object) -> float | None:
    """Check arguments of ``connect``, and return the time limit. Raises TypeError, ValueError."""
    check_type(separator, bytes, "separator", "bytes, such as b'/'")
    if separator not in {b"/", b"."}:
        raise ValueError(f"invalid separator {separator!r}: must be that of the bus, b'/' or b'.'")
    return time_limit(timeout)


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


def _shown(number: float) -> str:
    """Return a number for an error: Python does not write very long integers."""
    is_long = isinstance(number, int) and abs(number) > LARGEST_COUNT
    return "of more than 53 bits" if is_long else str(number)
