"""The errors of a client. Each is an :class:`SbusError` and the builtin beside it, and carries its facts as fields.

::

    SbusError
    ├── ProtocolError (ValueError)      bytes or an address that sbus-protocol(7) does not allow: a key with a NUL, …
    │   └── BadAddressError             an address that names no socket
    ├── NoBus (ConnectionError)         nobody to connect to: no socket there, refused, no permission
    ├── Closed (RuntimeError)           you closed it: the bus, or the subscription
    ├── Disconnected (ConnectionError)  the bus closed it, or went away
    ├── RemoteRefusal (RuntimeError)    the bus said no: ``CMSG !/bus/error``
    ├── Unanswered (RuntimeError)       a control message that the bus does not answer
    ├── Unsupported (RuntimeError)      the bus is older than what was asked for
    ├── AnswerLost (RuntimeError)       the bus discarded an answer, because this client reads too slowly
    ├── TimedOut (TimeoutError)         the bus did not do it in time
    │   └── CallTimeout                 a service did not answer in time
    ├── NoRecipient (LookupError)       nobody serves that command, so nobody has run it
    ├── PeerDisconnected (ConnectionError)  who was to answer has gone, and may have run it
    ├── RemoteError (RuntimeError)      the service answered that it could not
    ├── InboxFull (BufferError)         a subscription that nobody reads is in the way (``Overflow.BLOCK``)
    ├── PayloadTooLarge (ValueError)    a packet that the socket, or the protocol, cannot carry
    └── NotSubscribed (LookupError)     no subscription holds that pattern
"""

from __future__ import annotations

import errno as errnos
import os
from collections.abc import Callable

from sbusd.protocol.errors import BadAddressError, ErrorCode, ProtocolError, SbusError
from sbusd.protocol.peers import Peer

__all__ = [
    "AnswerLost",
    "BadAddressError",
    "CallTimeout",
    "Closed",
    "Disconnected",
    "ErrorCode",
    "InboxFull",
    "NoBus",
    "NoRecipient",
    "NotSubscribed",
    "PayloadTooLarge",
    "PeerDisconnected",
    "ProtocolError",
    "RemoteError",
    "RemoteRefusal",
    "SbusError",
    "TimedOut",
    "Unanswered",
    "Unsupported",
    "disconnection",
    "no_bus",
    "rejection",
]


class NoBus(SbusError, ConnectionError):
    """There is nobody to connect to. Not raised once a connection has been made: see :class:`Disconnected`."""

    def __init__(self, address: str, reason: str, errno: int | None = None) -> None:
        super().__init__(f"cannot connect to {address}: {reason}")
        self.address = address
        self.reason = reason
        self.errno = errno


class Closed(SbusError, RuntimeError):
    """You closed it. ``what`` is ``"the bus"`` or ``"the subscription"``."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} is closed")
        self.what = what


class Disconnected(SbusError, ConnectionError):
    """The bus closed the connection, or went away.

    ``refusal`` is what the bus said last, if its last packet was an ``!/bus/error``: the reason.
    ``fault`` names a packet that no bus sends, after which the client itself gave up the connection.
    """

    def __init__(self, address: str, refusal: RemoteRefusal | None = None, fault: str | None = None) -> None:
        because = f": {refusal.said}" if refusal else f": {fault}" if fault else ""
        super().__init__(f"disconnected from {address}{because}")
        self.address = address
        self.refusal = refusal
        self.fault = fault


class RemoteRefusal(SbusError, RuntimeError):
    """The bus refused something. Spec: sbus-protocol(7) §8.

    ``code`` is None if this version does not know it; ``words`` are the bus's own. ``request`` is what was refused, as far as that
    is certain: empty for a packet that nobody waited for, such as a publication.
    """

    def __init__(self, code: ErrorCode | None, words: str, request: str = "") -> None:
        self.code = code
        self.words = words
        self.request = request
        super().__init__(f"the bus refused {request}: {self.said}" if request else f"the bus refused a packet: {self.said}")

    @property
    def said(self) -> str:
        """What the bus said, code and words, as one line of printable text."""
        line = f"{self.code.name} {self.words}" if self.code else self.words
        return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in line)


class Unanswered(SbusError, RuntimeError):
    """The bus took a control message and did not answer it, so it is one of those to ``tell``, or not known to this bus."""

    def __init__(self, request: str) -> None:
        super().__init__(f"the bus sends no response to {request}; send it with tell()")
        self.request = request


class Unsupported(SbusError, RuntimeError):
    """The bus is of a version that does not know ``feature``; *advice* says what to do."""

    def __init__(self, feature: str, advice: str) -> None:
        super().__init__(f"the bus does not support {feature}; restart it with a newer sbusd, or {advice}")
        self.feature = feature


class AnswerLost(SbusError, RuntimeError):
    """The bus discarded packets for this client, an answer perhaps among them: whether the request was done is not known."""

    def __init__(self, request: str) -> None:
        super().__init__(f"the response to {request} may be lost: this client reads too slowly; send the request again")
        self.request = request


class TimedOut(SbusError, TimeoutError):
    """``what`` took longer than ``seconds``."""

    def __init__(self, what: str, seconds: float) -> None:
        super().__init__(f"{what} took longer than {seconds:g} s")
        self.what = what
        self.seconds = seconds


class InboxFull(SbusError, BufferError):
    """A full subscription with ``Overflow.BLOCK`` stops the reading that this call waits for, and only the caller can empty it.

    ``patterns`` are that subscription's, ``packets`` what waits in it.
    """

    def __init__(self, patterns: tuple[bytes, ...], packets: int) -> None:
        names = " ".join(repr(pattern)[1:] for pattern in patterns)
        super().__init__(f"the subscription to {names} is full: {packets} packets unread; read it, or use Overflow.DISCARD or a second Bus")
        self.patterns = patterns
        self.packets = packets


class PayloadTooLarge(SbusError, ValueError):
    """A packet of ``size`` bytes, its head and key included; ``limit`` is the largest that this connection can send."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(f"packet too long: {size} bytes, this connection can send at most {limit}")
        self.size = size
        self.limit = limit


