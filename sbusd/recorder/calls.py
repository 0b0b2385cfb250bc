"""Calls in the traffic: what is a request, what a reply, and the number that joins them. Spec: sbus-rpc(7).

The number is the first 64 bits of a BLAKE2b over the host, its boot, and the digest of the caller's connection, the key that the
answer goes to, and the call's ``uid``: what a request and its reply have in common and no other call has. The relay tells the digest
with each attempt. Among a thousand million calls two have the same number with odds of 1 to 37; among a million, 1 to 37 million.

Nobody can join their message to another's call: a request counts for the connection that the bus says sent it, and a reply for the
connection that its key belongs to.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from sbusd.archive.record.kinds import Role
from sbusd.protocol.envelope import RELAY_HEAD, RELAYED_HEAD, SERVICE_HEAD, call_digest, parse_envelope
from sbusd.protocol.errors import ProtocolError
from sbusd.protocol.keys import ADDRESS_HEAD

_REQUEST = re.compile(rb"(?:rpc/|relayed/|relay/[0-9]{1,20}/|!/conn/[0-9]{1,20}/(?:rpc|relayed)/)[^\0]+", re.DOTALL)
_REPLY = re.compile(rb"!/conn/([0-9]{1,20})/(?!(?:rpc|relayed)/)[^\0]*", re.DOTALL)

_HEADS = (SERVICE_HEAD, RELAYED_HEAD, RELAY_HEAD, ADDRESS_HEAD)


@dataclass(frozen=True, slots=True)
class CallPart:
    """What one message is to a call."""

    call_id: int
    role: Role
    command: str
    expires_seconds: int | None
    """Of a request: how long it may take; None is for ever."""
    failed: bool | None
    """Of a reply: whether it tells an error."""


class CallRecognizer:
    """Recognises the envelopes of calls on one host since its boot. It remembers nothing."""

    def __init__(self, host: str, boot_id: str) -> None:
        self._seed = f"{host}\0{boot_id}\0".encode()

    def part(self, key: bytes, payload: bytes, sender: int | None) -> CallPart | None:
        """Return what the message with *key* and *payload* from connection *sender* is to a call, None if it is none's."""
        if not key.startswith(_HEADS):
            return None
        is_request = _REQUEST.fullmatch(key) is not None
        reply = None if is_request else _REPLY.fullmatch(key)
        if not is_request and reply is None:
            return None
        try:
            envelope = parse_envelope(payload)
        except ProtocolError:
            # Neither services nor callers take it for one.
            return None
        if reply is not None:
            call = self.number(call_digest(int(reply[1]), key, envelope.uid))
            return CallPart(call, Role.REPLY, envelope.command, None, bool(envelope.error))
        call = self.number(call_digest(sender or 0, envelope.reply_to.encode(), envelope.uid))
        return CallPart(call, Role.REQUEST, envelope.command, envelope.expires_seconds or None, None)

    def number(self, digest: str) -> int:
        """Return the number of the call with that digest, ``call_digest``: of 64 bits with sign."""
        return int.from_bytes(hashlib.blake2b(self._seed + digest.encode(), digest_size=8).digest(), "big", signed=True)
