"""Modules that most programs do not use: they are imported at their first use, because they take longer to import than the rest.

A program that runs for a long time may use them after its package was replaced, and would get them from another version. So an
``AsyncBus``, and a ``Bus`` with ``reconnect`` or ``background``, import all of them with their first connection. Any other ``Bus``
does not: most programs with one end soon, and would take a fifth longer to start.
"""

from __future__ import annotations

from importlib import import_module
from typing import Literal

BOTH = ("logging", "shlex", "subprocess", "sbus.exit_statuses", "sbus.rpc.handlers", "sbus.rpc.service")
"""For records and errors, for the state of the unit of the bus, and for services."""

STYLES = {
    "sync": ("sbus.sync.last_values", "sbus.sync.server", "sbus.sync.store"),
    "asyncio": ("sbus.asyncio.last_values", "sbus.asyncio.server", "sbus.asyncio.store"),
}
"""Those of ``Bus`` and of ``AsyncBus``."""


def import_late_modules(style: Literal["sync", "asyncio"]) -> None:
    """Import the modules of one style."""
    for name in BOTH + STYLES[style]:
        import_module(name)
