"""The trace context of a request: the ``traceparent`` of W3C Trace Context, level 1. Spec: sbus-rpc(7) §2, ``ctx``.

The caller checks a context before it sends it. A receiver ignores an invalid one, and does not discard the request.
"""

from __future__ import annotations

import re

MAX_CONTEXT_BYTES = 256
"""Maximum size. Version 00 has 55 bytes; later versions may add fields at the end."""

_CONTEXT = re.compile(r"(?!ff)([0-9a-f]{2})-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-[!-~]*)?")


def context_problem(text: str) -> str:
    """Return why *text* is not a trace context, or no words."""
    found = _CONTEXT.fullmatch(text)
    if found is None or (found[1] == "00" and found[2]):
        return "is not a W3C traceparent such as 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    return f"is longer than {MAX_CONTEXT_BYTES} bytes" if len(text) > MAX_CONTEXT_BYTES else ""


def read_context(value: object) -> str:
    """Return the member ``ctx`` if it is a trace context, otherwise empty text."""
    return value if isinstance(value, str) and value and not context_problem(value) else ""
