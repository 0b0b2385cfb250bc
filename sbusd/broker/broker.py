"""The control plane: who is on the bus, what each may hear, and what each is told. It sees no message, only all else.

It is the switch's sink (:class:`sbusd.dataplane.contract.Sink`): the switch calls it for connects, SUB, UNSUB, CMSG, malformed
packets and ends, and it asks the switch to do things. Whatever a client sends is answered, told as an error, or ends that client
alone. Spec: sbus-protocol(7) §4, §6, §8.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from sbusd.broker import connection_settings, log_messages
from sbusd.broker.access import Acceptance, Verdict
from sbusd.broker.change_log import ChangeLog
from sbusd.broker.control_messages import Answers
from sbusd.broker.durable_state import BrokerComponents
from sbusd.broker.enforcement import Placements
from sbusd.broker.lifecycle import Reception
from sbusd.broker.log import BusLog
from sbusd.broker.ownership import BusOwnership
from sbusd.broker.policy import Policy
from sbusd.broker.presence import Presence
from sbusd.broker.process_watch import Lifelines, is_hung_up
from sbusd.broker.quotas import Accounts, Excess, descriptor_limit
from sbusd.broker.revocation import revocations
from sbusd.broker.roster import Client, Roster
from sbusd.broker.tap_events import Tapping
from sbusd.config.settings import DaemonSettings
from sbusd.dataplane.contract import ConnectionCounters, End, MakeSwitch, Refusal
from sbusd.protocol import controls
from sbusd.protocol.credentials import Credentials
from sbusd.protocol.errors import ErrorCode, ProtocolError
from sbusd.protocol.packets import Control, Unsubscribe, control_packet, error_packet, parse_packet
from sbusd.protocol.printable import printable
from sbusd.systemd.heartbeat import Traffic
from sbusd.systemd.log_record import Fact, LogMessage

_REFUSALS: dict[Refusal, tuple[ErrorCode, str]] = {
    Refusal.RESERVED: (ErrorCode.EPERM, "clients can publish to no key that begins with !/ but complete secret keys and addresses"),
    Refusal.KEY_TOO_LONG: (ErrorCode.EMSGSIZE, "the key is longer than the maximum of this bus"),
    Refusal.TRUNCATED: (ErrorCode.EMSGSIZE, "the packet is longer than 409600 bytes"),
    Refusal.POLICY: (ErrorCode.EPERM, "a rule of this bus denies publishing to this key"),
    Refusal.NO_DESCRIPTOR: (ErrorCode.EMFILE, "the bus has no file descriptor left for another connection"),
    Refusal.QUEUE_FULL: (ErrorCode.ENOBUFS, "a packet did not fit into the queue or the socket of this connection, whose mode is error"),
    Refusal.DESCRIPTORS: (ErrorCode.EPROTO, "the packet carries file descriptors, which this bus does not accept"),
}

MAX_SETTLE_SECONDS = 0.001
"""How long the work that takes steps may hold up messages before those have their turn, where ``turn_time`` is longer."""

_KEPT = connection_settings.LASTING | {controls.TAP_ON, controls.TAP_OFF}
"""Control messages that change what is kept for after a restart."""

_MISBEHAVIOURS = (End.QUEUE_FULL, End.DESCRIPTORS)
"""Ends for what the client did or asked for."""

_PEERS_OWN = (End.HANGUP, End.BROKEN)
"""Ends that are not the bus's doing."""


