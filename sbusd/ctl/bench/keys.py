"""The key that a bench uses: a secret one of the user's own, with a name that nobody can guess."""

from __future__ import annotations

import secrets


def private_key(whoami: bytes) -> bytes:
    """Return a key that no wildcard reaches and no other user may subscribe to, from the bus's answer to whoami.

    It is ``!/cred//UID//bench/NAME``, behind whatever the bus puts in front of credentials. Spec: sbus-protocol(7) §4.
    """
    head, _, uid, _ = whoami.rsplit(b"/", 3)
    return b"%b//%b//bench/%b" % (head, uid, secrets.token_hex(16).encode())
