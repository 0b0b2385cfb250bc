"""The errors that the switch sends itself, as packets that the broker has prepared. Spec: sbus-protocol(7) §8."""

from __future__ import annotations

from sbus.protocol.errors import ErrorCode
from sbusd.dataplane.contract import End, Refusal

SWITCH_ERRORS: dict[Refusal, tuple[ErrorCode, str]] = {
    Refusal.RESERVED: (ErrorCode.EPERM, "clients can publish to no key that begins with !/ but complete private keys and addresses"),
    Refusal.KEY_TOO_LONG: (ErrorCode.EMSGSIZE, "the key is longer than the maximum of this bus"),
    Refusal.TRUNCATED: (ErrorCode.EMSGSIZE, "the packet is longer than 409600 bytes"),
    Refusal.POLICY: (ErrorCode.EPERM, "a rule of this bus denies publishing to this key"),
    Refusal.NO_DESCRIPTOR: (ErrorCode.EMFILE, "the bus has no file descriptor left for another connection"),
    Refusal.QUEUE_FULL: (ErrorCode.ENOBUFS, "a packet did not fit into the queue or the socket of this connection, whose mode is error"),
    Refusal.DESCRIPTORS: (ErrorCode.EPROTO, "the packet carries file descriptors, which this bus does not accept"),
    Refusal.FRAME: (ErrorCode.EPROTO, "the stream has a frame whose length is not 1 to 409600 bytes, or ends within a frame"),
}
"""The errors that the switch sends itself."""

END_ERRORS: dict[End, tuple[ErrorCode, str]] = {
    End.QUEUE_FULL: SWITCH_ERRORS[Refusal.QUEUE_FULL],
    End.DESCRIPTORS: SWITCH_ERRORS[Refusal.DESCRIPTORS],
    End.FRAME: SWITCH_ERRORS[Refusal.FRAME],
}
"""Those with which the switch ends a connection."""
