"""Settings that a client chooses for its own connection, and that the switch applies. Spec: sbus-protocol(7) §6."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sbus.protocol import controls
from sbus.protocol.errors import ErrorCode, ProtocolError
from sbus.protocol.packets import Control
from sbusd.dataplane.contract import MODES, HardMode, Order, SoftMode, Switch
from sbusd.dataplane.switch_state import ConnectionSettings

MAX_TOKEN_BYTES = 128
"""Longest token of a receipt: two UUIDs in text and as much again. The bus keeps one for each connection."""

_RECEIPTS: dict[bytes, dict[str, bool]] = {
    controls.RECEIPT_ALWAYS: {"always": True},
    controls.RECEIPT_RECIPIENTS: {"always": True, "lists": True},
    controls.RECEIPT_UNDELIVERABLE: {"always": False},
}
"""By control message: what ``arm_receipt`` is asked for."""

_MODE_FIELDS: dict[type, str] = {SoftMode: "soft", HardMode: "hard", Order: "order"}

_CHANGES: dict[bytes, tuple[str, Any]] = {
    controls.ECHO_ON: ("echo", True),
    controls.ECHO_OFF: ("echo", False),
    controls.SENDER_ON: ("sender", True),
    controls.SENDER_OFF: ("sender", False),
    controls.BATCH_ON: ("batch", True),
    controls.BATCH_OFF: ("batch", False),
    controls.PACE_ON: ("pace", True),
    controls.PACE_OFF: ("pace", False),
    **{key: (_MODE_FIELDS[type(mode)], mode) for key, mode in MODES.items()},
}
"""By control message: the field of ``ConnectionSettings`` that it changes, and the new value."""

LASTING = _CHANGES.keys()
"""Control messages whose effect lasts until the client changes it, across restarts of the bus."""


def apply(switch: Switch, connection: int, packet: Control) -> bool:
    """Apply the setting that *packet* chooses and return True, or return False if it chooses none.

    Raises:
        ProtocolError: EINVAL, the token of a receipt is longer than :data:`MAX_TOKEN_BYTES`, or has a NUL.
    """
    if packet.key in _CHANGES:
        name, value = _CHANGES[packet.key]
        switch.configure(connection, replace(switch.settings(connection), **{name: value}))
    elif packet.key in _RECEIPTS:
        switch.arm_receipt(connection, _token(packet.payload or b""), **_RECEIPTS[packet.key])
    else:
        return False
    return True


def described(settings: ConnectionSettings) -> dict[str, object]:
    """Return the members of a report about a client: those of its settings that other clients can notice."""
    return {
        "soft": SoftMode(settings.soft).name.lower(),
        "hard": HardMode(settings.hard).name.lower(),
        "order": Order(settings.order).name.lower(),
        "sender": settings.sender,
        "batch": settings.batch,
    }


def _token(payload: bytes) -> bytes:
    """Return the token of a receipt."""
    if len(payload) > MAX_TOKEN_BYTES or b"\0" in payload:
        raise ProtocolError(ErrorCode.EINVAL, f"the token of a receipt must have at most {MAX_TOKEN_BYTES} bytes and no NUL")
    return payload
