"""Memberships in queue groups: the name of a group, and how a pattern of a member is stored. No I/O. Spec: sbus-protocol(7) §6.

A stored pattern is one of SUB, or that of a membership: the pattern, NUL, and the name of the group. A pattern has no NUL, so each stored
pattern is one or the other.
"""

from __future__ import annotations

from sbus.protocol.controls import GROUP_JOIN, GROUP_LEAVE
from sbus.protocol.errors import ErrorCode, ProtocolError
from sbus.protocol.packets import control_packet, subscribe_packet, unsubscribe_packet
from sbus.protocol.printable import printable

MAX_GROUP_BYTES = 64
"""Longest name of a group."""

SERVICE_GROUP = "rpc"
"""The group of services: of all services of one user with the same command, one runs each call. Spec: sbus-rpc(7) §1."""


def stored_pattern(pattern: bytes, group: bytes) -> bytes:
    """Return the stored pattern of a member of *group*, or of no group if that is empty."""
    return pattern + b"\0" + group if group else pattern


def split_stored(stored: bytes) -> tuple[bytes, bytes]:
    """Return the pattern and the group of a stored pattern; the group is empty if it is one of SUB."""
    pattern, _, group = stored.partition(b"\0")
    return pattern, group


def check_group(group: bytes) -> None:
    """Raise ProtocolError (EINVAL) unless *group* is a valid name: 1 to 64 bytes of printable UTF-8 without ``/``."""
    try:
        is_valid = 0 < len(group) <= MAX_GROUP_BYTES and group.decode().isprintable() and b"/" not in group
    except UnicodeDecodeError:
        is_valid = False
    if not is_valid:
        raise ProtocolError(ErrorCode.EINVAL, f"the name of a group must be 1 to {MAX_GROUP_BYTES} bytes of printable UTF-8 without /")


def parse_membership(payload: bytes) -> bytes:
    """Return the stored pattern in *payload*, that of ``group/join`` or ``group/leave``: ``<group> NUL <pattern>``.

    Raises:
        ProtocolError: EINVAL if the payload is malformed.
    """
    group, nul, pattern = payload.partition(b"\0")
    if not nul or b"\0" in pattern:
        raise ProtocolError(ErrorCode.EINVAL, "the payload must be <group> NUL <pattern>")
    check_group(group)
    return stored_pattern(pattern, group)


def subscription_packet(stored: bytes) -> bytes:
    """Return the packet that stores a pattern: SUB or ``group/join``."""
    pattern, group = split_stored(stored)
    return control_packet(GROUP_JOIN, group + b"\0" + pattern) if group else subscribe_packet(pattern)


def unsubscription_packet(stored: bytes) -> bytes:
    """Return the packet that removes one instance of a stored pattern: UNSUB or ``group/leave``."""
    pattern, group = split_stored(stored)
    return control_packet(GROUP_LEAVE, group + b"\0" + pattern) if group else unsubscribe_packet(pattern)


def subscription_words(stored: bytes) -> str:
    """Return how errors name the subscription of a stored pattern."""
    pattern, group = split_stored(stored)
    words = f"the subscription {printable(pattern)}"
    return f"{words} in the group {printable(group)}" if group else words
