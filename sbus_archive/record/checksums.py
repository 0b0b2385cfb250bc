"""Compares a file with a checksum. This module is sent to processes of Spark by value, so it imports only the standard library."""

from __future__ import annotations

import hashlib

MISSING = "missing, but named in the index"
MISMATCH = "checksum mismatch: the segment is damaged, or its index entry describes another file"


def damage_of(path: str, sha256: str) -> str | None:
    """Return why the file *path* cannot be used as the segment with the checksum *sha256*; None if it can."""
    try:
        with open(path, "rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
    except FileNotFoundError:
        return MISSING
    except OSError as error:
        return f"cannot read file: {error.strerror}"
    return None if digest == sha256 else MISMATCH
