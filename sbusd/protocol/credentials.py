"""Peer credentials, and the private keys that they give access to. Spec: sbus-protocol(7) §4."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from sbusd.protocol.errors import ErrorCode, ProtocolError
from sbusd.protocol.keys import SECRET_HEAD

_IDS = re.compile(rb"([0-9]*)/([0-9]*)/([0-9]*)/(.*)", re.DOTALL)
_PREFIX = re.compile(rb"!/cred/[0-9]+/[0-9]+/[0-9]+(?:/!/cred/[0-9]+/[0-9]+/[0-9]+)*")


class Credentials(NamedTuple):
    """The credentials of a peer at the moment of its connect(2), from the kernel: SO_PEERCRED and SO_PEERGROUPS, unix(7).

    ``groups`` are the supplementary groups; ``gid`` may or may not be among them.
    """

    pid: int
    uid: int
    gid: int
    groups: frozenset[int] = frozenset()

    def key(self, prefix: bytes = b"") -> bytes:
        """Return ``!/cred/<gid>/<uid>/<pid>``, after *prefix* and a ``/`` if there is a prefix: the response to ``whoami``."""
        own = b"!/cred/%d/%d/%d" % (self.gid, self.uid, self.pid)
        return prefix + b"/" + own if prefix else own


@dataclass(frozen=True, slots=True)
class SecretPattern:
    """A pattern for private keys: the ids that it names, None for an empty one, and the rest, an ordinary pattern."""

    gid: int | None
    uid: int | None
    pid: int | None
    rest: bytes

    def opens_to(self, credentials: Credentials) -> bool:
        """Return whether every named id is that of the peer; a gid may also be a supplementary group."""
        return (
            (self.gid is None or self.gid == credentials.gid or self.gid in credentials.groups)
            and (self.uid is None or self.uid == credentials.uid)
            and (self.pid is None or self.pid == credentials.pid)
        )


def parse_secret_pattern(pattern: bytes, prefix: bytes = b"") -> SecretPattern:
    """Return the parts of *pattern*, which begins with ``!/cred/``, on a bus with the credential prefix *prefix*.

    Raises:
        ProtocolError: EACCES if the prefix is missing, an id is neither decimal nor empty, or the key is incomplete.
    """
    head = prefix + b"/" + SECRET_HEAD if prefix else SECRET_HEAD
    if not pattern.startswith(head):
        raise ProtocolError(ErrorCode.EACCES, f"invalid private key: on this bus it must begin with {head.decode('ascii', 'replace')}")
    match = _IDS.fullmatch(pattern, len(head))
    if match is None:
        raise ProtocolError(ErrorCode.EACCES, "invalid private key: it must be !/cred/<gid>/<uid>/<pid>/<rest>, each id decimal or empty")
    gid, uid, pid = (_parse_id(text) for text in match.groups()[:3])
    return SecretPattern(gid, uid, pid, match.group(4))


def is_credential_prefix(prefix: bytes) -> bool:
    """Return whether *prefix* is one or more ``!/cred/<gid>/<uid>/<pid>``, joined by ``/``, without a ``/`` at its end."""
    return _PREFIX.fullmatch(prefix) is not None


def _parse_id(digits: bytes) -> int | None:
    """Return an id, None for an empty one, and -1, which no peer has, for an id of more than 32 bits."""
    if not digits:
        return None
    # int() of a very long string of digits takes time, and raises; a valid id has at most ten digits.
    significant = digits.lstrip(b"0") or b"0"
    return int(significant) if len(significant) <= 10 else -1
