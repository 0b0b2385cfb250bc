"""Modules that most programs do not use: they are imported at their first use, because they take longer to import than the rest.

A program that runs for a long time may use them after its package was replaced, and would get them from another version. So an
``AsyncBus``, and a ``Bus`` with ``reconnect`` or ``background``, import all of them with their first connection. Any other ``Bus``
does not: most programs with one end soon, and would take a fifth longer to start.
"""

from __future__ import annotations

from importlib import import_module
from typing import Literal

BOTH = ("logging", "shlex", "subprocess", "sbusd.client.exit_statuses", "sbusd.client.rpc.handlers", "sbusd.client.rpc.service")
"""For records and errors, for the state of the unit of the bus, and for services."""

STYLES = {
    "sync": ("sbusd.client.sync.last_values", "sbusd.client.sync.server", "sbusd.client.sync.store"),
    "asyncio": ("sbusd.client.asyncio.last_values", "sbusd.client.asyncio.server", "sbusd.client.asyncio.store"),
}
"""Those of ``Bus`` and of ``AsyncBus``."""


def import_late_modules(style: Literal["sync", "asyncio"]) -> None:
    """Import the modules of one style."""
    for name in BOTH + STYLES[style]:
        import_module(name)
