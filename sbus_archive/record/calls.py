"""Calls in the traffic: requests, replies, and the number that a request shares with its replies. Spec: sbus-rpc(7).

The number is the first 64 bits of a BLAKE2b hash of the host, its boot id, and the digest of the call. The digest covers the connection of
the caller, the reply key, and the ``uid`` of the call. The relay reports the digest with each attempt. The probability that two of 10^9
calls share a number is 1 to 37; for 10^6 calls it is 1 to 37 million.

A client cannot add messages to calls of others: a request counts for the connection that published it, as reported by the bus, and a reply
counts for the connection that owns its key.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import NamedTuple, Self

from sbus.protocol.envelope import RELAY_HEAD, RELAYED_HEAD, SERVICE_HEAD, call_digest, parse_members
from sbus.protocol.errors import ProtocolError
from sbus.protocol.keys import ADDRESS_HEAD
from sbus_archive.record.schema import Role

_REQUEST = re.compile(rb"(?:rpc/|relayed/|relay/[0-9]{1,20}/|!/conn/[0-9]{1,20}/(?:rpc|relayed)/)[^\0]+", re.DOTALL)
_REPLY = re.compile(rb"!/conn/([0-9]{1,20})/(?!(?:rpc|relayed)/)[^\0]*", re.DOTALL)

_REQUEST_ROLE, _REPLY_ROLE = Role.REQUEST.value, Role.REPLY.value

_HEADS = (SERVICE_HEAD, RELAYED_HEAD, RELAY_HEAD, ADDRESS_HEAD)


class CallPart(NamedTuple):
    """The role of one message in a call."""

    call_id: int
    role: str
    """A value of :class:`~sbus_archive.record.schema.Role`."""
    command: str
    expires_seconds: int | None
    """Time limit of a request, in seconds; None: no limit."""
    failed: bool | None
    """Whether a reply reports an error."""


class CallRecognizer:
    """Recognizes the envelopes of calls on one host since its boot. It keeps no state."""

    def __init__(self, host: str, boot_id: str) -> None:
        self._seed = f"{host}\0{boot_id}\0".encode()

    @classmethod
    def of_this_boot(cls, host: str) -> Self:
        """Return the recognizer for *host* since the boot of this machine, random(4); without its id, as in some containers, for all."""
        try:
            boot_id = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        except OSError:
            boot_id = ""
        return cls(host, boot_id)

    def part(self, key: bytes, payload: bytes, sender: int | None) -> CallPart | None:
        """Return the role of the message with *key* and *payload* from connection *sender*, None if it is not part of a call."""
        if not key.startswith(_HEADS):
            return None
        is_request = _REQUEST.fullmatch(key) is not None
        reply = None if is_request else _REPLY.fullmatch(key)
        if not is_request and reply is None:
            return None
        try:
            members, _ = parse_members(payload)
        except ProtocolError:
            # Services and callers ignore such a message too.
            return None
        if reply is not None:
            call = self.number(call_digest(int(reply[1]), key, members["uid"]))
            return CallPart(call, _REPLY_ROLE, members["cmd"], None, bool(members.get("err")))
        if members.get("cancel") or members.get("more"):
            return None
        call = self.number(call_digest(sender or 0, members.get("ret", "").encode(), members["uid"]))
        return CallPart(call, _REQUEST_ROLE, members["cmd"], members.get("exp") or None, None)

    def number(self, digest: str) -> int:
        """Return the number of the call with that ``call_digest``: a signed 64-bit integer."""
        return int.from_bytes(hashlib.blake2b(self._seed + digest.encode(), digest_size=8).digest(), "big", signed=True)