class Broker(Reception):
    """The sink of one switch, which it makes."""

    def __init__(self, settings: DaemonSettings, ownership: BusOwnership, journal: BusLog, make_switch: MakeSwitch) -> None:
        self._ownership = ownership
        self._journal = journal
        self._acceptance = Acceptance(settings.keyspace, settings.limits.key_bytes, Policy(settings.policy, settings.rights))
        self._roster = Roster(ownership.owners)
        self._counts: Counter[str] = Counter(
            control_packets=0,
            errors_told=0,
            unknown_unsubscriptions=0,
            quota_refusals=0,
            descriptor_senders=0,
            internal_errors=0,
            configuration_faults=0,
        )
        self.switch = make_switch(self, settings.keyspace, settings.limits, tuple(error_packet(*_REFUSALS[refusal]) for refusal in Refusal))
        self.switch.set_publish_rules(self._acceptance.policy.publish_rules())
        self._accounts = Accounts(settings.quotas, ownership.owners, descriptor_limit(), separator=settings.keyspace.separator)
        self._lifelines = Lifelines(self._process_ended)
        self.switch.watch(self._lifelines.fileno(), self._lifelines.drain)
        self._tapping = Tapping(self.switch, settings.keyspace.prefix)
        self._presence = Presence(self.switch, settings.keyspace, self._tapping, Credentials(os.getpid(), os.geteuid(), os.getegid()))
        self._placements = Placements(self._acceptance.policy, ownership.owners)
        self._answers = Answers(self.switch, self._roster, self._accounts, self._acceptance, journal=journal, counts=self._counts)
        self._says_unwatched = True
        self._sweep: Iterator[None] = iter(())
        self._is_sweeping = False
        self._turn_time = settings.limits.turn_time
        self._change_log = ChangeLog()
        self.is_done = False
        """Whether the bus has nothing more to do: set by :meth:`stop`, and by the last client's end where that ends it."""
        self.is_for_good = False
        """Whether nobody is to go on with it."""
        self.end_reason = ""
        """Why, for the record."""

    def stop(self, reason: str = "received a termination signal", *, for_good: bool = False) -> None:
        """Let the loop end after this turn; *for_good* if no other process is to go on with the bus."""
        self.is_done = True
        self.is_for_good = for_good
        self.end_reason = reason
        self.switch.return_soon()

    def close(self, *, keeps_connections: bool = False) -> None:
        """Close the switch, and with it every connection, unless another process *keeps* them. Nothing may be called after."""
        self.switch.close(keeps_connections=keeps_connections)
        self._lifelines.close()

    def components(self) -> BrokerComponents:
        """Return what those need who write down what the bus knows, or bring it back."""
        return BrokerComponents(
            self.switch, self._roster, self._accounts, self._acceptance, self._lifelines, self._answers, self._presence, self._journal,
            self._counts,
            admits=self._ownership.admits, may_tap=self._may_tap, place=self._place, end=self._end, refuse=self._refuse,
            process_ended=self._process_ended,
        )  # fmt: skip

    def set_change_log(self, change_log: ChangeLog) -> None:
        """Log every change to *change_log* from now on."""
        self._change_log = change_log
        self.has_change_log = True
        self._answers.set_change_log(change_log)

    def reconfigure(self, settings: DaemonSettings, ownership: BusOwnership) -> None:
        """Let *settings* hold from now on, for those who are here too; what they cannot change while the bus runs stays as it was.

        Clients who may not be here any more are told and ended. Call it between turns of the switch, and :meth:`settle` after it until
        all is settled: it ends the subscriptions that the rules do not allow any more.
        """
        self._ownership = ownership
        self._roster.set_owners(ownership.owners)
        self._accounts.configure(settings.quotas, ownership.owners)
        self._acceptance = replace(self._acceptance, policy=Policy(settings.policy, settings.rights))
        self._answers.set_acceptance(self._acceptance)
        self._placements = Placements(self._acceptance.policy, ownership.owners)
        self.switch.set_publish_rules(self._acceptance.policy.publish_rules())
        for client in list(self._roster):
            if not ownership.admits(client.credentials.uid):
                self._end(client, ErrorCode.EACCES, _not_admitted(client.credentials.uid))
                continue
            self._place(client)
            if client.tap is not None and not self._may_tap(client):
                self._untap(client)
                self._refuse(client, ErrorCode.EPERM, "the right to tap this bus was revoked", b"CMSG " + controls.TAP_ON)
        self._sweep = revocations(self.components(), self._unsubscribe)
        self._is_sweeping = True

    def set_faults(self, number: int) -> None:
        """Tell owners that the configuration which holds has *number* faults."""
        self._counts["configuration_faults"] = number

    @property
    def is_settled(self) -> bool:
        """Whether :meth:`settle` has nothing to do."""
        return not self._is_sweeping and not self._change_log.has_work

    def settle(self) -> None:
        """Go on, for ``turn_time``, with what takes steps: to end what new rules do not allow, and to rewrite the kept state.

        Users hold as many patterns as their quotas let them: to look at all at once would hold up every message. Call it between turns.
        """
        end = time.monotonic() + min(self._turn_time, MAX_SETTLE_SECONDS)
        while not self.is_settled:
            if self._is_sweeping:
                self._is_sweeping = next(self._sweep, self) is not self
            else:
                self._change_log.step()
            if time.monotonic() >= end:
                break

    def traffic(self) -> Traffic:
        """Return how many clients there are, and how many messages there were."""
        return Traffic(len(self._roster), self.switch.counters().messages)

    # -- the switch's sink

    def _refuse_unknown(self, connection: int, error: OSError) -> None:
        """End a connection of which the kernel does not say whose it is."""
        self._journal.record(log_messages.CREDENTIALS_UNKNOWN, connection=connection, reason=str(error))
        self.switch.disconnect(connection, error_packet(ErrorCode.EACCES, "the kernel did not report the peer credentials"))

    def _refuse_stranger(self, connection: int, credentials: Credentials) -> None:
        """End the connection of a user who may not be here."""
        # Never on the roster: a stranger who comes and is sent away must not be the last client, who ends the bus with -c.
        self._journal.record(log_messages.CLIENT_REFUSED, uid=credentials.uid, pid=credentials.pid, connection=connection)
        self._turn_away(connection, credentials, ErrorCode.EACCES, _not_admitted(credentials.uid))

    def _refuse_connection(self, connection: int, credentials: Credentials, excess: Excess) -> None:
        """End a connection that is one too many of its user's."""
        self._count_excess(connection, credentials, excess)
        self._turn_away(connection, credentials, ErrorCode.EDQUOT, excess.words)

    def _fail(self, client: Client, error: Exception) -> None:
        """End a client, and it alone, whose control packet has found a defect of the bus, and record that."""
        self._counts["internal_errors"] += 1
        self._record(log_messages.INTERNAL_ERROR, client, error=error, where="a control packet", reason=repr(error))
        self._end(client, ErrorCode.EPROTO, "internal error; see the journal of the bus")

    def refused(self, connection: int, refusal: Refusal, key: bytes, count: int) -> None:
        """Record messages that were not routed; the sender has been told by the switch."""
        self._counts["errors_told"] += count
        client = self._roster[connection]
        self._tapping.denial(connection, client.credentials, b"MSG " + key, *_REFUSALS[refusal], count=count)
        if refusal is Refusal.RESERVED:
            self._record(log_messages.RESERVED_KEY_REFUSED, client, key=key, packet="MSG", count=count)
        elif refusal is Refusal.POLICY:
            rule = self._acceptance.publication(key, client.credentials).rule
            self._record(log_messages.POLICY_REFUSED, client, key=key, packet="MSG", count=count, rule=rule.name if rule else "a rule")
        else:
            reason = refusal.name.lower().replace("_", " ")
            self._record(log_messages.TOO_LONG_REFUSED, client, key=key, packet="MSG", count=count, reason=reason)

    def may_know_recipients(self, connection: int, key: bytes) -> bool:
        """Return whether a client may know who gets a message to a secret key: the same as ``!/bus/members`` says."""
        return self._answers.may_know_recipients(self._roster[connection], key)

    def lost(self, connection: int, count: int) -> None:
        """Record packets that a client was too slow for; a peer that was turned away is not a client."""
        if connection in self._roster:
            client = self._roster[connection]
            self._tapping.loss(connection, client.credentials, count)
            self._record(log_messages.PACKETS_LOST, client, count=count)

    def accept_failed(self, errno: int) -> None:
        """Record that a connect could not be taken."""
        self._journal.record(log_messages.ACCEPT_FAILED, reason=os.strerror(errno))

    def _record_end(self, client: Client, end: End, counters: ConnectionCounters) -> None:
        """Write the records of an end that are due."""
        if end in _MISBEHAVIOURS:
            self._record(log_messages.CLIENT_MISBEHAVED, client, reason=end.name.lower().replace("_", " "))
        if self._journal.keeps(log_messages.CLIENT_DISCONNECTED):
            self._record(log_messages.CLIENT_DISCONNECTED, client, reason=end.name.lower(), **counters._asdict())
        if end not in _PEERS_OWN and client.credentials.uid in self._ownership.protected:
            self._record(log_messages.PROTECTED_USER_ENDED, client, reason=client.farewell or end.name.lower().replace("_", " "))

    # -- packets

    def _handle(self, client: Client, data: bytes) -> None:
        """Do what a packet other than SUB asks for. Raises ProtocolError with what the client is to be told."""
        packet = parse_packet(data)
        if type(packet) is not Control or packet.key in _KEPT:
            excess = self._accounts.charge_change(client.connection)
            if excess is not None:
                self._tell_excess(client, excess, data)
                return
        if isinstance(packet, Control):
            self._control(client, packet)
        elif isinstance(packet, Unsubscribe):
            self._counts["unknown_unsubscriptions"] += not self._unsubscribe(client, packet.pattern)
        # A well-formed MSG does not come here: the switch keeps it.

    def _refuse_subscription(self, client: Client, pattern: bytes, verdict: Verdict) -> None:
        """Tell a client that it may not have a subscription."""
        if verdict.code is None:
            raise AssertionError("an allowed subscription is not refused")
        self._record_refusal(client, verdict.code, pattern, verdict)
        self._refuse(client, verdict.code, verdict.reason, b"SUB " + pattern)

    def _unsubscribe(self, client: Client, pattern: bytes) -> bool:
        """Remove one instance of a pattern and return True, or return False if there is none."""
        if not self.switch.unsubscribe(client.connection, pattern):
            return False
        client.subscriptions -= 1
        self._change_log.unsubscribed(client, pattern)
        self._accounts.release_subscription(client.connection, pattern)
        if self._lifelines.release(client.connection, pattern):
            self._accounts.release_descriptor(client.connection)
        self._presence.unsubscribed(client, pattern)
        return True

    def _bind(self, client: Client, pattern: bytes) -> bool:
        """Bind a pattern that names the client's process to the life of that, or return False and tell the client why not."""
        is_new = not self._lifelines.holds(client.connection)
        excess = self._accounts.charge_descriptor(client.connection) if is_new else None
        if excess is not None:
            self._tell_excess(client, excess, b"SUB " + pattern)
            return False
        try:
            if self._lifelines.bind(client.connection, client.fd, pattern):
                return True
        except OSError as error:
            if is_new:
                self._accounts.release_descriptor(client.connection)
            self._refuse_binding(client, pattern, error)
            return False
        self._accounts.release_descriptor(client.connection)
        if self._says_unwatched:
            self._says_unwatched = False
            self._journal.record(log_messages.PROCESSES_UNWATCHED)
        return True

    def _refuse_binding(self, client: Client, pattern: bytes, error: OSError) -> None:
        """Tell a client why its process cannot be watched."""
        if not isinstance(error, ProcessLookupError):
            words = f"the bus cannot watch process {client.credentials.pid}: {os.strerror(error.errno or 0)}"
            self._refuse(client, ErrorCode.EMFILE, words, b"SUB " + pattern)
        elif not is_hung_up(client.fd):
            # Where nobody holds the socket any more, nobody is to be told, and what was sent on it is still read.
            self._process_ended(client.connection, pattern)

    def _process_ended(self, connection: int, pattern: bytes) -> None:
        """End a connection that somebody still holds, though the process that its subscription *pattern* names has ended."""
        client = self._roster[connection]
        self._record(log_messages.PROCESS_ENDED, client, key=pattern)
        words = f"process {client.credentials.pid} has ended, so the subscription {printable(pattern)} has ended"
        self._refuse(client, ErrorCode.EACCES, words, b"SUB " + pattern)

    def _control(self, client: Client, packet: Control) -> None:
        """Answer a control message. Raises ProtocolError with what the client is to be told."""
        if connection_settings.grant(self.switch, client.connection, packet):
            connection_settings.note(client, packet.key)
            if packet.key in connection_settings.LASTING:
                self._change_log.changed(client)
            return
        if packet.key == controls.TAP_ON:
            self._tap(client, packet.payload or b"")
        elif packet.key == controls.TAP_OFF:
            self._untap(client)
        elif (answer := self._answers.to(client, packet)) is not None:
            self.switch.send(client.connection, control_packet(packet.key, answer))
        elif packet.key.startswith(controls.RESERVED_HEAD):
            raise ProtocolError(ErrorCode.ENOSYS, f"unknown control message {packet.key[:64].decode('utf-8', 'backslashreplace')}")

    def _may_tap(self, client: Client) -> bool:
        """Return whether a client may be told of all traffic."""
        return self._roster.is_owner(client) or self._acceptance.policy.may_tap(client.credentials)

    def _tap(self, client: Client, pattern: bytes) -> None:
        """Let a client be told of all traffic that *pattern* takes. Raises ProtocolError with what the client is to be told."""
        if not self._may_tap(client):
            self._record(log_messages.TAP_REFUSED, client, key=pattern)
            raise ProtocolError(ErrorCode.EPERM, "only owners and users with the right tap can tap this bus")
        if b"\0" in pattern:
            raise ProtocolError(ErrorCode.EINVAL, "the pattern of a tap cannot contain a NUL")
        if len(pattern) > self._acceptance.key_bytes:
            raise ProtocolError(ErrorCode.EMSGSIZE, f"the pattern has {len(pattern)} bytes, at most {self._acceptance.key_bytes} are valid")
        excess = self._accounts.charge_subscription(client.connection, pattern)
        if excess is not None:
            self._tell_excess(client, excess, b"CMSG " + controls.TAP_ON)
            return
        self._untap(client)
        client.tap = pattern
        self.switch.set_tap(client.connection, pattern)
        self._change_log.tapped(client, pattern)
        self._record(log_messages.TAP_OPENED, client, key=pattern)

    def _untap(self, client: Client) -> None:
        """Let a client be told of nothing."""
        if client.tap is not None:
            self._accounts.release_subscription(client.connection, client.tap)
            client.tap = None
            self.switch.set_tap(client.connection, None)
            self._change_log.tapped(client, None)

    def _refuse(self, client: Client, code: ErrorCode, words: str, packet: bytes) -> None:
        """Tell a client of its error, which *packet* was refused for, and end it where the error does."""
        self._counts["errors_told"] += 1
        self._tapping.denial(client.connection, client.credentials, packet, code, words)
        if code is ErrorCode.EPROTO:
            self._record(log_messages.MALFORMED_PACKET, client, reason=words)
        if code.disconnects:
            self._end(client, code, words)
        else:
            self.switch.send(client.connection, error_packet(code, words))

    def _tell_excess(self, client: Client, excess: Excess, packet: bytes) -> None:
        """Tell a client which quota of its user is used up, which *packet* was refused for, and end it where that ends it."""
        self._count_excess(client.connection, client.credentials, excess)
        self._tapping.denial(client.connection, client.credentials, packet, ErrorCode.EDQUOT, excess.words)
        self._counts["errors_told"] += 1
        if excess.ends:
            self._end(client, ErrorCode.EDQUOT, excess.words)
        else:
            self.switch.send(client.connection, error_packet(ErrorCode.EDQUOT, excess.words))

    def _count_excess(self, connection: int, who: Credentials, excess: Excess) -> None:
        """Count that a quota is used up, and record it where that is due."""
        self._counts["quota_refusals"] += 1
        if excess.untold:
            self._journal.record(
                log_messages.QUOTA_REFUSED,
                uid=who.uid,
                pid=who.pid,
                connection=connection,
                quota=excess.quota.value,
                count=excess.untold,
                holders=excess.holders,
                reason=excess.words,
            )

    def _turn_away(self, connection: int, who: Credentials, code: ErrorCode, words: str) -> None:
        """End a connection that never was a client's."""
        self.switch.disconnect(connection, error_packet(code, words))
        self._tapping.refused_connection(connection, who, code, words)
        if who.uid in self._ownership.protected:
            self._journal.record(log_messages.PROTECTED_USER_ENDED, uid=who.uid, pid=who.pid, connection=connection, reason=words)

    def _end(self, client: Client, code: ErrorCode, words: str) -> None:
        """End a connection with the last words of an error."""
        client.farewell = f"{code.name} {words}"
        self.switch.disconnect(client.connection, error_packet(code, words))

    def _record_refusal(self, client: Client, code: ErrorCode, pattern: bytes, verdict: Verdict) -> None:
        """Write the record of a subscription that was refused: an attempt at a secret has a message of its own, for audits."""
        if verdict.rule is not None:
            self._record(log_messages.POLICY_REFUSED, client, key=pattern, packet="SUB", count=1, rule=verdict.rule.name)
        elif code is ErrorCode.EACCES:
            self._record(log_messages.SECRET_REFUSED, client, key=pattern, reason=verdict.reason)
        elif code is ErrorCode.EPERM:
            self._record(log_messages.RESERVED_KEY_REFUSED, client, key=pattern, packet="SUB", count=1)
        else:
            self._record(log_messages.TOO_LONG_REFUSED, client, key=pattern, packet="SUB", count=1, reason=verdict.reason)

    def _record(
        self, message: LogMessage, client: Client, *, key: bytes | None = None, error: Exception | None = None, **facts: Fact
    ) -> None:
        """Write a record about a client."""
        who = client.credentials
        self._journal.record(message, uid=who.uid, pid=who.pid, connection=client.connection, key=key, error=error, **facts)


def _not_admitted(uid: int) -> str:
    """Return what a user is told who may not be here."""
    return f"user {uid} is not admitted to this bus by its -u options and allowed_users"
