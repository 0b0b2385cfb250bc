"""Refused requests: each has a code, a reason for the client, and a counter. Spec: sbus-blob(8), "Errors"."""

from __future__ import annotations

import enum


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
