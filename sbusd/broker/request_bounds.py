"""The size of control messages: that of a client's, before anything is done with it, and that of the reply. Spec: sbus-protocol(7) §6.

No message is routed while a control message is handled, and a packet can have 400 kB: more than a hundred times what a request needs.
"""

from __future__ import annotations

from sbus.protocol import controls
from sbus.protocol.errors import ErrorCode, ProtocolError
from sbus.protocol.packets import MAX_PACKET_BYTES, Control
from sbus.protocol.vouching import MAX_LOST_PATTERNS

PAYLOAD_BYTES = 4_096
"""Part of the bound for all that is no key: a number, an action, a unit, ids of groups, the name of a group, a token."""

MAX_REPLY_BYTES = MAX_PACKET_BYTES // 2
"""Longest reply: a socket with the kernel's default buffer takes it."""

_WHOLE_PACKETS = frozenset({controls.PING, controls.BATCH})
"""Control messages whose payload may fill a packet: an echo costs one copy, and of a batch only its first fault is looked for."""

_ENVELOPES = (controls.FROM, controls.TO)
"""Prefixes of control messages with a message in them, which is not looked at."""


def payload_limit(key: bytes, key_bytes: int) -> int:
    """Return the longest payload of the control message *key* in bytes, where keys and patterns have at most *key_bytes*.

    It applies to every control message that is not named here, also to one that does not exist yet.
    """
    if key in _WHOLE_PACKETS or key.startswith(_ENVELOPES):
        return MAX_PACKET_BYTES
    if key == controls.LOST_FOR:
        return PAYLOAD_BYTES + MAX_LOST_PATTERNS * (key_bytes + 1)
    # The place in !/bus/subscriptions is a pattern in hexadecimal digits.
    return PAYLOAD_BYTES + 2 * key_bytes


def check_payload(packet: Control, key_bytes: int) -> None:
    """Raise ProtocolError (EMSGSIZE) if the payload of a control message is too long."""
    size, limit = len(packet.payload or b""), payload_limit(packet.key, key_bytes)
    if size > limit:
        raise ProtocolError(ErrorCode.EMSGSIZE, f"the payload of the control message has {size} bytes, at most {limit} are valid")


def check_key(key: bytes, key_bytes: int) -> None:
    """Raise ProtocolError (EMSGSIZE) if a key or pattern in a request is longer than *key_bytes*."""
    if len(key) > key_bytes:
        raise ProtocolError(ErrorCode.EMSGSIZE, f"the key has {len(key)} bytes, at most {key_bytes} are valid")


def check_reply(reply: bytes) -> bytes:
    """Return *reply*. Raises ProtocolError (EMSGSIZE) if it is too long: it would be discarded, and the client would wait for it."""
    if len(reply) > MAX_REPLY_BYTES:
        raise ProtocolError(ErrorCode.EMSGSIZE, f"the reply would have {len(reply)} bytes, at most {MAX_REPLY_BYTES} are possible")
    return reply
