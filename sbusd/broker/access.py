"""Access: the users that may connect, the patterns that a client may subscribe to, and the keys that it may publish to.

What the rules of the configuration allow is decided in `sbusd.broker.policy`.

Spec: sbus-protocol(7) §3 to §5, sbusd.toml(5), also allowed_users and admins.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from sbus.protocol.credentials import UNSEEN_PID, Credentials, parse_secret_pattern
from sbus.protocol.errors import ErrorCode, ProtocolError
from sbus.protocol.keys import ADDRESS_HEAD, EVENT_HEAD, SECRET_HEAD, KeySpace, Reach, connection_address
from sbus.protocol.printable import printable
from sbus_programs.config import Fault
from sbus_programs.config.files import PATH_MAX
from sbus_programs.config.rules import PolicyRule
from sbus_programs.config.settings import DaemonSettings
from sbus_programs.config.users import NO_ID as UNKNOWN_USER
from sbusd.broker.policy import Decision, Policy

NO_ID = -2
"""A pid or gid that no process has. A request about a user in general matches no rule or key for a particular process."""


@dataclass(frozen=True, slots=True)
class BusOwnership:
    """The uid that the bus runs as, the uids that may connect (None: all), and those that own it.

    ``ends_when_empty``: the bus stops when the last client has disconnected.
    """

    own_uid: int
    allowed: frozenset[int] | None
    owners: frozenset[int]
    ends_when_empty: bool = False
    protected: frozenset[int] = frozenset()
    """Users whose disconnection by the bus is logged as critical."""
    faulty_file: str = ""
    """The file whose fault leaves the users that may connect unknown, so that the bus admits none of them; empty without such a fault."""

    @classmethod
    def of(
        cls, settings: DaemonSettings, extra_users: tuple[int, ...] = (), *, ends_when_empty: bool = False, faults: Sequence[Fault] = ()
    ) -> BusOwnership:
        """Return the ownership by *settings* with *faults*, and the users of option ``-u``, for this process."""
        own = os.geteuid()
        named = frozenset(settings.allowed_users) | frozenset(extra_users)
        owners = frozenset({0, own}) | frozenset(settings.admins)
        allowed = named | {own} if named else None
        faulty = _faulty_file(faults) if UNKNOWN_USER in settings.allowed_users else ""
        return cls(own, allowed, owners, ends_when_empty, frozenset(settings.protected_users), faulty)

    def admits(self, uid: int) -> bool:
        """Return whether a user may connect."""
        return self.allowed is None or uid in self.allowed

    def denial(self, uid: int) -> str:
        """Return the reason for rejecting a user that may not connect."""
        if self.faulty_file:
            file = self.faulty_file
            return f"user {uid} is not admitted: the allowed users are unknown, because the bus cannot use {file}; see sbusd --check-config"
        return f"user {uid} is not admitted to this bus by its -u options and allowed_users"


def _faulty_file(faults: Sequence[Fault]) -> str:
    """Return the file that leaves the allowed users unknown: one that cannot be read at all, or that names unknown users."""
    guilty = [fault for fault in faults if "" in fault.denied or fault.reason.startswith("allowed_users")] or list(faults)
    return printable(str(guilty[0].file), PATH_MAX) if guilty else ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A decision: ``code`` is the error for the client, None if access is allowed; ``reason`` is for people.

    ``rule`` is the administrator's rule that decided, or None if the protocol did.
    """

    code: ErrorCode | None
    reason: str
    rule: PolicyRule | None = None

    @property
    def is_allowed(self) -> bool:
        """Whether access is allowed."""
        return self.code is None


_ORDINARY = Verdict(None, "an ordinary key")


