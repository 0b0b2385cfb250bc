"""The errors of a client. Each is an :class:`SbusError` and also the builtin named beside it, and has its facts as fields.

::

    SbusError
    ├── ProtocolError (ValueError)      bytes or an address that sbus-protocol(7) forbids, such as a key with a NUL
    │   └── BadAddressError             an address that names no socket
    ├── NoBus (ConnectionError)         no connection to a bus: no socket, refused, no permission
    ├── Closed (RuntimeError)           you closed it: the bus, or the subscription
    ├── Disconnected (ConnectionError)  the bus closed the connection, or ended
    │   └── ForkedError                 the connection belongs to the parent process
    ├── RemoteRefusal (RuntimeError)    the bus refused a request: ``CMSG !/bus/error``
    ├── Unanswered (RuntimeError)       a control message that the bus does not answer
    ├── Unsupported (RuntimeError)      the bus is too old for the request
    ├── AnswerLost (RuntimeError)       the bus discarded a reply, because this client reads too slowly
    ├── TimedOut (TimeoutError)         the bus did not finish in time
    │   └── CallTimeout                 no service responded in time
    ├── NoRecipient (LookupError)       no service has the command, so it was not run
    ├── PeerDisconnected (ConnectionError)  the service disconnected, and may have run it
    ├── RemoteError (RuntimeError)      the service responded with an error
    ├── InboxFull (BufferError)         an unread subscription stops the reading (``Overflow.BLOCK``)
    ├── PayloadTooLarge (ValueError)    a packet that the socket, or the protocol, cannot carry
    ├── NotSubscribed (LookupError)     no subscription has that pattern
    ├── BlobRefused (RuntimeError)      sbus-blob refused a request, or a blob is gone
    ├── BlobTooLarge (OSError)          a file is larger than the quota of this user for blobs
    └── NoBlobService (ConnectionError) no connection to sbus-blob
"""

from __future__ import annotations

import errno as errnos
import os
import re
import stat
from collections.abc import Callable

from sbus.protocol.addresses import ABSTRACT_HEAD
from sbus.protocol.credentials import Peer
from sbus.protocol.errors import BadAddressError, ErrorCode, ProtocolError, SbusError
from sbus.protocol.keys import text_of
from sbus.protocol.memberships import split_stored
from sbus.protocol.packets import parse_error, refused_key
from sbus.protocol.printable import printable

__all__ = [
    "AnswerLost",
    "BadAddressError",
    "BlobRefused",
    "BlobTooLarge",
    "CallTimeout",
    "Closed",
    "Disconnected",
    "ErrorCode",
    "ForkedError",
    "InboxFull",
    "NoBlobService",
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
    "refusal_of",
    "rejection",
]


class NoBus(SbusError, ConnectionError):
    """There is no bus to connect to, or it does not accept the connection.

    After the first connection, :class:`Disconnected` is raised instead.
    """

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
    """The bus closed the connection, or ended.

    ``refusal`` is the reason, if the last packet of the bus was an ``!/bus/error``.
    ``fault`` is the reason if the client itself closed the connection, such as a malformed packet of the bus.
    """

    def __init__(self, address: str, refusal: RemoteRefusal | None = None, fault: str | None = None) -> None:
        because = f": {refusal.said}" if refusal else f": {fault}" if fault else ""
        super().__init__(f"disconnected from {address}{because}")
        self.address = address
        self.refusal = refusal
        self.fault = fault


class ForkedError(Disconnected):
    """The connection was made before fork(2) and belongs to the parent process. Connect in the child."""

    def __init__(self, address: str) -> None:
        SbusError.__init__(self, f"the connection to {address} belongs to the parent process: connect again after fork()")
        self.address = address
        self.refusal = self.fault = None


class RemoteRefusal(SbusError, RuntimeError):
    """The bus refused a packet. Spec: sbus-protocol(7) §8.

    ``code`` is None if this version does not know it; ``words`` are those of the bus: the rule that refused it, with its comment, if a
    rule did. ``request`` is the refused request, if that is certain: it is empty for a packet that no call waited for, such as a
    publication. ``key`` is that of a refused message, or its first 1024 bytes; None for anything else, and from an older bus. After
    EACCES, EPROTO, ENOBUFS and EMFILE the bus closes the connection.
    """

    def __init__(self, code: ErrorCode | None, words: str, request: str = "", key: str | None = None) -> None:
        self.code = code
        self.words = words
        self.request = request
        self.key = key
        what = request or "a packet"
        if key is not None:
            what = f"{request} to {_shown(key)}" if request else f"a message to {_shown(key)}"
        ending = "; the bus has closed the connection" if request and code is not None and code.disconnects else ""
        super().__init__(f"the bus refused {what}: {self.said}{ending}")

    @property
    def said(self) -> str:
        """Code and words of the bus, as one line of printable text."""
        line = f"{self.code.name} {self.words}" if self.code else self.words
        return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in line)


