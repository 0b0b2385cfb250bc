"""Refused packets and rejected connections: the error for the client, the line for taps, the disconnect. Spec: sbus-protocol(7) §8."""

from __future__ import annotations

from collections import Counter

from sbus.protocol.credentials import Credentials
from sbus.protocol.errors import ErrorCode
from sbus.protocol.packets import error_packet
from sbusd.broker import log_messages
from sbusd.broker.access import BusOwnership, Verdict
from sbusd.broker.client_log import ClientLog
from sbusd.broker.events import TapEvents
from sbusd.broker.quota_refusal import QuotaRefusal
from sbusd.broker.roster import Client
from sbusd.broker.switch_errors import SWITCH_ERRORS
from sbusd.dataplane.contract import Refusal, Switch


class Refusals:
    """The refusals of one bus. *counts* are the broker's counters."""

    def __init__(self, switch: Switch, tap_events: TapEvents, log: ClientLog, counts: Counter[str], ownership: BusOwnership) -> None:
        self._switch = switch
        self._tap_events = tap_events
        self._log = log
        self._counts = counts
        self._ownership = ownership

    def set_ownership(self, ownership: BusOwnership) -> None:
        """Use *ownership* from now on."""
        self._ownership = ownership

    # -- packets of clients

    def refuse(self, client: Client, code: ErrorCode, reason: str, packet: bytes) -> None:
        """Send a client the error for *packet*, and disconnect it if the error does that."""
        self._counts["sent_errors"] += 1
        self._tap_events.denial(client.connection, client.credentials, packet, code, reason)
        if code is ErrorCode.EPROTO:
            self._log.record(log_messages.MALFORMED_PACKET, client, reason=reason)
        self._send(client, code, reason, disconnects=code.disconnects)

    def refuse_for_quota(self, client: Client, refusal: QuotaRefusal, packet: bytes) -> None:
        """Send a client the error of a quota for *packet*, and disconnect it if the refusal does that."""
        self._counts["quota_refusals"] += 1
        self._log.quota_refused(client.connection, client.credentials, refusal)
        self._counts["sent_errors"] += 1
        self._tap_events.denial(client.connection, client.credentials, packet, ErrorCode.EDQUOT, refusal.reason)
        self._send(client, ErrorCode.EDQUOT, refusal.reason, disconnects=refusal.disconnects)

    def refuse_subscription(self, client: Client, pattern: bytes, verdict: Verdict) -> None:
        """Send a client the error for a subscription that *verdict* denies."""
        if verdict.code is None:
            raise AssertionError("an allowed subscription is not refused")
        self._log.subscription_refused(client, pattern, verdict)
        self.refuse(client, verdict.code, verdict.reason, b"SUB " + pattern)

    def note_publications(self, client: Client, refusal: Refusal, key: bytes, count: int, verdict: Verdict | None) -> None:
        """Note *count* messages that the switch has refused; it has sent the errors. *verdict* is that on *key*, if a rule denies it."""
        self._counts["sent_errors"] += count
        code, reason = SWITCH_ERRORS[refusal]
        rule = None if verdict is None else verdict.rule
        if verdict is not None and rule is not None:
            reason = verdict.reason
        self._tap_events.denial(client.connection, client.credentials, b"MSG " + key, code, reason, count=count)
        self._log.publications_refused(client, refusal, key, count, rule)

    def disconnect(self, client: Client, code: ErrorCode, reason: str) -> None:
        """Disconnect a client with a last error packet."""
        client.end_reason = f"{code.name} {reason}"
        self._switch.disconnect(client.connection, error_packet(code, reason))

    def _send(self, client: Client, code: ErrorCode, reason: str, *, disconnects: bool) -> None:
        """Send an error, and disconnect the client if the error *disconnects*."""
        if disconnects:
            self.disconnect(client, code, reason)
        else:
            self._switch.send(client.connection, error_packet(code, reason))

    # -- connections that do not become clients

    def reject_unknown(self, connection: int, error: OSError) -> None:
        """Reject a connection whose peer credentials the kernel does not report."""
        self._log.credentials_unknown(connection, error)
        self._switch.disconnect(connection, error_packet(ErrorCode.EACCES, "the kernel did not report the peer credentials"))

    def reject_user(self, connection: int, credentials: Credentials) -> None:
        """Reject the connection of a user that is not admitted."""
        self._log.user_rejected(connection, credentials)
        self._reject(connection, credentials, ErrorCode.EACCES, self._ownership.denial(credentials.uid))

    def reject_for_quota(self, connection: int, credentials: Credentials, refusal: QuotaRefusal) -> None:
        """Reject a connection beyond a quota of its user."""
        self._counts["quota_refusals"] += 1
        self._log.quota_refused(connection, credentials, refusal)
        self._reject(connection, credentials, ErrorCode.EDQUOT, refusal.reason)

    def _reject(self, connection: int, credentials: Credentials, code: ErrorCode, reason: str) -> None:
        """Close a connection with a last error packet."""
        self._switch.disconnect(connection, error_packet(code, reason))
        self._tap_events.rejection(connection, credentials, code, reason)
        self._log.rejected(connection, credentials, reason)
