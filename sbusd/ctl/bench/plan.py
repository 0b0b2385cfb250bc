"""The parameters of a benchmark."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from sbusd.protocol.limits import MAX_PACKET_BYTES

LEAST_BYTES = 16
"""The smallest payload: it has room for a mark and a time."""

MOST_BYTES = MAX_PACKET_BYTES - 1024
"""The largest payload: the key, with the longest prefix of credentials, must also fit into the packet."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One run: number of publishers and subscribers, payload size in bytes, and messages per publisher, or seconds if ``count`` is
    None."""

    clients: int
    subscribers: int
    size: int
    count: int | None
    seconds: float
    coalesce: bool = False
    """Whether publishers send several messages in one packet."""


def parse_sizes(text: str) -> list[int]:
    """Return the payload sizes in *text*, separated by commas.

    Raises:
        ValueError: one is not a number, or out of range.
    """
    sizes = []
    for part in text.split(","):
        word = part.strip()
        if not (word.isascii() and word.isdigit() and len(word) < 10 and LEAST_BYTES <= int(word) <= MOST_BYTES):
            raise ValueError(f"invalid payload size {word!r}: must be {LEAST_BYTES} to {MOST_BYTES} bytes")
        sizes.append(int(word))
    return sizes


def private_key(whoami: bytes) -> bytes:
    """Return a random private key of the user, from the reply to whoami. No wildcard matches it, and no other user can subscribe to it.

    It is ``!/cred//UID//bench/NAME``, after the prefix that the bus adds to credentials. Spec: sbus-protocol(7) §4.
    """
    head, _, uid, _ = whoami.rsplit(b"/", 3)
    return b"%b//%b//bench/%b" % (head, uid, secrets.token_hex(16).encode())
