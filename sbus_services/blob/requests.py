"""Requests of clients, checked, and how they are refused. No I/O. Spec: sbus-blob(8), "Requests" and "Errors"."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from sbus.protocol.blobs import (
    ANYONE,
    DEFAULT_EXPIRE,
    DEFAULT_TYPE,
    MAX_PASS_EXPIRE,
    MAX_REQUEST_BYTES,
    MAX_USES,
    BlobRequestError,
    Recipient,
    is_host,
    is_media_type,
    is_ticket,
    parse_object,
    parse_recipient,
)


class Cause(enum.Enum):
    """The name of a counter, and the code that a client gets."""

    MALFORMED = ("malformed", "EPROTO")
    INVALID = ("invalid", "EINVAL")
    DESCRIPTORS = ("descriptors", "EPROTO")
    NOT_SEALED = ("not-sealed", "EINVAL")
    HUGE_PAGES = ("huge-pages", "EINVAL")
    SPARSE = ("sparse", "EINVAL")
    SIZE = ("size", "EINVAL")
    UNREADABLE = ("unreadable", "EACCES")
    QUOTA_BLOBS = ("quota-blobs", "EDQUOT")
    QUOTA_BYTES = ("quota-bytes", "EDQUOT")
    QUOTA_CONNECTIONS = ("quota-connections", "EDQUOT")
    QUOTA_REQUESTS = ("quota-requests", "EDQUOT")
    FULL = ("full", "EMFILE")
    NO_RIGHT = ("no-right", "EPERM")
    NOT_FOR_USER = ("not-for-user", "EACCES")
    OTHER_KIND = ("other-kind", "EINVAL")
    UNKNOWN_TICKET = ("unknown-ticket", "ENOENT")
    GUESSING = ("guessing", "EAGAIN")
    HANGING = ("hanging", "EAGAIN")
    GONE = ("gone", "ENOENT")
    NO_BUS = ("no-bus", "EAGAIN")
    NO_LINK = ("no-link", "EHOSTUNREACH")
    UNREACHABLE = ("unreachable", "EHOSTUNREACH")
    NOT_THERE = ("not-there", "ENOENT")
    NOT_PULLED = ("not-pulled", "EREMOTEIO")
    DIGEST = ("digest", "EBADMSG")
    QUOTA_PULLED = ("quota-pulled", "EDQUOT")

    def __init__(self, counter: str, code: str) -> None:
        self.counter = counter
        self.code = code


FATAL = frozenset({Cause.MALFORMED, Cause.DESCRIPTORS, Cause.QUOTA_CONNECTIONS, Cause.HANGING})
"""After these the service closes the connection: client and service may not agree about what was sent."""


class Refusal(Exception):  # noqa: N818 - a response, not a defect
    """A request is refused because of *cause*; *reason* is for people."""

    def __init__(self, cause: Cause, reason: str) -> None:
        super().__init__(reason)
        self.cause = cause
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Put:
    """Keep the descriptor of the packet. ``uses`` is None for any number; ``is_any`` for one that need not be a sealed memfd."""

    size: int
    type: str
    expire: float
    uses: int | None
    recipient: Recipient
    keep: bool
    is_any: bool


@dataclass(frozen=True, slots=True)
class Get:
    """Return a descriptor. ``is_any``: the client expects one that need not be a sealed memfd."""

    ticket: str
    is_any: bool
    host: str = ""
    """The host in the reference to the blob; empty: this one."""


@dataclass(frozen=True, slots=True)
class Drop:
    """End a blob of the same user."""

    ticket: str


@dataclass(frozen=True, slots=True)
class List:
    """List the blobs of the same user, those after ``after`` in the order of their tickets."""

    after: str


@dataclass(frozen=True, slots=True)
class Stats:
    """Return the counters."""


Request = Put | Get | Drop | List | Stats

_MEMBERS = {
    "put": {"size", "type", "expire", "uses", "for", "keep", "kind"},
    "get": {"ticket", "kind", "host"},
    "drop": {"ticket"},
    "list": {"after"},
    "stats": set[str](),
}


def parse_request(packet: bytes, max_expire: float) -> Request:
    """Return the request in *packet*. Raises Refusal."""
    if len(packet) > MAX_REQUEST_BYTES:
        raise Refusal(Cause.MALFORMED, f"the request is longer than {MAX_REQUEST_BYTES} bytes")
    try:
        value = parse_object(packet)
    except BlobRequestError as error:
        raise Refusal(Cause.MALFORMED, f"the request is {error}") from None
    name = value.pop("request", None)
    if not isinstance(name, str) or name not in _MEMBERS:
        raise Refusal(Cause.INVALID, "request must be put, get, drop, list or stats")
    if unknown := sorted(value.keys() - _MEMBERS[name]):
        raise Refusal(Cause.INVALID, f"unknown member of {name}: {unknown[0][:40]!r}")
    match name:
        case "put":
            return _put(value, max_expire)
        case "get":
            return _get(value)
        case "drop":
            return Drop(_ticket(value))
        case "list":
            return List(_ticket(value, "after") if "after" in value else "")
        case _:
            return Stats()


def _get(value: dict[str, object]) -> Get:
    """Return the request for a blob."""
    host, is_any = value.get("host", ""), _is_any(value)
    if not isinstance(host, str) or (host and not is_host(host)):
        raise Refusal(Cause.INVALID, "host must be the name of a host")
    if host and is_any:
        raise Refusal(Cause.INVALID, 'a descriptor of kind "any" is on this host; remove host')
    return Get(_ticket(value), is_any, host)


def _put(value: dict[str, object], max_expire: float) -> Put:
    """Return the request for a new blob."""
    is_any = _is_any(value)
    try:
        recipient = parse_recipient(value["for"]) if "for" in value else ANYONE
    except BlobRequestError as error:
        raise Refusal(Cause.INVALID, str(error)) from None
    kind, keep = value.get("type", DEFAULT_TYPE), value.get("keep", False)
    if not isinstance(kind, str) or not is_media_type(kind):
        raise Refusal(Cause.INVALID, "type must be a media type, such as image/png")
    if not isinstance(keep, bool):
        raise Refusal(Cause.INVALID, "keep must be true or false")
    longest = min(MAX_PASS_EXPIRE, max_expire) if is_any else max_expire
    expire = value.get("expire", min(DEFAULT_EXPIRE, longest))
    if isinstance(expire, bool) or not isinstance(expire, int | float) or not 0 < expire <= longest:
        raise Refusal(Cause.INVALID, f"expire must be a number of seconds up to {longest:g}")
    if not is_any:
        uses = None if value.get("uses") is None else _whole(value, "uses", 1, MAX_USES)
        return Put(_whole(value, "size", 0, (1 << 63) - 1), kind, float(expire), uses, recipient, keep, False)
    if recipient.kind not in ("uid", "conn"):
        raise Refusal(Cause.INVALID, 'a descriptor of kind "any" requires for with a uid or a conn')
    if value.get("uses", 1) != 1 or isinstance(value.get("uses"), bool):
        raise Refusal(Cause.INVALID, 'a descriptor of kind "any" has one use')
    return Put(0, kind, float(expire), 1, recipient, keep, True)


def _is_any(value: dict[str, object]) -> bool:
    """Return whether the descriptor may be of any kind."""
    kind = value.get("kind", "blob")
    if kind not in ("blob", "any"):
        raise Refusal(Cause.INVALID, 'kind must be "blob" or "any"')
    return kind == "any"


def _ticket(value: dict[str, object], name: str = "ticket") -> str:
    """Return the ticket in the member *name*."""
    ticket = value.get(name)
    if not isinstance(ticket, str) or not is_ticket(ticket):
        raise Refusal(Cause.INVALID, f"{name} must be a ticket: 26 characters a to z and 2 to 7")
    return ticket


def _whole(value: dict[str, object], name: str, least: int, most: int) -> int:
    """Return the whole number in the member *name*."""
    number = value.get(name)
    if isinstance(number, bool) or not isinstance(number, int) or not least <= number <= most:
        raise Refusal(Cause.INVALID, f"{name} must be a whole number from {least} to {most}")
    return number