@dataclass(slots=True)
class AccessRules:
    """The rules of one bus: its keys, the maximum length of a key or pattern in bytes, and the administrator's policy.

    A reload replaces the policy, for all that have these rules; the rest stays.
    """

    keyspace: KeySpace
    key_bytes: int
    policy: Policy = field(default_factory=Policy)

    def publication(self, key: bytes, credentials: Credentials) -> Verdict:
        """Return whether a client with *credentials* may publish to *key*. The switch decides the same itself, without reasons."""
        if len(key) > self.key_bytes:
            return Verdict(ErrorCode.EMSGSIZE, f"the key has {len(key)} bytes, at most {self.key_bytes} are valid")
        if not self.keyspace.is_publishable(key):
            return Verdict(ErrorCode.EPERM, "clients cannot publish to this reserved key")
        return self._ruled(self.policy.publication(self.keyspace, key, credentials), "publish", "no rule restricts publishing to this key")

    def loss_report(self, pattern: bytes, credentials: Credentials) -> Verdict:
        """Return whether a client with *credentials* may report a loss to the holders of *pattern*: may publish to a key that matches."""
        if len(pattern) > self.key_bytes:
            return Verdict(ErrorCode.EMSGSIZE, f"the pattern has {len(pattern)} bytes, at most {self.key_bytes} are valid")
        inner = self.keyspace.inner_key(pattern)
        namespaces = [self.keyspace.namespace(each) for each in (pattern, inner) if each is not None]
        is_nested = inner is not None and inner.startswith(ADDRESS_HEAD)
        if is_nested or any(each is not None and not each.public for each in namespaces):
            return Verdict(ErrorCode.EPERM, "clients cannot publish to the reserved keys that the pattern matches")
        whole = self.policy.loss_report(Reach(self.keyspace, pattern), credentials)
        if inner is not None and whole.is_allowed:
            after = self.policy.loss_report(Reach(self.keyspace, inner), credentials)
            whole = whole if after.rule is None else after
        return self._ruled(whole, "publish", "no rule restricts publishing to these keys")

    def subscription(self, pattern: bytes, credentials: Credentials, connection: int = 0) -> Verdict:
        """Return whether a client with *credentials* may subscribe to *pattern* on *connection*; connection 0 has no address."""
        verdict = self._by_protocol(pattern, credentials, connection)
        if verdict.code is not None or not self.policy.rules:
            return verdict
        return self._ruled(self.policy.subscription(Reach(self.keyspace, pattern), credentials), "subscribe", verdict.reason)

    def _ruled(self, decision: Decision, action: Literal["publish", "subscribe"], otherwise: str) -> Verdict:
        """Return the verdict of a rule about *action*. If no rule has decided, access is allowed for the reason *otherwise*."""
        if decision.rule is None:
            return Verdict(None, otherwise)
        if decision.is_allowed:
            return Verdict(None, f"allowed by {decision.rule.name}", decision.rule)
        return Verdict(ErrorCode.EPERM, self.policy.refusal_reason(decision.rule, action), decision.rule)

    def opens(self, key: bytes, credentials: Credentials) -> bool:
        """Return whether a private *key* matches *credentials*, regardless of the policy."""
        try:
            return parse_secret_pattern(key, self.keyspace.prefix).opens_to(credentials)
        except ProtocolError:
            return False

    def names_process(self, pattern: bytes) -> bool:
        """Return whether an allowed *pattern* is one for private keys of one process, and so ends with it."""
        if not pattern.startswith(SECRET_HEAD) or self.keyspace.namespace(pattern) is None:
            return False
        return parse_secret_pattern(pattern, self.keyspace.prefix).pid is not None

    def _by_protocol(self, pattern: bytes, credentials: Credentials, connection: int) -> Verdict:
        """Return the protocol's decision on a subscription. No rule can allow what it denies."""
        if len(pattern) > self.key_bytes:
            return Verdict(ErrorCode.EMSGSIZE, f"the pattern has {len(pattern)} bytes, at most {self.key_bytes} are valid")
        if self.keyspace.namespace(pattern) is None:
            return _ORDINARY
        if pattern.startswith(SECRET_HEAD):
            return self._secret(pattern, credentials)
        if pattern.startswith(EVENT_HEAD):
            return Verdict(None, "an event of the bus, sent to each client that may see it")
        if pattern.startswith(ADDRESS_HEAD):
            return _addressed(pattern, connection)
        own = "their own !/cred/ and !/conn/, and to !/event/"
        return Verdict(ErrorCode.EPERM, f"keys that begin with !/ are reserved; clients can subscribe only to {own}")

    def _secret(self, pattern: bytes, credentials: Credentials) -> Verdict:
        """Return the protocol's decision on a subscription to a private key."""
        try:
            secret = parse_secret_pattern(pattern, self.keyspace.prefix)
        except ProtocolError as error:
            return Verdict(error.code, error.words)
        if secret.pid == credentials.pid == UNSEEN_PID:
            words = "the bus does not see this process, and process id 0 is that of all such processes: omit it from the private key"
            return Verdict(ErrorCode.EACCES, words)
        if not secret.opens_to(credentials):
            return Verdict(ErrorCode.EACCES, f"the private key is not for {self._described(credentials)}")
        return Verdict(None, "the private key matches the credentials of the client")

    def _described(self, credentials: Credentials) -> str:
        """Return *credentials* as the beginning of private keys, or in words if they are not those of a process."""
        if credentials.uid == NO_ID:
            return "every user"
        if credentials.pid == NO_ID:
            return f"a new process of user {credentials.uid}"
        return credentials.key(self.keyspace.prefix).decode()


def _addressed(pattern: bytes, connection: int) -> Verdict:
    """Return whether a connection may subscribe to a pattern under an address."""
    if connection and pattern.startswith(connection_address(connection)):
        return Verdict(None, "the address is that of the connection")
    return Verdict(ErrorCode.EPERM, "a connection can subscribe only to its own address; CMSG !/conn/whoami returns it")
