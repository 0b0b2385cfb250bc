"""Which patterns a client may subscribe to, and which keys it may publish to. Spec: sbus-protocol(7) §3 to §5."""

from __future__ import annotations

from dataclasses import dataclass

from sbusd.protocol.credentials import Credentials, parse_secret_pattern
from sbusd.protocol.errors import ErrorCode, ProtocolError
from sbusd.protocol.keys import SECRET_HEAD, KeySpace


@dataclass(frozen=True, slots=True)
class Verdict:
    """A decision: ``code`` is None where it is allowed, else what the client is told; ``reason`` is for people, always."""

    code: ErrorCode | None
    reason: str

    @property
    def is_allowed(self) -> bool:
        """Whether it is allowed."""
        return self.code is None


_ALLOWED = Verdict(None, "an ordinary key")


@dataclass(frozen=True, slots=True)
class Acceptance:
    """The rules of one bus: its keys, and ``key_bytes``, the longest key or pattern."""

    keyspace: KeySpace
    key_bytes: int

    def publication(self, key: bytes) -> Verdict:
        """Return whether a client may publish to *key*: what the switch decides for itself, in words."""
        if len(key) > self.key_bytes:
            return Verdict(ErrorCode.EMSGSIZE, f"key of {len(key)} bytes; the longest is {self.key_bytes}")
        if not self.keyspace.is_publishable(key):
            return Verdict(ErrorCode.EPERM, "clients may not publish to this reserved key")
        return Verdict(None, "anyone may publish there")

    def subscription(self, pattern: bytes, credentials: Credentials) -> Verdict:
        """Return whether a client with *credentials* may subscribe to *pattern*."""
        if len(pattern) > self.key_bytes:
            return Verdict(ErrorCode.EMSGSIZE, f"pattern of {len(pattern)} bytes; the longest is {self.key_bytes}")
        if self.keyspace.namespace(pattern) is None:
            return _ALLOWED
        if not pattern.startswith(SECRET_HEAD):
            return Verdict(ErrorCode.EPERM, "keys that begin with !/ are reserved; clients may subscribe to their own !/cred/ alone")
        try:
            secret = parse_secret_pattern(pattern, self.keyspace.prefix)
        except ProtocolError as error:
            return Verdict(error.code, error.words)
        if not secret.opens_to(credentials):
            return Verdict(ErrorCode.EACCES, f"the secret key is not for {credentials.key(self.keyspace.prefix).decode()}")
        return Verdict(None, "the secret key is the client's own")
