"""Memberships in queue groups: ``group/join`` and ``group/leave``. Which member gets a message: ``dataplane/turn/groups.pxi``.

A group belongs to the user of its members: otherwise another user could join it, and take its messages. Spec: sbus-protocol(7) §6.
"""

from __future__ import annotations

from collections.abc import Callable

from sbus.protocol import controls
from sbus.protocol.errors import ErrorCode, ProtocolError
from sbus.protocol.keys import SECRET_HEAD
from sbus.protocol.memberships import parse_membership, split_stored
from sbusd.broker.access import AccessRules
from sbusd.broker.change_log import ChangeLog
from sbusd.broker.events import PresenceEvents
from sbusd.broker.quotas import UserQuotas
from sbusd.broker.refusals import Refusals
from sbusd.broker.roster import Client
from sbusd.dataplane.contract import MAX_GROUPS, MAX_USER_GROUPS, Switch

_JOIN = b"CMSG " + controls.GROUP_JOIN


class Groups:
    """The memberships of one bus. *unsubscribe* removes one instance of a stored pattern, and returns whether there was one."""

    def __init__(
        self,
        switch: Switch,
        quotas: UserQuotas,
        access: AccessRules,
        *,
        presence: PresenceEvents,
        refusals: Refusals,
        unsubscribe: Callable[[Client, bytes], bool],
    ) -> None:
        self._switch = switch
        self._quotas = quotas
        self._access = access
        self._presence = presence
        self._refusals = refusals
        self._unsubscribe = unsubscribe
        self._change_log = ChangeLog()

    def set_change_log(self, change_log: ChangeLog) -> None:
        """Write changes to *change_log* from now on."""
        self._change_log = change_log

    def join(self, client: Client, payload: bytes) -> None:
        """Make a client a member of a group with a pattern, or refuse it.

        Raises:
            ProtocolError: EINVAL, *payload* is malformed, or no group can have the pattern; EDQUOT, there are too many groups.
        """
        stored = parse_membership(payload)
        pattern, group = split_stored(stored)
        verdict = self._access.subscription(pattern, client.credentials, client.connection)
        if verdict.code is not None:
            self._refusals.refuse_subscription(client, pattern, verdict)
            return
        self._check_pattern(pattern)
        if not self._switch.may_join(client.connection, group):
            raise ProtocolError(
                ErrorCode.EDQUOT, f"at most {MAX_GROUPS} groups of one connection and {MAX_USER_GROUPS} of one user are possible"
            )
        refusal = self._quotas.charge_subscription(client.connection, stored)
        if refusal is not None:
            self._refusals.refuse_for_quota(client, refusal, _JOIN)
            return
        self._switch.subscribe(client.connection, stored)
        client.subscriptions += 1
        self._change_log.subscribed(client, stored)
        self._presence.subscribed(client, stored)

    def leave(self, client: Client, payload: bytes) -> bool:
        """Remove one instance of a member's pattern and return True, or return False if there is none.

        Raises:
            ProtocolError: EINVAL, *payload* is malformed.
        """
        return self._unsubscribe(client, parse_membership(payload))

    def _check_pattern(self, pattern: bytes) -> None:
        """Raise ProtocolError (EINVAL) if no group can have an allowed *pattern*: it is for one connection or process, or for events."""
        if self._access.keyspace.namespace(pattern) is None:
            return
        if not pattern.startswith(SECRET_HEAD) or self._access.names_process(pattern):
            raise ProtocolError(
                ErrorCode.EINVAL, "the pattern of a group must be an ordinary one, or one for private keys that names no process"
            )
