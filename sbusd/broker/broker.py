"""The control plane: admits clients, applies rules and quotas, handles control packets. Messages do not pass through it.

The switch calls a broker's `FastPath` for connects, SUB, UNSUB, CMSG, malformed packets and disconnects. That leaves to the broker what
short-lived clients do not need. The broker gets the other calls of :class:`sbusd.dataplane.contract.Sink` itself. A packet is answered,
refused with an error, or disconnects its client; it never affects other clients.
Spec: sbus-protocol(7) §4, §6, §8.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from errno import ESRCH

from sbus.protocol import controls
from sbus.protocol.credentials import Credentials, parse_name
from sbus.protocol.errors import ErrorCode, ProtocolError
from sbus.protocol.packets import Control, Unsubscribe, control_packet, error_packet, parse_packet
from sbus_programs.config.settings import DaemonSettings
from sbus_programs.config.users import SubordinateIds, SubordinateIdsWatch
from sbus_programs.exhaustion import descriptor_limit
from sbus_programs.systemd.processes import Placement
from sbus_programs.systemd.service_manager import Traffic
from sbusd.broker import connection_settings, log_messages
from sbusd.broker.access import AccessRules, BusOwnership
from sbusd.broker.change_log import ChangeLog
from sbusd.broker.client_log import ClientLog
from sbusd.broker.control_messages import ControlMessages
from sbusd.broker.direct_messages import DirectMessages
from sbusd.broker.events import PresenceEvents, TapEvents
from sbusd.broker.fast_path import FastPath
from sbusd.broker.groups import Groups
from sbusd.broker.log import BusLog
from sbusd.broker.policy import Policy, SwitchRightsCache
from sbusd.broker.process_watch import ProcessBindings
from sbusd.broker.quotas import UserQuotas
from sbusd.broker.refusals import Refusals
from sbusd.broker.request_bounds import check_payload
from sbusd.broker.revocation import Revocation
from sbusd.broker.roster import Client, Roster
from sbusd.broker.switch_errors import SWITCH_ERRORS
from sbusd.broker.taps import Taps
from sbusd.broker.units import WAIT_SECONDS, Report, Units
from sbusd.broker.vouching import Vouching
from sbusd.dataplane.contract import Refusal
from sbusd.dataplane.switch import Switch as CompiledSwitch

MAX_SETTLE_SECONDS = 0.001
"""Maximum duration of :meth:`Broker.settle`, which delays messages, if ``turn_time`` is longer."""

_KEPT = connection_settings.LASTING | {controls.TAP_ON, controls.TAP_OFF, controls.NAME, controls.GROUP_JOIN, controls.GROUP_LEAVE}
"""Control messages that change the kept state."""


class Broker:
    """The control plane of one switch, which it creates. The modules that save and restore its state read and set its parts."""

    def __init__(self, settings: DaemonSettings, ownership: BusOwnership, journal: BusLog) -> None:
        keyspace, owners = settings.keyspace, ownership.owners
        self.ownership = ownership
        self.journal = journal
        self.access = access = AccessRules(keyspace, settings.limits.key_bytes, Policy(settings.policy, settings.rights))
        self.roster = Roster(owners)
        self.counts: Counter[str] = Counter(
            control_packets=0,
            sent_errors=0,
            unknown_unsubscriptions=0,
            quota_refusals=0,
            reported_losses=0,
            descriptor_senders=0,
            internal_errors=0,
            late_units=0,
            unknown_units=0,
            configuration_faults=0,
        )
        errors = tuple(error_packet(*SWITCH_ERRORS[refusal]) for refusal in Refusal)
        self.fast_path = FastPath()
        self.switch = CompiledSwitch(self, keyspace, settings.limits, errors, self.fast_path)
        self.switch.set_publish_rules(access.policy.publish_rules())
        self.quotas = UserQuotas(settings.quotas, owners, descriptor_limit(), separator=keyspace.separator)
        self.switch.charge_closes(self.quotas.charged_uid)
        journal.charged = self.quotas.charged_uid
        self._tap_events = TapEvents(self.switch, keyspace.prefix, self.quotas.charged_uid)
        self.log = ClientLog(journal, ownership)
        self.refusals = Refusals(self.switch, self._tap_events, self.log, self.counts, ownership)
        self.bindings = ProcessBindings(self.roster, self.quotas, self.refusals, self.log, journal)
        self.switch.watch(self.bindings.watch.fileno(), self.bindings.watch.drain)
        self._subordinate_ids = SubordinateIdsWatch(self._set_subordinate_ids)
        report = Report(self._unit_found, self._unit_late, self._unit_unreadable)
        self.units = Units(self.switch, report, self.roster, charged=self.quotas.charged_uid)
        self._are_units_unreadable = False
        self._is_restoring = False
        self._wait_until = 0.0
        self.taps = Taps(self.switch, self.roster, self.quotas, access, refusals=self.refusals, log=self.log)
        self._vouching = Vouching(self.switch, access, log=self.log, counts=self.counts)
        self._direct_messages = DirectMessages(access, self._vouching, log=self.log)
        own = Credentials(os.getpid(), os.geteuid(), os.getegid())
        self.presence = PresenceEvents(self.switch, keyspace, self._tap_events, own)
        unsubscribe = self.fast_path.unsubscribe
        self._groups = Groups(self.switch, self.quotas, access, presence=self.presence, refusals=self.refusals, unsubscribe=unsubscribe)
        self._rights = SwitchRightsCache(access.policy, owners)
        self.control_messages = ControlMessages(self.switch, self.roster, self.quotas, access, journal=journal, counts=self.counts)
        self._revocation = Revocation(self.switch, self.roster, self.refusals, self.log, unsubscribe)
        self._turn_time = settings.limits.turn_time
        self._change_log = ChangeLog()
        self.is_done = False
        """Whether the bus is to stop: set by :meth:`stop`, and with option -c by the disconnect of the last client."""
        self.is_for_good = False
        """Whether no other process is to continue the bus."""
        self.end_reason = ""
        """The reason for stopping, for the log."""
        self.fast_path.start(self)
        self.fast_path.configure(ownership, self._rights)

    def start_threads(self) -> None:
        """Start the threads that read for the bus, before its first client: the loop waits until a new one runs."""
        with contextlib.suppress(RuntimeError):  # no thread is left: each id is a user of its own, and the next unit tries again
            self._subordinate_ids.start()
        self.units.start_thread()

    def _set_subordinate_ids(self, found: SubordinateIds) -> None:
        """Charge new connections of the ids that users have for their containers to these users. Called in another thread."""
        self.quotas.subordinates = self.quotas.totals.subordinates = found if len(found) else None

    def stop(self, reason: str = "received a termination signal", *, for_good: bool = False) -> None:
        """Stop the loop after this turn; *for_good* if no other process is to continue the bus."""
        self.is_done = True
        self.is_for_good = for_good
        self.end_reason = reason
        self.switch.return_soon()

    def close(self, *, keeps_connections: bool = False) -> None:
        """Close the switch and all connections, unless another process *keeps* them. Do not use the broker afterwards."""
        self.switch.close(keeps_connections=keeps_connections)
        self.bindings.close()
        self._subordinate_ids.close()
        self.units.close()

    def set_change_log(self, change_log: ChangeLog) -> None:
        """Write every change to *change_log* from now on."""
        self._change_log = change_log
        self.fast_path.keep_changes(change_log)
        self.taps.set_change_log(change_log)
        self._groups.set_change_log(change_log)
        self.control_messages.set_change_log(change_log)

    def reconfigure(self, settings: DaemonSettings, ownership: BusOwnership) -> None:
        """Apply new settings, except those that need a restart. Clients that are no longer admitted are disconnected with an error.

        Call this between turns of the switch. Then call :meth:`settle` until :attr:`is_settled`, to revoke subscriptions.
        """
        self.ownership = ownership
        self.roster.set_owners(ownership.owners)
        self.quotas.configure(settings.quotas, ownership.owners)
        self.access.policy = Policy(settings.policy, settings.rights)
        self.log.set_ownership(ownership)
        self.refusals.set_ownership(ownership)
        self._rights = SwitchRightsCache(self.access.policy, ownership.owners)
        self.fast_path.configure(ownership, self._rights)
        self.switch.set_publish_rules(self.access.policy.publish_rules())
        for client in list(self.roster):
            if ownership.admits(client.credentials.uid):
                self.fast_path.apply_rights(client)
                self.taps.revoke(client)
            else:
                self.refusals.disconnect(client, ErrorCode.EACCES, ownership.denial(client.credentials.uid))
        self._revocation.start(self.access)

    def set_faults(self, number: int) -> None:
        """Set the number of faults in the current configuration, for statistics."""
        self.counts["configuration_faults"] = number

    @property
    def is_settled(self) -> bool:
        """Whether :meth:`settle` has no work."""
        return not self._revocation.is_running and not self._change_log.has_work

    def settle(self) -> None:
        """Continue long work for at most ``turn_time``: revoke subscriptions, rewrite the kept state. Call it between turns.

        This work grows with the number of patterns; to do it at once would delay all messages.
        """
        end = time.monotonic() + min(self._turn_time, MAX_SETTLE_SECONDS)
        while not self.is_settled:
            if self._revocation.is_running:
                self._revocation.step()
            else:
                self._change_log.step()
            if time.monotonic() >= end:
                break

    def traffic(self) -> Traffic:
        """Return the number of clients, and of messages since the start."""
        return Traffic(len(self.roster), self.switch.counters().messages)

    # -- what the switch reports

    def refused(self, connection: int, refusal: Refusal, key: bytes, count: int) -> None:
        """Record messages that were not routed; the switch has sent the errors."""
        client = self.roster[connection]
        verdict = self.access.publication(key, client.credentials) if refusal is Refusal.POLICY else None
        self.refusals.note_publications(client, refusal, key, count, verdict)

    def may_know_recipients(self, connection: int, key: bytes) -> bool:
        """Return whether a client may know the recipients of a private key, as in ``!/bus/members``."""
        return self.control_messages.recipients.may_know(self.roster[connection], key)

    def lost(self, connection: int, count: int) -> None:
        """Record packets that a client was too slow for. A rejected connection is not a client."""
        if connection in self.roster:
            client = self.roster[connection]
            self._tap_events.loss(connection, client.credentials, count)
            self.log.record(log_messages.PACKETS_LOST, client, count=count)

    def accept_failed(self, errno: int) -> None:
        """Record that accept(2) failed."""
        self.journal.record(log_messages.ACCEPT_FAILED, reason=os.strerror(errno))

    # -- units

    def _unit_found(self, connection: int, placement: Placement | None) -> None:
        """Apply the rules for the unit of a client; None: it is not known."""
        client = self.roster[connection]
        self.fast_path.set_place(client, placement)
        if placement is None:
            self.counts["unknown_units"] += 1
        elif not self._is_restoring:
            self.presence.placed(client)

    def _unit_late(self, connection: int) -> None:
        """Go on with a client whose unit is still being read."""
        self.counts["late_units"] += 1
        self.fast_path.handle_unknown(self.roster[connection])

    def _unit_unreadable(self, errno: int) -> None:
        """Record once that a unit cannot be read, unless the process has ended."""
        if errno != ESRCH and self.access.policy.depends_on_unit and not self._are_units_unreadable:
            self._are_units_unreadable = True
            self.journal.record(log_messages.UNITS_UNREADABLE, reason=os.strerror(errno) if errno else "no thread is left")

    def await_unit(self, client: Client) -> None:
        """Wait until the unit of a client is read, if a rule depends on it: for all clients together about a second."""
        if client.awaits_unit and self._rights.of(client.credentials).needs_unit:
            self._wait_until = self._wait_until or time.monotonic() + WAIT_SECONDS
            # No client may be sent anything before the restored state is written.
            self._is_restoring = True
            self.units.wait(client.connection, self._wait_until)
            self._is_restoring = False

    # -- packets

    def handle(self, client: Client, data: bytes) -> None:
        """Handle a packet other than SUB. Raises ProtocolError with the error for the client."""
        packet = parse_packet(data)
        if type(packet) is not Control or packet.key in _KEPT:
            refusal = self.quotas.charge_change(client.connection)
            if refusal is not None:
                self.refusals.refuse_for_quota(client, refusal, data)
                return
        if isinstance(packet, Control):
            self._control(client, packet)
        elif isinstance(packet, Unsubscribe):
            self.counts["unknown_unsubscriptions"] += not self.fast_path.unsubscribe(client, packet.pattern)
        # The switch keeps each well-formed MSG.

    def _control(self, client: Client, packet: Control) -> None:
        """Handle a control message. Raises ProtocolError with the error for the client."""
        check_payload(packet, self.access.key_bytes)
        if connection_settings.apply(self.switch, client.connection, packet):
            if packet.key in connection_settings.LASTING:
                self._change_log.changed(client)
        elif packet.key == controls.TAP_ON:
            self.taps.open(client, packet.payload or b"")
        elif packet.key == controls.TAP_OFF:
            self.taps.close(client)
        elif packet.key == controls.NAME:
            client.name = parse_name(packet.payload or b"")
            self._change_log.named(client)
        elif packet.key == controls.GROUP_JOIN:
            self._groups.join(client, packet.payload or b"")
        elif packet.key == controls.GROUP_LEAVE:
            self.counts["unknown_unsubscriptions"] += not self._groups.leave(client, packet.payload or b"")
        elif packet.key == controls.LOST_FOR:
            self._vouching.report_loss(client, packet.payload or b"")
        elif packet.key.startswith((controls.FROM, controls.TO)):
            self._refuse_message(client, packet)
        elif (reply := self.control_messages.reply(client, packet)) is not None:
            self.switch.send(client.connection, control_packet(packet.key, reply))
        else:
            raise ProtocolError(ErrorCode.ENOSYS, f"unknown control message {packet.key[:64].decode('utf-8', 'backslashreplace')}")

    def _refuse_message(self, client: Client, packet: Control) -> None:
        """Raise ProtocolError with the reason why the switch did not route the message in *packet*."""
        if packet.key.startswith(controls.TO):
            self._direct_messages.refuse(client, packet)
        else:
            self._vouching.refuse_message(client, packet)

    def fail(self, client: Client, error: Exception) -> None:
        """Record an internal error, and disconnect only the client whose packet has caused it."""
        self.counts["internal_errors"] += 1
        self.log.record(log_messages.INTERNAL_ERROR, client, error=error, where="a control packet", reason=repr(error))
        self.refusals.disconnect(client, ErrorCode.EPROTO, "internal error; see the journal of the bus")
