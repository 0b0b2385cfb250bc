"""Settings that a client requests for its own connection, and that the switch applies. Spec: sbus-protocol(7) §6."""

from __future__ import annotations

from sbusd.broker.roster import Client
from sbusd.dataplane.contract import HardMode, SoftMode, Switch
from sbusd.dataplane.modes import MODES
from sbusd.protocol import controls
from sbusd.protocol.errors import ErrorCode, ProtocolError
from sbusd.protocol.packets import Control

MAX_TOKEN_BYTES = 128
"""Maximum length of a receipt token: two UUIDs as text, twice over. The bus keeps one token for each connection."""

_ECHO = {controls.ECHO_ON: True, controls.ECHO_OFF: False}
_SENDERS = {controls.SENDER_ON: True, controls.SENDER_OFF: False}
_BATCHES = {controls.BATCH_ON: True, controls.BATCH_OFF: False}
_PACES = {controls.PACE_ON: True, controls.PACE_OFF: False}
_RECEIPTS = {controls.RECEIPT_ALWAYS: True, controls.RECEIPT_UNDELIVERABLE: False}


LASTING = MODES.keys() | _ECHO.keys() | _SENDERS.keys() | _BATCHES.keys() | _PACES.keys()
"""Control messages for settings that hold until the client changes them, and that a restart preserves."""


def grant(switch: Switch, connection: int, packet: Control) -> bool:
    """Apply the setting in *packet* and return True, or return False if the packet is not a setting.

    Raises:
        ProtocolError: EINVAL, the token of a receipt is longer than :data:`MAX_TOKEN_BYTES`, or contains a NUL.
    """
    key = packet.key
    if key in _ECHO:
        switch.set_echo(connection, _ECHO[key])
    elif key in _RECEIPTS:
        switch.arm_receipt(connection, _token(packet.payload or b""), always=_RECEIPTS[key])
    elif key in _SENDERS:
        switch.set_sender(connection, _SENDERS[key])
    elif key in _BATCHES:
        switch.set_batch(connection, _BATCHES[key])
    elif key in _PACES:
        switch.set_pace(connection, _PACES[key])
    elif key in MODES:
        _set_mode(switch, connection, key)
    else:
        return False
    return True


def note(client: Client, key: bytes) -> None:
    """Store a setting that *key* has changed permanently, for later replies."""
    if key in _SENDERS:
        client.wants_senders = _SENDERS[key]
    elif key in _BATCHES:
        client.wants_batches = _BATCHES[key]
    elif key in MODES:
        _note_mode(client, key)


def _token(payload: bytes) -> bytes:
    """Return the receipt token. Raises ProtocolError (EINVAL)."""
    if len(payload) > MAX_TOKEN_BYTES or b"\0" in payload:
        raise ProtocolError(ErrorCode.EINVAL, f"the token of a receipt must have at most {MAX_TOKEN_BYTES} bytes and no NUL")
    return payload


def _set_mode(switch: Switch, connection: int, key: bytes) -> None:
    """Set the mode that the control message *key*, one of :data:`MODES`, selects."""
    mode = MODES[key]
    if isinstance(mode, SoftMode):
        switch.set_soft(connection, mode)
    elif isinstance(mode, HardMode):
        switch.set_hard(connection, mode)
    else:
        switch.set_order(connection, mode)


def _note_mode(client: Client, key: bytes) -> None:
    """Store the mode that the control message *key*, one of :data:`MODES`, selects, for later replies."""
    mode = MODES[key]
    name = mode.name.lower()
    if isinstance(mode, SoftMode):
        client.soft = name
    elif isinstance(mode, HardMode):
        client.hard = name
    else:
        client.order = name
