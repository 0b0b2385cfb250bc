"""Log records about clients and rejected connections. Spec: sbusd(8)."""

from __future__ import annotations

from sbus.protocol.credentials import Credentials
from sbus.protocol.errors import ErrorCode
from sbus_programs.config.rules import PolicyRule
from sbus_programs.systemd.log_records import Fact, LogMessage
from sbusd.broker import log_messages
from sbusd.broker.access import BusOwnership, Verdict
from sbusd.broker.log import BusLog
from sbusd.broker.quota_refusal import QuotaRefusal
from sbusd.broker.roster import Client
from sbusd.dataplane.contract import End, Refusal
from sbusd.dataplane.counters import ConnectionCounters

_MISBEHAVIOURS = (End.QUEUE_FULL, End.DESCRIPTORS, End.FRAME)
"""Ends of connections that the client's behaviour or mode has caused."""

_PEERS_OWN = (End.HANGUP, End.BROKEN)
"""Ends of connections that the bus has not caused."""


class ClientLog:
    """The records of one bus about its clients."""

    def __init__(self, journal: BusLog, ownership: BusOwnership) -> None:
        self._journal = journal
        self._protected = ownership.protected

    def set_ownership(self, ownership: BusOwnership) -> None:
        """Apply another list of protected users."""
        self._protected = ownership.protected

    def record(
        self, message: LogMessage, client: Client, *, key: bytes | None = None, error: Exception | None = None, **facts: Fact
    ) -> None:
        """Write a record about a client."""
        who = client.credentials
        self._journal.record(message, uid=who.uid, pid=who.pid, connection=client.connection, unit=who.unit, key=key, error=error, **facts)

    def ended(self, client: Client, end: End, counters: ConnectionCounters) -> None:
        """Write the records of a disconnect."""
        if end in _MISBEHAVIOURS:
            self.record(log_messages.CLIENT_MISBEHAVED, client, reason=_words(end))
        if self._journal.keeps(log_messages.CLIENT_DISCONNECTED):
            self.record(log_messages.CLIENT_DISCONNECTED, client, reason=end.name.lower(), **counters._asdict())
        if end not in _PEERS_OWN and client.credentials.uid in self._protected:
            self.record(log_messages.PROTECTED_USER_ENDED, client, reason=client.end_reason or _words(end))

    def subscription_refused(self, client: Client, pattern: bytes, verdict: Verdict) -> None:
        """Record a refused subscription. For audits, an attempt at another user's private key has its own message."""
        if verdict.rule is not None:
            self.record(log_messages.POLICY_REFUSED, client, key=pattern, packet="SUB", count=1, rule=verdict.rule.name)
        elif verdict.code is ErrorCode.EACCES:
            self.record(log_messages.SECRET_REFUSED, client, key=pattern, reason=verdict.reason)
        elif verdict.code is ErrorCode.EPERM:
            self.record(log_messages.RESERVED_KEY_REFUSED, client, key=pattern, packet="SUB", count=1)
        else:
            self.record(log_messages.TOO_LONG_REFUSED, client, key=pattern, packet="SUB", count=1, reason=verdict.reason)

    def publications_refused(self, client: Client, refusal: Refusal, key: bytes, count: int, rule: PolicyRule | None) -> None:
        """Record *count* messages that the switch has refused. *rule* is the one that denies *key*, if any does."""
        if refusal is Refusal.RESERVED:
            self.record(log_messages.RESERVED_KEY_REFUSED, client, key=key, packet="MSG", count=count)
        elif refusal is Refusal.POLICY:
            self.record(log_messages.POLICY_REFUSED, client, key=key, packet="MSG", count=count, rule=rule.name if rule else "a rule")
        else:
            self.record(log_messages.TOO_LONG_REFUSED, client, key=key, packet="MSG", count=count, reason=_words(refusal))

    def quota_refused(self, connection: int, who: Credentials, refusal: QuotaRefusal) -> None:
        """Record a refusal for a quota, if a record is due."""
        if refusal.unrecorded:
            self._journal.record(
                log_messages.QUOTA_REFUSED,
                uid=who.uid,
                pid=who.pid,
                connection=connection,
                quota=refusal.quota.value,
                count=refusal.unrecorded,
                holders=refusal.holders,
                reason=refusal.reason,
            )

    def credentials_unknown(self, connection: int, error: OSError) -> None:
        """Record a connection whose peer credentials the kernel does not report."""
        self._journal.record(log_messages.CREDENTIALS_UNKNOWN, connection=connection, reason=str(error))

    def user_rejected(self, connection: int, who: Credentials) -> None:
        """Record a connection of a user that is not admitted."""
        self._journal.record(log_messages.CLIENT_REFUSED, uid=who.uid, pid=who.pid, connection=connection)

    def rejected(self, connection: int, who: Credentials, reason: str) -> None:
        """Record a rejected connection, if its user is a protected one."""
        if who.uid in self._protected:
            self._journal.record(log_messages.PROTECTED_USER_ENDED, uid=who.uid, pid=who.pid, connection=connection, reason=reason)


def _words(value: Refusal | End) -> str:
    """Return the name of a value as words."""
    return value.name.lower().replace("_", " ")
