"""Which subjects a host may publish and subscribe to, and the matching of subjects. A server or each peer enforces it.

A host publishes under its own name only, so no host can forge the origin of a message. What is for one host alone can only be read there.
`sbusd.link.subjects` describes the subjects.
"""

from __future__ import annotations

ANY, REST = "*", ">"
"""The wildcards of NATS: exactly one token, and one or more tokens at the end. A star within a token is not one, and nothing is reserved,
so `sbusd.protocol.keys` and `sbusd.protocol.pattern_index` would decide otherwise about subjects."""


def published_by(realm: str, host: str) -> tuple[str, ...]:
    """Return the subjects, with wildcards, that *host* may publish to."""
    return f"s.{realm}.m.{host}.>", f"s.{realm}.i.{host}", f"s.{realm}.h.{host}", f"s.{realm}.x.*.{host}"


def received_by(realm: str, host: str) -> tuple[str, ...]:
    """Return the subjects, with wildcards, that *host* may subscribe to."""
    return f"s.{realm}.m.>", f"s.{realm}.i.*", f"s.{realm}.h.*", f"s.{realm}.x.{host}.*"


def covers(allowed: str, subject: str) -> bool:
    """Return whether every subject that *subject* matches, which may have wildcards, matches *allowed* too."""
    wide, narrow = allowed.split("."), subject.split(".")
    for index, token in enumerate(wide):
        if token == REST:
            return len(narrow) > index
        if index >= len(narrow) or narrow[index] == REST or (token != narrow[index] and token != ANY):
            return False
    return len(wide) == len(narrow)


def is_within(subject: str, allowed: tuple[str, ...]) -> bool:
    """Return whether one of *allowed* covers *subject*."""
    return any(covers(each, subject) for each in allowed)
