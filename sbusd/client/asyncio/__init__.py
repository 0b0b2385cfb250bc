"""The client for asyncio: :class:`~sbusd.client.asyncio.bus.AsyncBus`. ``sbusd.client.sync`` has the same modules for blocking programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

C = TypeVar("C", bound=type)


def documented_by(blocking: type) -> Callable[[C], C]:
    """Return a decorator that gives each public method of a class the docstring of *blocking*'s method of the same name."""

    def document(face: C) -> C:
        for name, member in vars(face).items():
            if not name.startswith("_"):
                described = getattr(member, "__func__", member)  # the function in a classmethod, or the function or property itself
                described.__doc__ = getattr(blocking, name).__doc__
        return face

    return document
