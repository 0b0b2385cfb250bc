"""Who is at the other end: a connection's number and its credentials, as the bus vouches for them. Spec: sbus-protocol(7) §5, §6."""

from __future__ import annotations

import re
from dataclasses import dataclass

from sbusd.protocol import controls
from sbusd.protocol.errors import ErrorCode, ProtocolError
from sbusd.protocol.keys import ADDRESS_HEAD

# Nothing is taken that int() would have to look at for long: a connection has at most 20 digits, an id 10.
_OWN = re.compile(rb"(?:.*/)?!/cred/([0-9]{1,10})/([0-9]{1,10})/([0-9]{1,10})", re.DOTALL)
_SENDER = re.compile(re.escape(controls.FROM) + rb"([0-9]{1,20})/(.*)", re.DOTALL)
_ADDRESS = re.compile(re.escape(ADDRESS_HEAD) + rb"([0-9]{1,20})/")


NOBODY = -1
"""In the place of a uid, gid or pid: one that no user, group or process has."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A connection of the bus, and what the kernel said of it when it connected.

    ``key`` are the credentials as ``!/cred/whoami`` tells them to it, so ``key + b"/x"`` is a secret key of that very process.
    """

    connection: int
    uid: int
    gid: int
    pid: int
    key: bytes

    @property
    def address(self) -> bytes:
        """Where only this connection hears: ``!/conn/<id>/``."""
        return connection_address(self.connection)


def remote_peer(relay: Peer, twin: int) -> Peer:
    """Return who calls from the host *twin* through *relay*: no user of this host, and credentials that begin with the twin's.

    ``!/twin/<twin>/`` cannot be published or subscribed to, so a secret made of them reaches nobody.
    """
    return Peer(relay.connection, NOBODY, NOBODY, NOBODY, b"!/twin/%d/%b" % (twin, relay.key))


def connection_address(connection: int) -> bytes:
    """Return the address of the connection with that number: ``!/conn/<id>/``."""
    return b"%b%d/" % (ADDRESS_HEAD, connection)


def parse_address(address: bytes) -> int:
    """Return the number of the connection whose ``!/conn/<id>/`` that is. Raises ProtocolError (EPROTO) if it is none."""
    match = _ADDRESS.fullmatch(address)
    if match is None:
        raise ProtocolError(ErrorCode.EPROTO, f"invalid address of a connection: {address[:64]!r}")
    return int(match[1])


def make_peer(connection: int, key: bytes) -> Peer:
    """Return the peer with that number and those credentials; behind a credential prefix the last ones are its own.

    Raises:
        ProtocolError: EPROTO if *key* is not ``!/cred/<gid>/<uid>/<pid>``, or that behind a prefix.
    """
    match = _OWN.fullmatch(key)
    if match is None:
        raise ProtocolError(ErrorCode.EPROTO, f"invalid credentials: {key[:64]!r}")
    gid, uid, pid = (int(digits) for digits in match.groups())
    return Peer(connection, uid, gid, pid, key)


def parse_sender(key: bytes) -> Peer:
    """Return the sender that ``!/from/<id>/<cred>`` names. Raises ProtocolError (EPROTO) if that is not its form."""
    match = _SENDER.fullmatch(key)
    if match is None:
        raise ProtocolError(ErrorCode.EPROTO, f"invalid sender: {key[:64]!r}")
    return make_peer(int(match[1]), match[2])
