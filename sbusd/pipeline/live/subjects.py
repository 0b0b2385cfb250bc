"""Subjects of counters and alerts: texts of bounded length, whatever keys users invent. Spec: sbus-live(8), ALERTS."""

from __future__ import annotations

import hashlib
import re
from urllib.parse import quote, unquote_to_bytes

_KEPT = 200
_CHECKSUM = 16
_CUT_SEQUENCE = re.compile("%.?$")

MAX_ENCODED = _KEPT + 1 + _CHECKSUM
"""Maximum length of a subject with percent-encoding."""


def shortened(subject: str) -> str:
    """Return *subject*, or the beginning of a longer one with ``~`` and its checksum. A shortened subject is returned unchanged."""
    # Each character has at least one encoded character, so the rest of a key of 4096 bytes need not be encoded.
    if len(subject) <= MAX_ENCODED and len(_encoded(subject)) <= MAX_ENCODED:
        return subject
    # Cut sequences and characters are dropped.
    begin = _CUT_SEQUENCE.sub("", _encoded(subject[:_KEPT])[:_KEPT])
    kept = unquote_to_bytes(begin).decode("utf-8", "ignore")
    return f"{kept}~{hashlib.sha256(subject.encode('utf-8', 'surrogatepass')).hexdigest()[:_CHECKSUM]}"


def escape(subject: str) -> str:
    """Return *subject* as one segment of a key: shortened and percent-encoded; the empty one is ``all``."""
    return _encoded(shortened(subject)) or "all"


def _encoded(text: str) -> str:
    """Return *text* with percent-encoding."""
    return quote(text, safe="", errors="surrogatepass")
