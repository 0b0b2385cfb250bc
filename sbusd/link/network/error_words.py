"""Why a connection could not be made, or has ended, in one line."""

from __future__ import annotations

import os
import ssl

from sbusd.protocol.printable import printable

MAX_WORDS = 300
"""Longest text of another host that is kept, in characters."""


def error_words(error: Exception) -> str:
    """Return the reason in *error*: printable, without the names of classes where it has a text."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate rejected: {error.verify_message}"
    if isinstance(error, ssl.SSLError) and getattr(error, "reason", None):
        return f"TLS: {error.reason.replace('_', ' ').lower()}"
    if isinstance(error, TimeoutError):
        return "no response in time"
    if isinstance(error, OSError) and error.errno and error.errno > 0 and not isinstance(error, ssl.SSLError):
        return os.strerror(error.errno)  # asyncio's own text repeats the address
    if isinstance(error, OSError) and error.strerror:
        return printable(error.strerror, MAX_WORDS)
    return printable(str(error).removeprefix("nats: ") or type(error).__name__, MAX_WORDS)
