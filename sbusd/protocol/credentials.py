"""Who is who: peer credentials, and the secret keys that they open. Spec: sbus-protocol(7) §4."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from sbusd.protocol.errors import ErrorCode, ProtocolError
from sbusd.protocol.keys import SECRET_HEAD

_IDS = re.compile(rb"([0-9]*)/([0-9]*)/([0-9]*)/(.*)", re.DOTALL)
_PREFIX = re.compile(rb"!/cred/[0-9]+/[0-9]+/[0-9]+(?:/!/cred/[0-9]+/[0-9]+/[0-9]+)*")


class Credentials(NamedTuple):
    """What the kernel says of a peer at the moment of its connect(2): SO_PEERCRED and SO_PEERGROUPS, unix(7).

    ``groups`` are the supplementary groups, without any promise that ``gid`` is among them.
    """

    pid: int
    uid: int
    gid: int
    groups: frozenset[int] = frozenset()

    def key(self, prefix: bytes = b"") -> bytes:
        """Return ``!/cred/<gid>/<uid>/<pid>``, behind *prefix* and a ``/`` if there is one: the answer to ``whoami``."""
        own = b"!/cred/%d/%d/%d" % (self.gid, self.uid, self.pid)
        return prefix + b"/" + own if prefix else own


@dataclass(frozen=True, slots=True)
class SecretPattern:
    """A pattern for secret keys: the ids it names, None for one left empty, and the rest, an ordinary pattern."""

    gid: int | None
    uid: int | None
    pid: int | None
    rest: bytes

    def opens_to(self, credentials: Credentials) -> bool:
        """Return whether every id that is named is one of the peer's; a gid may also be a supplementary group."""
        return (
            (self.gid is None or self.gid == credentials.gid or self.gid in credentials.groups)
            and (self.uid is None or self.uid == credentials.uid)
            and (self.pid is None or self.pid == credentials.pid)
        )


def parse_secret_pattern(pattern: bytes, prefix: bytes = b"") -> SecretPattern:
    """Return the parts of *pattern*, which begins with ``!/cred/``, on a bus behind the credential prefix *prefix*.

    Raises:
        ProtocolError: EACCES if the prefix is missing, an id is not decimal or empty, or the key is cut short.
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
    """Return an id, None for an empty one, and -1, which nobody has, for one past 32 bits, however many digits it has."""
    if not digits:
        return None
    # int() of a very long string of digits raises, and takes time; a real id has ten digits at most.
    significant = digits.lstrip(b"0") or b"0"
    return int(significant) if len(significant) <= 10 else -1
