"""Taps: clients that receive a copy of all matching traffic. Spec: sbus-protocol(7) §6, ``!/tap``."""

from __future__ import annotations

from sbusd.broker import log_messages
from sbusd.broker.access import AccessRules
from sbusd.broker.change_log import ChangeLog
from sbusd.broker.client_log import ClientLog
from sbusd.broker.quotas import UserQuotas
from sbusd.broker.refusals import Refusals
from sbusd.broker.roster import Client, Roster
from sbusd.dataplane.contract import Switch
from sbusd.protocol import controls
from sbusd.protocol.errors import ErrorCode, ProtocolError


class Taps:
    """The taps of one bus. A client has at most one."""

    def __init__(
        self, switch: Switch, roster: Roster, quotas: UserQuotas, access: AccessRules, *, refusals: Refusals, log: ClientLog
    ) -> None:
        self._switch = switch
        self._roster = roster
        self._quotas = quotas
        self._access = access
        self._refusals = refusals
        self._log = log
        self._change_log = ChangeLog()

    def set_change_log(self, change_log: ChangeLog) -> None:
        """Write changes to *change_log* from now on."""
        self._change_log = change_log

    def set_access(self, access: AccessRules) -> None:
        """Apply other rules. Call :meth:`revoke` for each client."""
        self._access = access

    def may_tap(self, client: Client) -> bool:
        """Return whether a client may tap the bus."""
        return self._roster.is_owner(client) or self._access.policy.may_tap(client.credentials)

    def open(self, client: Client, pattern: bytes) -> None:
        """Send a client all traffic that *pattern* matches. A tap that it has already is replaced.

        Raises:
            ProtocolError: EPERM, the client may not tap; EINVAL or EMSGSIZE, the pattern is invalid.
        """
        if not self.may_tap(client):
            self._log.record(log_messages.TAP_REFUSED, client, key=pattern)
            raise ProtocolError(ErrorCode.EPERM, "only owners and users with the right tap can tap this bus")
        if b"\0" in pattern:
            raise ProtocolError(ErrorCode.EINVAL, "the pattern of a tap cannot contain a NUL")
        if len(pattern) > self._access.key_bytes:
            raise ProtocolError(ErrorCode.EMSGSIZE, f"the pattern has {len(pattern)} bytes, at most {self._access.key_bytes} are valid")
        refusal = self._quotas.charge_subscription(client.connection, pattern)
        if refusal is not None:
            self._refusals.refuse_for_quota(client, refusal, b"CMSG " + controls.TAP_ON)
            return
        self.close(client)
        client.tap = pattern
        self._switch.set_tap(client.connection, pattern)
        self._change_log.tapped(client, pattern)
        self._log.record(log_messages.TAP_OPENED, client, key=pattern)

    def close(self, client: Client) -> None:
        """Close a client's tap, if it has one."""
        if client.tap is not None:
            self._quotas.release_subscription(client.connection, client.tap)
            client.tap = None
            self._switch.set_tap(client.connection, None)
            self._change_log.tapped(client, None)

    def revoke(self, client: Client) -> None:
        """Close a client's tap, and send it an error, if the rules no longer allow it."""
        if client.tap is not None and not self.may_tap(client):
            self.close(client)
            self._refusals.refuse(client, ErrorCode.EPERM, "the right to tap this bus was revoked", b"CMSG " + controls.TAP_ON)
