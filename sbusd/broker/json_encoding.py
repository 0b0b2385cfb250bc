"""JSON in packets of the bus: objects, and connections, keys and patterns in them. Spec: sbus-protocol(7) §5."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping

from sbusd.protocol.credentials import Credentials


def encode(value: Mapping[str, object]) -> bytes:
    """Return one JSON object without blanks."""
    return json.dumps(value, separators=(",", ":")).encode()


def text(data: bytes) -> str:
    """Return a key or pattern as text, with escapes for bytes that are not UTF-8."""
    return data.decode("utf-8", "backslashreplace")


def key_members(name: str, data: bytes) -> dict[str, object]:
    """Return a key or pattern as members of a JSON object: as text, and if it is not UTF-8, in base64 too."""
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {name: text(data), f"{name}_base64": base64.b64encode(data).decode()}


def connection_members(connection: int, credentials: Credentials, prefix: bytes, now: int) -> dict[str, object]:
    """Return a connection and the time *now*, in nanoseconds since 1970, as members of an event. *prefix* is the credential prefix."""
    return {"id": connection, "cred": credentials.key(prefix).decode(), "time": now}
