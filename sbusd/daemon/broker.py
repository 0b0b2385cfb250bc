"""The control plane: who is on the bus, what each may hear, and what each is told. It sees no message, only all else.

It is the switch's sink (:class:`sbusd.daemon.contract.Sink`): the switch calls it for connects, SUB, UNSUB, CMSG, malformed
packets and ends, and it asks the switch to do things. Whatever a client sends is answered, told as an error, or ends that client
alone. Spec: sbus-protocol(7) §4, §6, §8.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from dataclasses import dataclass

from sbusd.config.settings import DaemonSettings
from sbusd.daemon import messages
from sbusd.daemon.acceptance import Acceptance
from sbusd.daemon.answers import Answers
from sbusd.daemon.contract import ConnectionCounters, End, MakeSwitch, Refusal, Switch
from sbusd.daemon.journal import Journal
from sbusd.daemon.logsink import Fact
from sbusd.daemon.peer import credentials_of
from sbusd.daemon.roster import Client, Roster
from sbusd.protocol import controls
from sbusd.protocol.errors import ErrorCode, ProtocolError
from sbusd.protocol.packets import Control, Subscribe, Unsubscribe, control_packet, error_packet, parse_packet

_REFUSALS = {
    Refusal.RESERVED: error_packet(ErrorCode.EPERM, "the key begins with !/ and is not a whole !/cred/<gid>/<uid>/<pid>/<rest>"),
    Refusal.KEY_TOO_LONG: error_packet(ErrorCode.EMSGSIZE, "the key is longer than this bus allows"),
    Refusal.TRUNCATED: error_packet(ErrorCode.EMSGSIZE, "the packet is longer than 409600 bytes"),
    Refusal.NO_DESCRIPTOR: error_packet(ErrorCode.EMFILE, "the bus has no file descriptor left for one more connection"),
}


@dataclass(frozen=True, slots=True)
class Household:
    """Whose bus it is: the uid it runs as, the uids that may connect (None: everyone), those that own it, and if it ends when empty."""

    own_uid: int
    allowed: frozenset[int] | None
    owners: frozenset[int]
    ends_when_empty: bool = False

    @classmethod
    def of(cls, settings: DaemonSettings, extra_users: tuple[int, ...] = (), *, ends_when_empty: bool = False) -> Household:
        """Return the household that *settings* and the users of ``-u`` make for this process."""
        own = os.geteuid()
        named = frozenset(settings.allowed_users) | frozenset(extra_users)
        return cls(own, named | {own} if named else None, frozenset({0, own}) | frozenset(settings.admins), ends_when_empty)

    def admits(self, uid: int) -> bool:
        """Return whether a user may connect."""
        return self.allowed is None or uid in self.allowed


class Broker:
    """The sink of one switch, which it makes."""

    def __init__(self, settings: DaemonSettings, household: Household, journal: Journal, make_switch: MakeSwitch) -> None:
        self._household = household
        self._journal = journal
        self._acceptance = Acceptance(settings.keyspace, settings.limits.key_bytes)
        self._roster = Roster(household.owners)
        self._counts: Counter[str] = Counter(control_packets=0, errors_told=0, unknown_unsubscriptions=0, internal_errors=0)
        self.switch: Switch = make_switch(self, settings.keyspace, settings.limits, tuple(_REFUSALS[refusal] for refusal in Refusal))
        self._answers = Answers(self.switch, self._roster, self._acceptance, journal, self._counts)
        self.is_done = False
        """Whether the bus has nothing more to do: set by :meth:`stop`, and by the last client's end where that ends it."""
        self.end_reason = ""
        """Why, for the record."""

    def stop(self, reason: str = "it was told to end") -> None:
        """Let the loop end after this turn."""
        self.is_done = True
        self.end_reason = reason

    # -- the switch's sink

    def connected(self, connection: int, fd: int) -> None:
        """Take note of a new client, or refuse it."""
        try:
            credentials = credentials_of(fd)
        except OSError as error:
            self._journal.record(messages.CREDENTIALS_UNKNOWN, connection=connection, reason=str(error))
            self.switch.disconnect(connection, error_packet(ErrorCode.EACCES, "the kernel does not say who you are"))
            return
        if not self._household.admits(credentials.uid):
            # Never on the roster: a stranger who comes and is sent away must not be the last client, who ends the bus with -c.
            self._journal.record(messages.CLIENT_REFUSED, uid=credentials.uid, pid=credentials.pid, connection=connection)
            words = f"user {credentials.uid} is not admitted to this bus; its -u options and allowed_users say who is"
            self.switch.disconnect(connection, error_packet(ErrorCode.EACCES, words))
            return
        self._record(messages.CLIENT_CONNECTED, self._roster.add(connection, credentials, time.time(), os.fstat(fd).st_ino))

    def control(self, connection: int, packet: bytes) -> None:
        """Handle a packet that is not a well-formed MSG."""
        self._counts["control_packets"] += 1
        client = self._roster[connection]
        try:
            self._handle(client, packet)
        except ProtocolError as error:
            self._refuse(client, error.code, error.words)
        except Exception as error:
            # A defect of ours must end nobody but the client that found it, and must be seen.
            self._counts["internal_errors"] += 1
            self._record(messages.INTERNAL_ERROR, client, error=error, where="a control packet", reason=repr(error))
            self.switch.disconnect(connection, error_packet(ErrorCode.EPROTO, "internal error; see the journal of the bus"))

    def refused(self, connection: int, refusal: Refusal, key: bytes, count: int) -> None:
        """Record messages that were not routed; the sender has been told by the switch."""
        self._counts["errors_told"] += count
        client = self._roster[connection]
        if refusal is Refusal.RESERVED:
            self._record(messages.RESERVED_KEY_REFUSED, client, key=key, packet="MSG", count=count)
        else:
            reason = refusal.name.lower().replace("_", " ")
            self._record(messages.TOO_LONG_REFUSED, client, key=key, packet="MSG", count=count, reason=reason)

    def lost(self, connection: int, count: int) -> None:
        """Record packets that a client was too slow for."""
        self._record(messages.PACKETS_LOST, self._roster[connection], count=count)

    def accept_failed(self, errno: int) -> None:
        """Record that a connect could not be taken."""
        self._journal.record(messages.ACCEPT_FAILED, reason=os.strerror(errno))

    def ended(self, connection: int, end: End, counters: ConnectionCounters) -> None:
        """Forget a client."""
        client = self._roster.remove(connection)
        if client is None:
            return
        self._record(messages.CLIENT_DISCONNECTED, client, reason=end.name.lower(), **counters._asdict())
        if self._household.ends_when_empty and not len(self._roster):
            self.stop("the last client has left")

    # -- packets

    def _handle(self, client: Client, data: bytes) -> None:
        """Do what a packet asks for. Raises ProtocolError with what the client is to be told."""
        packet = parse_packet(data)
        if isinstance(packet, Control):
            self._control(client, packet)
        elif isinstance(packet, Subscribe):
            self._subscribe(client, packet.pattern)
        elif isinstance(packet, Unsubscribe):
            if self.switch.unsubscribe(client.connection, packet.pattern):
                client.subscriptions -= 1
            else:
                self._counts["unknown_unsubscriptions"] += 1
        # A well-formed MSG does not come here: the switch keeps it.

    def _subscribe(self, client: Client, pattern: bytes) -> None:
        """Store a pattern, if the client may have it."""
        verdict = self._acceptance.subscription(pattern, client.credentials)
        if verdict.code is not None:
            self._record_refusal(client, verdict.code, pattern, verdict.reason)
            self._refuse(client, verdict.code, verdict.reason)
            return
        self.switch.subscribe(client.connection, pattern)
        client.subscriptions += 1

    def _control(self, client: Client, packet: Control) -> None:
        """Answer a control message. Raises ProtocolError with what the client is to be told."""
        if packet.key in (controls.ECHO_ON, controls.ECHO_OFF):
            self.switch.set_echo(client.connection, packet.key == controls.ECHO_ON)
            return
        answer = self._answers.to(client, packet)
        if answer is not None:
            self.switch.send(client.connection, control_packet(packet.key, answer))
        elif packet.key.startswith(controls.RESERVED_HEAD):
            raise ProtocolError(ErrorCode.ENOSYS, f"unknown control message {packet.key[:64].decode('utf-8', 'backslashreplace')}")

    def _refuse(self, client: Client, code: ErrorCode, words: str) -> None:
        """Tell a client of its error, and end it where the error does."""
        self._counts["errors_told"] += 1
        if code is ErrorCode.EPROTO:
            self._record(messages.MALFORMED_PACKET, client, reason=words)
        told = error_packet(code, words)
        if code.disconnects:
            self.switch.disconnect(client.connection, told)
        else:
            self.switch.send(client.connection, told)

    def _record_refusal(self, client: Client, code: ErrorCode, pattern: bytes, reason: str) -> None:
        """Write the record of a subscription that was refused: an attempt at a secret has a message of its own, for audits."""
        if code is ErrorCode.EACCES:
            self._record(messages.SECRET_REFUSED, client, key=pattern, reason=reason)
        elif code is ErrorCode.EPERM:
            self._record(messages.RESERVED_KEY_REFUSED, client, key=pattern, packet="SUB", count=1)
        else:
            self._record(messages.TOO_LONG_REFUSED, client, key=pattern, packet="SUB", count=1, reason=reason)

    def _record(
        self, message: messages.LogMessage, client: Client, *, key: bytes | None = None, error: Exception | None = None, **facts: Fact
    ) -> None:
        """Write a record about a client."""
        who = client.credentials
        self._journal.record(message, uid=who.uid, pid=who.pid, connection=client.connection, key=key, error=error, **facts)
