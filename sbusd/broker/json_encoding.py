"""How JSON that the bus sends names connections, keys and patterns. Spec: sbus-protocol(7) §5."""

from __future__ import annotations

import base64

from sbusd.protocol.credentials import Credentials


def describe(connection: int, who: Credentials, prefix: bytes, now: int) -> dict[str, object]:
    """Return what an event tells of a connection: *now* is nanoseconds since 1970, *prefix* the credential prefix."""
    return {"id": connection, "cred": who.key(prefix).decode(), "time": now}


def spell(name: str, data: bytes) -> dict[str, object]:
    """Return a key or pattern as members of a JSON object: as text, and where it is not UTF-8, in base64 too."""
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {name: data.decode("utf-8", "backslashreplace"), f"{name}_base64": base64.b64encode(data).decode()}
