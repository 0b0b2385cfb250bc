"""Chooses the address of the bus, by the same rules for all clients. Spec: sbusctl(1), "ADDRESS"."""

from __future__ import annotations

import os
from typing import Literal

from sbusd.client.errors import NoBus

Scope = Literal["system", "user"]

SYSTEM_ADDRESS = "/run/sbus.socket"
"""The address of ``sbus.socket`` of the system."""

ADDRESS_VARIABLE = "SBUS_ADDRESS"
"""The environment variable with the default address; an argument takes precedence."""


def bus_address(address: str | None = None, *, scope: Scope | None = None) -> str:
    """Return the address to connect to: *address*, else the bus of *scope*, else ``$SBUS_ADDRESS``, else the system's.

    An empty ``$SBUS_ADDRESS`` counts as unset. The address is parsed at connect.

    Raises:
        NoBus: *scope* is ``user``, and ``$XDG_RUNTIME_DIR`` is not set or not an absolute path.
    """
    if address is not None:
        return address
    if scope == "user":
        return _user_address()
    if scope == "system":
        return SYSTEM_ADDRESS
    return os.environ.get(ADDRESS_VARIABLE) or SYSTEM_ADDRESS


def _user_address() -> str:
    """Return the address of the calling user's bus."""
    folder = os.environ.get("XDG_RUNTIME_DIR", "")
    if not folder.startswith("/"):
        why = "is not set" if not folder else "is not an absolute path"
        raise NoBus("the user's bus", f"$XDG_RUNTIME_DIR {why}; log in through systemd-logind, or give an address")
    return os.path.join(folder, "sbus.socket")
