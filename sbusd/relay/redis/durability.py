"""Whether Redis keeps a confirmed message through a crash: ``appendonly yes`` and ``appendfsync always``. Spec: sbus-relay(8)."""

from __future__ import annotations

from collections.abc import Mapping

_NEEDED = {"appendonly": "yes", "appendfsync": "always"}

QUESTION = ("CONFIG GET", *_NEEDED)
"""The command, with its name as redis-py has it, whose result :func:`durability_problem` takes. A restricted user may not send it."""


def durability_problem(settings: Mapping[str, str]) -> str:
    """Return what must be changed so that a crash loses no confirmed message; empty if nothing.

    *settings* is the result of ``QUESTION``. A missing setting counts as wrong.
    """
    wrong = {name: settings.get(name, "unknown") for name, value in _NEEDED.items() if settings.get(name) != value}
    return ", ".join(f"{name} is {value}, set it to {_NEEDED[name]}" for name, value in wrong.items())