class NotSubscribed(SbusError, LookupError):
    """No subscription of this bus object holds ``pattern``."""

    def __init__(self, pattern: bytes) -> None:
        super().__init__(f"not subscribed to {repr(pattern)[1:]}")
        self.pattern = pattern


class CallTimeout(TimedOut):
    """No answer came in time from those who serve ``command``: ``callees``, still connected. Whether they have run it is not known."""

    def __init__(self, command: str, seconds: float, callees: tuple[Peer, ...] = ()) -> None:
        super().__init__(f"the response to {command!r}{_from(callees)}", seconds)
        self.command = command
        self.callees = callees


class NoRecipient(SbusError, LookupError):
    """Nobody serves ``command``, or the one ``member`` that was called does not: known at once, and nobody has run it."""

    def __init__(self, command: str, member: Peer | None = None) -> None:
        where = "" if member is None else f" at {member.address.decode('ascii')}"
        super().__init__(f"no service for {command!r}{where}")
        self.command = command
        self.member = member


class PeerDisconnected(SbusError, ConnectionError):
    """All who were to answer, ``callees``, have gone: known at once. Whether they have run ``command`` before is not known."""

    def __init__(self, command: str, callees: tuple[Peer, ...] = ()) -> None:
        super().__init__(f"no response to {command!r}{_from(callees)}: disconnected")
        self.command = command
        self.callees = callees


class RemoteError(SbusError, RuntimeError):
    """The service answered ``command`` with an error. ``words`` are its own: a stranger's, so show them with care."""

    def __init__(self, command: str, words: str, callee: Peer | None = None) -> None:
        super().__init__(f"{command!r} failed: {words}")
        self.command = command
        self.words = words
        self.callee = callee


def _from(peers: tuple[Peer, ...]) -> str:
    """Return who *peers* are, the first few."""
    named = ", ".join(f"connection {peer.connection} of user {peer.uid}" for peer in peers[:3])
    return f" from {named}{' and others' if len(peers) > 3 else ''}" if peers else ""


def disconnection(address: str, refusal: RemoteRefusal | None = None, fault: str | None = None) -> Callable[[], SbusError]:
    """Return what makes the error of one connection that is gone, anew for each who is told: an exception collects its tracebacks."""
    return lambda: Disconnected(address, refusal, fault)


def rejection(address: str, error: RemoteRefusal | Unsupported) -> Callable[[], SbusError]:
    """Return what makes the error of a connection that was given up because a new bus does not take what the one before it took."""
    return disconnection(address, error) if isinstance(error, RemoteRefusal) else disconnection(address, fault=str(error))


def no_bus(address: str, error: OSError) -> NoBus:
    """Return what the failure of connect(2) to *address* means, and what to do about it."""
    number = error.errno or 0
    reason = (_REASONS.get(number) or os.strerror(number)).format(start=f"{systemctl(address)} start sbus.socket")
    return NoBus(address, reason, number)


def systemctl(address: str) -> str:
    """Return the command that has power over the bus at *address*: the system's, or that of the user whose folder it is in."""
    folder = os.environ.get("XDG_RUNTIME_DIR") or "/run/user"
    return "systemctl --user" if address.startswith((f"{folder}/", "/run/user/")) else "systemctl"


_REASONS = {
    errnos.ENOENT: "no such socket; start the bus ({start}) or give another address",
    errnos.ECONNREFUSED: "no process listens on this socket; start the bus ({start})",
    errnos.EACCES: "permission denied; check the modes of the socket and of its directory",
    errnos.EPERM: "a security policy of this machine denies it",
    errnos.EPROTOTYPE: "the socket is not of type SEQPACKET, so it is not a bus",
    errnos.ENOTSOCK: "not a socket",
    errnos.ENOTDIR: "a component of the path is not a directory",
    errnos.EAGAIN: "the bus did not accept the connection in time; too many clients are waiting",
}
"""What connect(2) on a Unix socket says, unix(7), in words for the person who must act."""
