"""Keys and patterns of command lines, with warnings about those that are valid, but probably mistakes."""

from __future__ import annotations

import os

from sbus.pattern_hints import hint
from sbusctl.errors import print_error


def one_key(key: str) -> bytes:
    """Return *key* for the bus. Warn if it is empty, or if it has a wildcard, which is probably meant as a pattern."""
    if not key:
        print_error("warning: the key is empty; is a variable of the shell not set?")
    if "*" in key:
        print_error(f"warning: {key!r} looks like a pattern; write the key of one message, because '*' in a key is not a wildcard")
    return os.fsencode(key)


def warn_of_patterns(*patterns: str | None) -> None:
    """Warn of each pattern that cannot match, or has the wildcards of another protocol; a subscription of the client does that itself."""
    for pattern in patterns:
        if pattern and (words := hint(os.fsencode(pattern))):
            print_error(f"warning: {words}")
