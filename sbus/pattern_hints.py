"""Hints about patterns that are probably mistakes: wildcards of other protocols, and wildcards at a wrong place. No I/O."""

from __future__ import annotations

_STAR = b"*"

_SHOWN_CHARACTERS = 128
"""Characters of a pattern in a hint; the rest is left out."""


class PatternWarning(UserWarning):
    """A pattern that is valid, but probably does not say what the program means."""


def hint(pattern: bytes) -> str | None:
    """Return what is probably wrong with *pattern*, and how it is written here; None if nothing is. The separator is ``/``."""
    if b"/" not in pattern and (pattern.endswith((b".>", b".*")) or b".*." in pattern):
        return _instead(pattern, "NATS", pattern.replace(b".", b"/").removesuffix(b">"))
    segments = pattern.split(b"/")
    if _can_never_match(pattern):
        return f"{_shown(pattern)} can never match: '*' matches the rest of its segment, so it must be the end of the segment"
    if segments[-1] == b"#":
        return _instead(pattern, "MQTT", pattern[:-1])
    if b"+" in segments:
        return _instead(pattern, "MQTT", b"/".join(_STAR if segment == b"+" else segment for segment in segments))
    if segments[-1] == b">":
        return _instead(pattern, "NATS", pattern[:-1])
    return None


def _instead(pattern: bytes, protocol: str, right: bytes) -> str:
    if _can_never_match(pattern):
        here = "can never match here"
    elif _STAR in pattern:
        here = f"matches keys such as {_shown(pattern.replace(_STAR, b'x'))} here"
    else:
        here = "matches only itself here"
    return f"{_shown(pattern)} looks like a pattern of {protocol}, and {here}; write {_shown(right)}"


def _can_never_match(pattern: bytes) -> bool:
    """Return whether a ``*`` is not at the end of its segment."""
    return any(_STAR in segment.rstrip(_STAR) for segment in pattern.split(b"/"))


def _shown(pattern: bytes) -> str:
    text = pattern.decode("utf-8", "backslashreplace")
    return repr(text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…")
