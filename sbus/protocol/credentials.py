"""Credentials of clients, and the private keys that they give access to. Spec: sbus-protocol(7) §4 to §6.

The bus reads :class:`Credentials` from the kernel. A client gets those of another connection from the bus: :class:`Peer`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from sbus.protocol import controls
from sbus.protocol.errors import ErrorCode, ProtocolError
from sbus.protocol.keys import SECRET_HEAD, connection_address, text_of

MAX_NAME_BYTES = 64
"""Longest name of a connection."""


def parse_name(payload: bytes) -> str:
    """Return the name of a connection in *payload*; empty for none.

    Raises:
        ProtocolError: EINVAL unless it is at most 64 bytes of printable UTF-8.
    """
    try:
        name = payload.decode()
    except UnicodeDecodeError:
        name = "\0"
    if len(payload) > MAX_NAME_BYTES or not name.isprintable():
        raise ProtocolError(ErrorCode.EINVAL, f"the name of a connection must be at most {MAX_NAME_BYTES} bytes of printable UTF-8")
    return name


_IDS = re.compile(rb"([0-9]*)/([0-9]*)/([0-9]*)/(.*)", re.DOTALL)
_PREFIX = re.compile(rb"!/cred/[0-9]+/[0-9]+/[0-9]+(?:/!/cred/[0-9]+/[0-9]+/[0-9]+)*")


# Limited, because int() is slow for very long numbers: a connection number has at most 20 digits, an id 10.
_ID = rb"([0-9]{1,10})"
_CHAIN = rb"(?:!/cred/[0-9]{1,10}/[0-9]{1,10}/[0-9]{1,10}/)*!/cred/" + b"/".join([_ID] * 3)
_OWN = re.compile(_CHAIN)
_SENDER = re.compile(re.escape(controls.FROM) + rb"([0-9]{1,20})/(" + _CHAIN + rb")(?:/((?!!/cred/).+))?", re.DOTALL)

_SENT = re.compile(rb"(" + _CHAIN + rb")(/(?!!/cred/)[!#-\[\]-~]+/!/cred/[0-9]{1,10}/[0-9]{1,10}/[0-9]{1,10})?")

_LOCAL_ORIGIN = re.compile(rb"!/[A-Za-z0-9_-]{1,64}/!/cred/" + b"/".join([_ID] * 3))
"""One word before the credentials: a service of this host. Origins of other hosts have more, ``!/host/<name>/!/cred/``."""

UNKNOWN_ID = -1
"""Replaces an unknown uid, gid or pid: no user, group or process has this number."""

UNSEEN_PID = 0
"""The process id of all peers outside the pid namespace of the bus, pid_namespaces(7)."""


class Credentials(NamedTuple):
    """The credentials of a peer at the moment of its connect(2), from the kernel: SO_PEERCRED and SO_PEERGROUPS, unix(7).

    ``groups`` are the supplementary groups; ``gid`` may or may not be among them. ``unit`` is the unit of the system's service manager that
    the process was in, such as ``nginx.service``; empty: it was in none; None: that is not known, or not yet.
    """

    pid: int
    uid: int
    gid: int
    groups: frozenset[int] = frozenset()
    unit: str | None = None

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
        """Return whether every named id is that of the peer; a gid may also be a supplementary group.

        Process id 0 is that of every process that the bus cannot see, so it names none.
        """
        return (
            (self.gid is None or self.gid == credentials.gid or self.gid in credentials.groups)
            and (self.uid is None or self.uid == credentials.uid)
            and (self.pid is None or (self.pid == credentials.pid and self.pid != UNSEEN_PID))
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


@dataclass(frozen=True, slots=True)
class Peer:
    """A connection of the bus, and its credentials from the kernel when it connected.

    ``key`` are the credentials in the form of ``!/cred/whoami``, so ``key + "/x"`` is a private key of exactly that process.

    If the connection passes on a message of others, ``origin`` says whose, such as ``!/host/alpha/!/cred/1000/1000/19211``. The bus
    verifies only that the connection may say so. Then uid, gid and pid are unknown, -1, because the author is not a user of this host, and
    ``key`` ends with the origin. Private keys made of it reach only the connection that passes messages on; it is the :attr:`voucher`.
    """

    connection: int
    uid: int
    gid: int
    pid: int
    key_bytes: bytes
    origin_bytes: bytes = b""

    @property
    def key(self) -> str:
        """The credentials as text."""
        return text_of(self.key_bytes)

    @property
    def origin(self) -> str:
        """The origin as text; empty if the peer is a connection itself."""
        return text_of(self.origin_bytes)

    @property
    def voucher(self) -> Peer | None:
        """The connection that passes on the messages of this peer, with its own credentials; None if the peer is a connection itself."""
        return make_peer(self.connection, self.key_bytes[: -len(self.origin_bytes) - 1]) if self.origin_bytes else None

    @property
    def address(self) -> str:
        """The address of this connection: ``!/conn/<id>/``. Keys under it reach no other."""
        return text_of(self.address_bytes)

    @property
    def address_bytes(self) -> bytes:
        """The address as bytes."""
        return connection_address(self.connection)


def remote_peer(relay: Peer, twin: int) -> Peer:
    """Return the peer for a caller on the remote host *twin*, through *relay*: not a user of this host, with credentials of that host.

    Clients can neither publish nor subscribe to ``!/twin/<twin>/``, so a private key made of them reaches no client.
    """
    return Peer(relay.connection, UNKNOWN_ID, UNKNOWN_ID, UNKNOWN_ID, b"!/twin/%d/%b" % (twin, relay.key_bytes))


def split_sender(sender: bytes) -> tuple[bytes, bytes] | None:
    """Return the credentials in ``<cred>`` or ``<cred>/<origin>``, and the origin, for which that connection vouches, or nothing.

    None: *sender* has another form. It is what follows ``!/from/<id>/`` in a message.
    """
    match = _SENT.fullmatch(sender)
    return (match[1], (match[5] or b"")[1:]) if match else None


def local_author(origin: bytes) -> Credentials | None:
    """Return the credentials of the process of this host for which *origin* stands, such as ``!/store/!/cred/1000/1000/19211``.

    None: it is of another host, or empty.
    """
    match = _LOCAL_ORIGIN.fullmatch(origin)
    if match is None:
        return None
    gid, uid, pid = (int(digits) for digits in match.groups())
    return Credentials(pid, uid, gid)


def unknown_peer(connection: int) -> Peer:
    """Return a connection of which only the number is known."""
    return Peer(connection, UNKNOWN_ID, UNKNOWN_ID, UNKNOWN_ID, b"")


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


def vouched_peer(voucher: Peer, origin: bytes) -> Peer:
    """Return the peer for the author of messages that *voucher* passes on: not a user of this host."""
    return Peer(voucher.connection, UNKNOWN_ID, UNKNOWN_ID, UNKNOWN_ID, voucher.key_bytes + b"/" + origin, origin)


def parse_sender(key: bytes) -> Peer:
    """Return the sender in ``!/from/<id>/<cred>``, or the author in ``!/from/<id>/<cred>/<origin>``, for whom the sender vouches.

    Raises:
        ProtocolError: EPROTO if *key* has another form.
    """
    match = _SENDER.fullmatch(key)
    if match is None:
        raise ProtocolError(ErrorCode.EPROTO, f"invalid sender: {key[:64]!r}")
    sender = make_peer(int(match[1]), match[2])
    return vouched_peer(sender, match[6]) if match[6] else sender


def _parse_id(digits: bytes) -> int | None:
    """Return an id, None for an empty one, and -1, which no peer has, for an id of more than 32 bits."""
    if not digits:
        return None
    # int() of a very long string of digits takes time, and raises; a valid id has at most ten digits.
    significant = digits.lstrip(b"0") or b"0"
    return int(significant) if len(significant) <= 10 else -1