class Unanswered(SbusError, RuntimeError):
    """The bus accepted a control message and did not answer it: send it with ``tell``, or this bus does not know it."""

    def __init__(self, request: str) -> None:
        super().__init__(f"the bus sends no response to {request}; send it with tell()")
        self.request = request


class Unsupported(SbusError, RuntimeError):
    """The version of the bus does not support ``feature``; *advice* says what to do."""

    def __init__(self, feature: str, advice: str) -> None:
        super().__init__(f"the bus does not support {feature}; restart it with a newer sbusd, or {advice}")
        self.feature = feature


class AnswerLost(SbusError, RuntimeError):
    """The bus discarded packets for this client, perhaps a reply among them. It is not known whether the request was done."""

    def __init__(self, request: str) -> None:
        super().__init__(f"the response to {request} may be lost: this client reads too slowly; send the request again")
        self.request = request


class TimedOut(SbusError, TimeoutError):
    """``what`` took longer than ``seconds``. ``reason`` says why, if it was not sent; otherwise it is empty."""

    def __init__(self, what: str, seconds: float, reason: str = "") -> None:
        super().__init__(f"{what} took longer than {seconds:g} s{': ' if reason else ''}{reason}")
        self.what = what
        self.seconds = seconds
        self.reason = reason

    def without_connection(self, address: str) -> TimedOut:
        """Return the same error of a client that was connecting again."""
        return TimedOut(self.what, self.seconds, f"not connected to {address}, and nothing was sent")


class InboxFull(SbusError, BufferError):
    """A full subscription with ``Overflow.BLOCK`` stops the reading that this call waits for, and only the caller can empty it.

    ``patterns`` are those of the subscription, ``packets`` is the number of items queued in it.
    """

    def __init__(self, patterns: tuple[bytes, ...], packets: int) -> None:
        self.patterns = tuple(text_of(split_stored(pattern)[0]) for pattern in patterns)
        names = " ".join(map(repr, self.patterns))
        super().__init__(f"the subscription to {names} is full: {packets} packets unread; read it, or use Overflow.DISCARD or a second Bus")
        self.packets = packets


class PayloadTooLarge(SbusError, ValueError):
    """A packet of ``size`` bytes, including its verb and key, is larger than ``limit``, the largest that this connection can send.

    ``advice`` says how to send more; it is empty for what is not a publication, such as a call.
    """

    def __init__(self, size: int, limit: int, advice: str = "publish_blob() sends more") -> None:
        text = f"packet too long: {size} bytes, this connection can send at most {limit}"
        super().__init__(f"{text}; {advice}" if advice else text)
        self.size = size
        self.limit = limit
        self.advice = advice

    def without_advice(self) -> PayloadTooLarge:
        """Return the same error of a packet that is not a publication."""
        return PayloadTooLarge(self.size, self.limit, advice="")


class NotSubscribed(SbusError, LookupError):
    """No subscription of this bus object has ``pattern``."""

    def __init__(self, pattern: bytes) -> None:
        plain, group = map(text_of, split_stored(pattern))
        super().__init__(f"not subscribed to {plain!r}" + (f" in the group {group!r}" if group else ""))
        self.pattern = plain


class BlobRefused(SbusError, RuntimeError):
    """sbus-blob refused a request. ``code`` is that of errno(3), such as ENOENT for a blob that is gone; ``cause`` is its counter.

    ``reason`` is in words of the service. Spec: sbus-blob(8), "Errors".
    """

    def __init__(self, code: str, cause: str, reason: str) -> None:
        line = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in f"{code} {reason}")
        super().__init__(f"sbus-blob refused the request: {line}")
        self.code = code
        self.cause = cause
        self.reason = reason


class BlobTooLarge(SbusError, OSError):
    """A file has more than ``limit`` bytes, the quota of this user for blobs. ``errno`` is EFBIG. Nothing was published."""

    def __init__(self, limit: int, name: str) -> None:
        super().__init__(errnos.EFBIG, f"it has more than {limit} bytes, the quota of this user for blobs; see blob.toml(5)", name)
        self.limit = limit

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.limit, self.filename)

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}"


