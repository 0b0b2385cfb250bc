"""What a client wishes for its own connection alone, and the switch does by itself from then on. Spec: sbus-protocol(7) §6."""

from __future__ import annotations

from sbusd.daemon.contract import Switch
from sbusd.daemon.modes import MODE_KEYS, note_mode, set_mode
from sbusd.daemon.roster import Client
from sbusd.protocol import controls
from sbusd.protocol.errors import ErrorCode, ProtocolError
from sbusd.protocol.packets import Control

MAX_TOKEN_BYTES = 128
"""Longest token of a receipt: two UUIDs in text and as much again; the bus keeps one for each connection."""

_ECHO = {controls.ECHO_ON: True, controls.ECHO_OFF: False}
_SENDERS = {controls.SENDER_ON: True, controls.SENDER_OFF: False}
_BATCHES = {controls.BATCH_ON: True, controls.BATCH_OFF: False}
_PACES = {controls.PACE_ON: True, controls.PACE_OFF: False}
_RECEIPTS = {controls.RECEIPT_ALWAYS: True, controls.RECEIPT_UNDELIVERABLE: False}


LASTING = MODE_KEYS | _ECHO.keys() | _SENDERS.keys() | _BATCHES.keys() | _PACES.keys()
"""Wishes that hold until the client wishes otherwise, whatever happens to the process of the bus."""


def grant(switch: Switch, connection: int, packet: Control) -> bool:
    """Do what *packet* wishes, and return True; or return False if it is no such wish.

    Raises:
        ProtocolError: EINVAL, the token of a receipt is longer than :data:`MAX_TOKEN_BYTES`, or has a NUL.
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
    elif key in MODE_KEYS:
        set_mode(switch, connection, key)
    else:
        return False
    return True


def note(client: Client, key: bytes) -> None:
    """Remember what the wish *key* has changed for good, to tell it."""
    if key in _SENDERS:
        client.wants_senders = _SENDERS[key]
    elif key in _BATCHES:
        client.wants_batches = _BATCHES[key]
    elif key in MODE_KEYS:
        note_mode(client, key)


def _token(payload: bytes) -> bytes:
    """Return the token of a receipt."""
    if len(payload) > MAX_TOKEN_BYTES or b"\0" in payload:
        raise ProtocolError(ErrorCode.EINVAL, f"the token of a receipt is at most {MAX_TOKEN_BYTES} bytes without NUL")
    return payload
