"""Peers: the connection numbers and credentials of other clients, as verified by the bus. Spec: sbus-protocol(7) §5, §6."""

from __future__ import annotations

import re
from dataclasses import dataclass

from sbusd.protocol import controls
from sbusd.protocol.errors import ErrorCode, ProtocolError
from sbusd.protocol.keys import ADDRESS_HEAD

# Limited, because int() is slow for very long numbers: a connection number has at most 20 digits, an id 10.
_OWN = re.compile(rb"(?:.*/)?!/cred/([0-9]{1,10})/([0-9]{1,10})/([0-9]{1,10})", re.DOTALL)
_SENDER = re.compile(re.escape(controls.FROM) + rb"([0-9]{1,20})/(.*)", re.DOTALL)
_ADDRESS = re.compile(re.escape(ADDRESS_HEAD) + rb"([0-9]{1,20})/")


UNKNOWN_ID = -1
"""Replaces an unknown uid, gid or pid: no user, group or process has this number."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A connection of the bus, and its credentials from the kernel when it connected.

    ``key`` are the credentials in the form of ``!/cred/whoami``, so ``key + b"/x"`` is a private key of exactly that process.
    """

    connection: int
    uid: int
    gid: int
    pid: int
    key: bytes

    @property
    def address(self) -> bytes:
        """The address of this connection: ``!/conn/<id>/``. Keys under it reach no other."""
        return connection_address(self.connection)


def remote_peer(relay: Peer, twin: int) -> Peer:
    """Return the peer for a caller on the remote host *twin*, through *relay*: not a user of this host, with credentials of that host.

    Clients can neither publish nor subscribe to ``!/twin/<twin>/``, so a private key made of them reaches no client.
    """
    return Peer(relay.connection, UNKNOWN_ID, UNKNOWN_ID, UNKNOWN_ID, b"!/twin/%d/%b" % (twin, relay.key))


def connection_address(connection: int) -> bytes:
    """Return the address of the connection with that number: ``!/conn/<id>/``."""
    return b"%b%d/" % (ADDRESS_HEAD, connection)


def parse_address(address: bytes) -> int:
    """Return the connection number in the address ``!/conn/<id>/``. Raises ProtocolError (EPROTO) if it is malformed."""
    match = _ADDRESS.fullmatch(address)
    if match is None:
        raise ProtocolError(ErrorCode.EPROTO, f"invalid address of a connection: {address[:64]!r}")
    return int(match[1])


def make_peer(connection: int, key: bytes) -> Peer:
    """Return the peer with that connection number and the credentials *key*; after a credential prefix the last ones are its own.

    Raises:
        ProtocolError: EPROTO if *key* is not ``!/cred/<gid>/<uid>/<pid>``, with or without a prefix.
    """
    match = _OWN.fullmatch(key)
    if match is None:
        raise ProtocolError(ErrorCode.EPROTO, f"invalid credentials: {key[:64]!r}")
    gid, uid, pid = (int(digits) for digits in match.groups())
    return Peer(connection, uid, gid, pid, key)


def parse_sender(key: bytes) -> Peer:
    """Return the sender in ``!/from/<id>/<cred>``. Raises ProtocolError (EPROTO) if *key* has another form."""
    match = _SENDER.fullmatch(key)
    if match is None:
        raise ProtocolError(ErrorCode.EPROTO, f"invalid sender: {key[:64]!r}")
    return make_peer(int(match[1]), match[2])