class NoBlobService(SbusError, ConnectionError):
    """No service for blobs listens at ``address``, or the connection to it has ended. Blobs that end with the connection are gone."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"cannot use sbus-blob at {address}: {reason}")
        self.address = address
        self.reason = reason


class CallTimeout(TimedOut):
    """No service of ``command`` responded in time. ``callees`` are still connected; it is not known whether they have run it.

    If ``is_sent`` is false, the request was not sent, and so it was not run.
    """

    def __init__(self, command: str, seconds: float, callees: tuple[Peer, ...] = (), *, reason: str = "", is_sent: bool = True) -> None:
        reason = reason or ("" if is_sent else "the bus did not respond, and the request was not sent")
        super().__init__(f"the response to {command!r}{_from(callees)}", seconds, reason)
        self.command = command
        self.callees = callees
        self.is_sent = is_sent


class MessagesMissing(SbusError):
    """Messages are missing from a subscription that was begun with ``on_gap=raise_missing``; ``item`` is the ``Gap`` or the like."""

    def __init__(self, item: object, words: str) -> None:
        super().__init__(words)
        self.item = item


class NoRecipient(SbusError, LookupError):
    """``command`` has no service, ``member`` does not serve it, or no relay runs for the host ``twin``. The command was not run.

    It is raised at once, unless sbus-trigger starts a service: then ``reason`` says why that failed.
    """

    def __init__(self, command: str, member: Peer | None = None, reason: str = "", twin: int | None = None) -> None:
        where = "" if member is None else f" at {member.address}"
        words = f"no service for {command!r}{where}{': ' if reason else ''}{printable(reason)}"
        if twin is not None:
            advice = "start it: systemctl start sbus-relay, or sbus-relay -C FILE for a bus of your own"
            words = f"cannot call {command!r} on host {twin}: sbus-relay is not running on this bus; {advice}"
        super().__init__(words)
        self.command = command
        self.member = member
        self.reason = reason
        self.twin = twin


class PeerDisconnected(SbusError, ConnectionError):
    """All ``callees`` have disconnected. Raised at once; it is not known whether they have run ``command`` before."""

    def __init__(self, command: str, callees: tuple[Peer, ...] = ()) -> None:
        super().__init__(f"no response to {command!r}{_from(callees)}: disconnected")
        self.command = command
        self.callees = callees


class RemoteError(SbusError, RuntimeError):
    """The service responded to ``command`` with an error. ``words`` are untrusted text of the service: escape them before printing."""

    def __init__(self, command: str, words: str, callee: Peer | None = None) -> None:
        super().__init__(f"{command!r} failed: {words}")
        self.command = command
        self.words = words
        self.callee = callee


class ServiceError(SbusError, RuntimeError):
    """Raise it in a handler: the caller gets its words, and nothing else."""


def _shown(key: str) -> str:
    """Return *key* for one line of text, the middle of a long one left out."""
    return repr(key if len(key) <= 128 else f"{key[:100]}…{key[-24:]}")


def _from(peers: tuple[Peer, ...]) -> str:
    """Return a description of the first few of *peers*."""
    named = ", ".join(f"connection {peer.connection}" + (f" of user {peer.uid}" if peer.key_bytes else "") for peer in peers[:3])
    return f" from {named}{' and others' if len(peers) > 3 else ''}" if peers else ""


def refusal_of(payload: bytes) -> RemoteRefusal:
    """Return the error that the payload of an ``!/bus/error`` describes."""
    key = refused_key(payload)
    return RemoteRefusal(*parse_error(payload), key=None if key is None else text_of(key))


def disconnection(address: str, refusal: RemoteRefusal | None = None, fault: str | None = None) -> Callable[[], SbusError]:
    """Return a function that makes the error of an ended connection: a new one for each call, because exceptions collect tracebacks."""
    return lambda: Disconnected(address, refusal, fault)


def rejection(address: str, error: RemoteRefusal | Unsupported) -> Callable[[], SbusError]:
    """Return a function that makes the error of a connection that ended because the bus refused what it had accepted before."""
    return disconnection(address, error) if isinstance(error, RemoteRefusal) else disconnection(address, fault=str(error))


def no_bus(address: str, error: OSError) -> NoBus:
    """Return the error for a failure of connect(2) to *address*, with advice."""
    number = error.errno or 0
    name = address.removeprefix(f"{ABSTRACT_HEAD}/")
    if number == errnos.ENOENT and name != address:
        return NoBus(address, f"{_coded_name(name)}; use the address that sbusd printed", number)
    if number == errnos.ENOENT and address.startswith(("unix:", "unix=", "tcp:")):
        return NoBus(address, "no such socket; an address is a path, without 'unix:' before it", number)
    # connect(2) reports a file, directory or device like a socket without a process.
    is_file = number == errnos.ECONNREFUSED and _is_not_socket(address)
    if number == errnos.ENOENT and _NO_PATH.search(address):
        return NoBus(address, "no such socket; an address is the path of a Unix socket, such as /run/sbus.socket", number)
    reason = _REASONS.get(errnos.ENOTSOCK if is_file else number) or os.strerror(number)
    if number == errnos.ECONNREFUSED and not is_file and _is_mounted(address):
        return NoBus(address, "this socket file is mounted, and is not the one of the bus any more; mount its directory instead", number)
    # Not "start": the socket unit may be active and have lost its path. A restart keeps the connections of a bus that runs.
    return NoBus(address, reason.format(start=f" ({systemctl(address)} restart sbus.socket)" if is_default(address) else ""), number)


def _is_not_socket(path: str) -> bool:
    """Return whether the file *path* is known, and not a socket."""
    try:
        return not stat.S_ISSOCK(os.stat(path).st_mode)
    except (OSError, ValueError):
        return False


def _is_mounted(path: str) -> bool:
    """Return whether the file *path* is a mount of its own, as in a container. Source: proc(5), ``/proc/PID/mountinfo``."""
    try:
        with open("/proc/self/mountinfo", "rb") as mounts:
            return any(line.split(b" ")[4:5] == [os.fsencode(os.path.realpath(path))] for line in mounts)
    except OSError:
        return False


def _coded_name(digits: str) -> str:
    """Return what is wrong with the last part of an address in hexadecimal, to which no socket belongs."""
    try:
        name = bytes.fromhex(digits)
    except ValueError:
        name = b""
    if not name:
        return f"{digits!r} is not an even number of hexadecimal digits"
    return f"no such socket; the digits are those of the path {printable(os.fsdecode(name), 128)!r}"


def is_default(address: str) -> bool:
    """Return whether *address* is that of the bus of the system or of this user. Without $XDG_RUNTIME_DIR, no bus is that of this user."""
    folder = _user_folder()
    return address == "/run/sbus.socket" or (bool(folder) and address == os.path.join(folder, "sbus.socket"))


def systemctl(address: str) -> str:
    """Return the command that controls the bus at *address*: that of the system, or of the user whose directory it is in."""
    folder = _user_folder()
    return "systemctl --user" if folder and address.startswith(os.path.join(folder, "")) else "systemctl"


def log_of(unit: str, address: str) -> str:
    """Return where the log of *unit*, a service of the bus at *address*, is: a command if systemd runs it, and else words."""
    if not is_default(address):
        return f"the log of {unit}"
    return f"journalctl {'--user ' if systemctl(address) != 'systemctl' else ''}-u {unit}"


def sbusctl(address: str) -> str:
    """Return the command that a user of this environment types for the bus at *address*."""
    if address == (os.environ.get("SBUS_ADDRESS") or "/run/sbus.socket"):
        return "sbusctl"
    if is_default(address):
        return f"sbusctl {'--system' if systemctl(address) == 'systemctl' else '--user'}"
    from shlex import quote  # noqa: PLC0415 - most clients never need it

    return f"sbusctl -a {printable(quote(address), 256)}"


def _user_folder() -> str:
    """Return the directory with the sockets of this user; empty if it is not known. Spec: pam_systemd(8)."""
    folder = os.environ.get("XDG_RUNTIME_DIR", "")
    return folder if folder.startswith("/") else ""


_NO_PATH = re.compile(r"^\s|\s$|^[a-z]+:|^[\w.-]+:\d+$")
"""What is in a URL, or in a host with a port, and rarely in a path."""

_REASONS = {
    errnos.ENOENT: "no such socket; start the bus{start} or give another address",
    errnos.ECONNREFUSED: "no process listens on this socket; start the bus{start}. If it runs, this file is of an earlier socket, such as "
    "one that is mounted into a container: mount its directory instead",
    errnos.EACCES: "permission denied; check the modes of the socket and of its directory",
    errnos.EPERM: "a security policy of this machine denies it",
    errnos.EPROTOTYPE: "the socket is not of type SEQPACKET, so it is not a bus",
    errnos.ENOTSOCK: "not a socket",
    errnos.ENOTDIR: "a component of the path is not a directory",
    errnos.EAGAIN: "the bus did not accept the connection in time; too many clients are waiting",
}
"""The errors of connect(2) on a Unix socket, unix(7), in words for users."""
