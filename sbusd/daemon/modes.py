"""The control messages that choose a client's modes, and what they choose. Spec: sbus-protocol(7) §6 and §7."""

from __future__ import annotations

from sbusd.daemon.contract import HardMode, Order, SoftMode, Switch
from sbusd.daemon.roster import Client

_MODES: dict[bytes, SoftMode | HardMode | Order] = {
    **{b"blocking/soft/" + mode.name.lower().encode(): mode for mode in SoftMode},
    **{b"blocking/hard/" + mode.name.lower().encode(): mode for mode in HardMode},
    **{b"order/" + order.name.lower().encode(): order for order in Order},
}

MODE_KEYS = frozenset(_MODES)
"""Every control message that chooses a mode."""


def set_mode(switch: Switch, connection: int, key: bytes) -> None:
    """Do to *connection* what the control message *key*, one of :data:`MODE_KEYS`, says."""
    mode = _MODES[key]
    if isinstance(mode, SoftMode):
        switch.set_soft(connection, mode)
    elif isinstance(mode, HardMode):
        switch.set_hard(connection, mode)
    else:
        switch.set_order(connection, mode)


def note_mode(client: Client, key: bytes) -> None:
    """Remember the mode that the control message *key*, one of :data:`MODE_KEYS`, has chosen, to tell it."""
    mode = _MODES[key]
    name = mode.name.lower()
    if isinstance(mode, SoftMode):
        client.soft = name
    elif isinstance(mode, HardMode):
        client.hard = name
    else:
        client.order = name
