"""What a bench is asked to do."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from sbusd.protocol.limits import MAX_PACKET_BYTES

LEAST_BYTES = 16
"""The smallest payload: a mark and a time must fit into it."""

MOST_BYTES = MAX_PACKET_BYTES - 1024
"""The largest payload: the key, behind the longest prefix of credentials there is, must fit into the packet too."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One run: publishers, subscribers, bytes of payload; each publisher's messages, or if that is None, seconds."""

    clients: int
    subscribers: int
    size: int
    count: int | None
    seconds: float
    coalesce: bool = False
    """Whether publishers let messages leave together."""


def parse_sizes(text: str) -> list[int]:
    """Return the payloads' sizes in *text*, which are separated by commas.

    Raises:
        ValueError: one is no number, or out of range.
    """
    sizes = []
    for part in text.split(","):
        word = part.strip()
        if not (word.isascii() and word.isdigit() and len(word) < 10 and LEAST_BYTES <= int(word) <= MOST_BYTES):
            raise ValueError(f"invalid payload size {word!r}: must be {LEAST_BYTES} to {MOST_BYTES} bytes")
        sizes.append(int(word))
    return sizes


def private_key(whoami: bytes) -> bytes:
    """Return a key that no wildcard reaches and no other user may subscribe to, from the bus's answer to whoami.

    It is ``!/cred//UID//bench/NAME``, behind whatever the bus puts in front of credentials. Spec: sbus-protocol(7) §4.
    """
    head, _, uid, _ = whoami.rsplit(b"/", 3)
    return b"%b//%b//bench/%b" % (head, uid, secrets.token_hex(16).encode())
