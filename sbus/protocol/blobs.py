"""Large messages: requests to sbus-blob(8) with their responses, and the message on the bus that refers to a blob. No I/O.

A request and its response are one packet each: a JSON object, with at most one descriptor.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from sbus.protocol.errors import SbusError

MARK = "sbus-blob"
"""The member by which a message refers to a blob; its value is the version."""

VERSION = 1

MAX_REQUEST_BYTES = 4_096
"""Maximum size of a request."""

MAX_RESPONSE_BYTES = 1 << 16
"""Maximum size of a response."""

MAX_TYPE_CHARACTERS = 127
"""Maximum length of a media type."""

MAX_DESCRIPTORS = 253
"""Descriptors that one packet can have: SCM_MAX_FD of the kernel."""

DEFAULT_TYPE = "application/octet-stream"

DEFAULT_EXPIRE = 30.0
"""Seconds for which a blob is kept."""

MAX_EXPIRE = 600.0
"""Maximum number of these seconds."""

MAX_PASS_EXPIRE = 30.0
"""The same for a descriptor that is not a blob."""

MAX_USES = 1_000_000

SEALS = 0x000F
"""F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW and F_SEAL_WRITE, fcntl(2): the content never changes again."""

F_ADD_SEALS, F_GET_SEALS = 1033, 1034
"""Commands of fcntl(2)."""

TICKET_BYTES = 16

CHUNK_BYTES = 256 << 10
"""What one call between hosts carries of a blob: with its envelope, in base64, it fits into a packet."""

LAST_CONNECTION, NO_ID = 1 << 63, (1 << 32) - 1
"""No connection has such a number, and no user or group."""

MAX_HOST_CHARACTERS = 255

LAST_TIME = 1e12
"""Seconds since 1970 that no clock shows."""

_TICKET = re.compile(r"[a-z2-7]{26}")

_TYPE = re.compile(r"[A-Za-z0-9!#$&^_.+-]+/[A-Za-z0-9!#$&^_.+-]+(?:; ?[\x20-\x7e]*)?")

_HOST = re.compile(r"[A-Za-z0-9_.-]+")

_RECIPIENT = re.compile(r"(uid|gid|conn):([0-9]{1,20})")


class BlobRequestError(SbusError, ValueError):
    """A request or a reference that is malformed; the text says how."""


@dataclass(frozen=True, slots=True)
class Recipient:
    """Who may get a blob: ``anyone`` with the ticket, a ``uid``, a ``gid``, or the ``conn`` with a number of the bus."""

    kind: str = "anyone"
    number: int = 0

    def __str__(self) -> str:
        return self.kind if self.kind == "anyone" else f"{self.kind}:{self.number}"


ANYONE = Recipient()


@dataclass(frozen=True, slots=True)
class Reference:
    """The content of a message that refers to a blob. Its sender chooses all of it."""

    ticket: str
    size: int
    type: str
    host: str
    until: float
    """Seconds since 1970."""

    def encode(self) -> bytes:
        """Return the payload of the message."""
        facts = {MARK: VERSION, "ticket": self.ticket, "size": self.size, "type": self.type, "host": self.host, "until": self.until}
        return json.dumps(facts, separators=(",", ":")).encode("ascii")


def new_ticket() -> str:
    """Return a new ticket: 128 random bits in base32."""
    return base64.b32encode(os.urandom(TICKET_BYTES)).decode("ascii").rstrip("=").lower()


def is_ticket(text: object) -> bool:
    """Return whether *text* has the form of a ticket."""
    return isinstance(text, str) and _TICKET.fullmatch(text) is not None and _has_128_bits(text)


def _has_128_bits(text: str) -> bool:
    """Return whether the last character has no bit beyond the 128th."""
    try:
        return base64.b32encode(base64.b32decode(f"{text.upper()}======")).decode("ascii").rstrip("=").lower() == text
    except binascii.Error:
        return False


def is_media_type(text: object) -> bool:
    """Return whether *text* can be the type of a blob, such as ``image/png``."""
    return isinstance(text, str) and len(text) <= MAX_TYPE_CHARACTERS and _TYPE.fullmatch(text) is not None


def is_host(text: str) -> bool:
    """Return whether *text* can be the host in a reference: letters, digits, ``_``, ``-`` and dots."""
    return len(text) <= MAX_HOST_CHARACTERS and _HOST.fullmatch(text) is not None


def parse_recipient(text: object) -> Recipient:
    """Return the recipient in the member ``for`` of a request. Raises BlobRequestError."""
    if text == "anyone":
        return ANYONE
    match = _RECIPIENT.fullmatch(text) if isinstance(text, str) else None
    if match is None or int(match[2]) >= (LAST_CONNECTION if match[1] == "conn" else NO_ID):
        raise BlobRequestError('for must be "anyone", "uid:NUMBER", "gid:NUMBER" or "conn:NUMBER"')
    return Recipient(match[1], int(match[2]))


def parse_object(packet: bytes) -> dict[str, object]:
    """Return the JSON object in *packet*. Raises BlobRequestError."""
    try:
        value = json.loads(packet)
    except (ValueError, RecursionError):
        raise BlobRequestError("not JSON") from None
    if not isinstance(value, dict):
        raise BlobRequestError("not a JSON object")
    return value


def encode_object(value: Mapping[str, object]) -> bytes:
    """Return *value* as one line of JSON."""
    return json.dumps(value, separators=(",", ":")).encode("ascii")


def parse_reference(payload: bytes) -> Reference | None:
    """Return the reference in *payload*, or None if the message is an ordinary one."""
    # Most messages are not references, and are not parsed.
    if len(payload) > MAX_REQUEST_BYTES or not payload.startswith(b"{") or MARK.encode() not in payload:
        return None
    try:
        value = parse_object(payload)
    except BlobRequestError:
        return None
    if value.get(MARK) is True or value.get(MARK) != VERSION:
        return None
    match value:
        case {"ticket": str(ticket), "size": int(size), "type": str(kind), "host": str(host), "until": int(until) | float(until)}:
            is_valid = is_ticket(ticket) and is_media_type(kind) and len(host) <= MAX_HOST_CHARACTERS
            if is_valid and 0 <= size < 1 << 63 and 0 <= until < LAST_TIME:
                return Reference(ticket, int(size), kind, host, float(until))
    return None


def blob_address(bus: str) -> str:
    """Return the path of the blob socket next to the bus at the path *bus*: ``NAME-blob.socket`` for ``NAME.socket``."""
    return f"{bus.removesuffix('.socket')}-blob.socket" if bus.endswith(".socket") else f"{bus}-blob"
