"""Fuzz target: the compiled router gives the answers of the plain matcher, and keeps nothing of patterns that are gone.

Input: a byte that chooses the bus, then texts with a NUL between them, each of which is a pattern and a key.
"""

from __future__ import annotations

from sbus.protocol.credentials import Credentials, parse_secret_pattern
from sbus.protocol.errors import ProtocolError
from sbus.protocol.keys import KeySpace
from sbusd.dataplane.contract import Refusal
from sbusd.dataplane.switch import Router

PREFIX = b"!/cred/1/1/1"
BUSES = (KeySpace(b"/"), KeySpace(b"."), KeySpace(b"/", PREFIX), KeySpace(b"/", PREFIX + b"/" + PREFIX))

CACHE_BYTES = 128
"""Small enough to overflow."""

MOST_TEXTS = 12

PEER = Credentials(pid=1, uid=1, gid=1, groups=frozenset({2}))


def check(data: bytes) -> None:
    """The router agrees with the matcher while patterns come and go; in the end it is bare; secret patterns parse or are refused."""
    keyspace = BUSES[data[0] % len(BUSES)] if data else BUSES[0]
    texts = data[1:].split(b"\0")[:MOST_TEXTS]
    router = Router(keyspace, CACHE_BYTES)
    for slot, text in enumerate(texts):
        router.add(slot, text)
    _compare(router, keyspace, texts, range(len(texts)))
    for slot in range(0, len(texts), 2):
        router.remove(slot, texts[slot])
    _compare(router, keyspace, texts, range(1, len(texts), 2))
    for slot in range(1, len(texts), 2):
        router.remove(slot, texts[slot])
    assert router.is_bare
    for text in texts:
        _check_secret(text, keyspace)


def _compare(router: Router, keyspace: KeySpace, texts: list[bytes], slots: range) -> None:
    """Look every text up as a key, twice: by a walk, then perhaps from the cache."""
    for key in texts + texts:
        reached = [slot for slot in slots if keyspace.matches(texts[slot], key)]
        refusal = None if keyspace.is_publishable(key) else Refusal.RESERVED
        assert router.lookup(key) == (reached, refusal), (texts, key)
        assert router.cache_bytes <= CACHE_BYTES


def _check_secret(pattern: bytes, keyspace: KeySpace) -> None:
    """Parse as a secret pattern, which must not raise anything else, and ask whom it is for."""
    try:
        secret = parse_secret_pattern(pattern, keyspace.prefix)
    except ProtocolError:
        return
    assert pattern.endswith(b"/" + secret.rest)
    assert secret.opens_to(PEER) in {True, False}
