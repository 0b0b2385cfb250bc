"""The identity of this machine for one application, from machine-id(5)."""

from __future__ import annotations

import hmac
import re
import uuid
from pathlib import Path

MACHINE_ID = Path("/etc/machine-id")

_ID = re.compile(r"[0-9a-f]{32}")


def machine_identity(application: uuid.UUID, path: Path = MACHINE_ID) -> str:
    """Return 32 hexadecimal digits, the same for each call on this machine; empty if it has no valid id, such as some containers.

    The machine id itself is confidential, so it is hashed with *application*: sd_id128_get_machine_app_specific(3).
    """
    try:
        text = path.read_text("ascii").strip()
    except (OSError, ValueError):
        return ""
    if _ID.fullmatch(text) is None:
        return ""
    return uuid.UUID(bytes=hmac.digest(bytes.fromhex(text), application.bytes, "sha256")[:16], version=4).hex
