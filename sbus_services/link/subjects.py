"""Subjects of the network: how the hosts of a realm name their messages.

::

    s.REALM.m.ORIGIN.TOKENS     messages for every host that wants them; the tokens are those of the key
    s.REALM.i.ORIGIN            changes of what ORIGIN wants
    s.REALM.h.ORIGIN            heartbeats
    s.REALM.x.TARGET.ORIGIN     everything else from ORIGIN for TARGET alone

A token is a segment of a key: ``=`` for an empty one; letters, digits, ``_`` and ``-`` as they are, every other byte as ``=`` and two
hexadecimal digits; ``=h`` and a hash if that is longer than 96. A key with more than 24 segments has ``=c`` after the first 24. So subjects
are ASCII, at most 2.5 KiB long, and keys and patterns cannot be read back from them. The wildcards are ``*``, and ``>`` at the end.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass

from sbus_programs.config.link import is_name

MAX_SEGMENTS = 24
"""Segments of a key that have a token of their own."""

MAX_TOKEN = 96
"""Characters of a token that is not a hash."""

_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")

_SPELLED = [chr(byte) if byte in _PLAIN else f"={byte:02X}" for byte in range(256)]


def token(segment: bytes) -> str:
    """Return the token of one segment, any bytes."""
    if not segment:
        return "="
    spelled = "".join([_SPELLED[byte] for byte in segment[: MAX_TOKEN + 1]])
    if len(spelled) <= MAX_TOKEN:
        return spelled
    return "=h" + base64.b32encode(hashlib.sha256(segment).digest()[:20]).decode().lower()


def key_tokens(key: bytes, most: int = MAX_SEGMENTS) -> str:
    """Return the tokens of *key*, joined by dots, at most *most* and ``=c``."""
    segments = key.split(b"/", most)
    tokens = [token(segment) for segment in segments[:most]]
    return ".".join([*tokens, "=c"] if len(segments) > most else tokens)


def pattern_tokens(pattern: bytes, most: int = MAX_SEGMENTS) -> str:
    """Return tokens and wildcards that match those of each key that *pattern* matches, and sometimes of others."""
    segments = pattern.split(b"/")
    tokens = ["*" if b"*" in segment else token(segment) for segment in segments[:most]]
    if len(segments) > most:
        return ".".join([*tokens, ">"])
    if not segments[-1]:
        tokens[-1] = ">"
    return ".".join(tokens)


@dataclass(frozen=True, slots=True)
class Arrival:
    """A parsed subject: its kind (``m``, ``i``, ``h`` or ``x``) and the host that published to it."""

    kind: str
    origin: str


class Subjects:
    """The subjects of one host in its realm."""

    def __init__(self, realm: str, host: str) -> None:
        """Both are names as in `sbus_programs.config.link.is_name`."""
        self._head = f"s.{realm}."
        self._host = host
        self.interest = f"{self._head}i.{host}"
        self.heartbeat = f"{self._head}h.{host}"
        self.always = (f"{self._head}i.*", f"{self._head}h.*", f"{self._head}x.{host}.*")
        """The subjects that every link subscribes to."""

    def message(self, key: bytes) -> str:
        """Return the subject of a message of this host."""
        return f"{self._head}m.{self._host}.{key_tokens(key)}"

    def direct(self, target: str) -> str:
        """Return the subject for everything that only *target* may receive."""
        return f"{self._head}x.{target}.{self._host}"

    def wanted(self, origins: bytes, pattern: bytes) -> str:
        """Return the subscription for *pattern* of the hosts whose name the segment *origins* matches."""
        origin = "*" if b"*" in origins else origins.decode("ascii")
        return f"{self._head}m.{origin}.{pattern_tokens(pattern)}"

    def parse(self, subject: str) -> Arrival | None:
        """Return the kind and origin of a subject that this host may receive from another, or None."""
        if not subject.startswith(self._head):
            return None
        kind, _, rest = subject[len(self._head) :].partition(".")
        if kind == "x":
            target, _, origin = rest.partition(".")
            valid = target == self._host
        elif kind == "m":
            origin, dot, _ = rest.partition(".")
            valid = bool(dot)
        else:
            origin, valid = rest, kind in {"i", "h"}
        return Arrival(kind, origin) if valid and is_name(origin) and origin != self._host else None
