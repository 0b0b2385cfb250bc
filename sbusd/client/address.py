"""Which bus a program means: the rules for addresses that all clients share. Spec: sbusctl(1), "ADDRESS"."""

from __future__ import annotations

import os
from typing import Literal

from sbusd.client.errors import NoBus

Scope = Literal["system", "user"]

SYSTEM_ADDRESS = "/run/sbus.socket"
"""Where ``sbus.socket`` of the system listens."""

ADDRESS_VARIABLE = "SBUS_ADDRESS"
"""The environment's choice, weaker than an argument."""


def bus_address(address: str | None = None, *, scope: Scope | None = None) -> str:
    """Return the address to connect to: *address*, else the bus of *scope*, else ``$SBUS_ADDRESS``, else the system's.

    An empty ``$SBUS_ADDRESS`` counts as unset. Whether the address is well formed shows at connect.

    Raises:
        NoBus: the user's bus is meant, and ``$XDG_RUNTIME_DIR`` is not set or not an absolute path.
    """
    if address is not None:
        return address
    if scope == "user":
        return _user_address()
    if scope == "system":
        return SYSTEM_ADDRESS
    return os.environ.get(ADDRESS_VARIABLE) or SYSTEM_ADDRESS


def _user_address() -> str:
    """Return the address of the calling user's own bus."""
    folder = os.environ.get("XDG_RUNTIME_DIR", "")
    if not folder.startswith("/"):
        why = "is not set" if not folder else "is not an absolute path"
        raise NoBus("the user's bus", f"$XDG_RUNTIME_DIR {why}; log in through systemd-logind, or give an address")
    return os.path.join(folder, "sbus.socket")
