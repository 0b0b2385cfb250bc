"""What clients with the right ``vouch`` send: messages in the name of others, and reports of losses. Spec: sbus-protocol(7) §6.

The switch routes each well-formed message for which a client may vouch. The control plane gets only the others, and refuses them.
"""

from __future__ import annotations

from collections import Counter

from sbus.protocol import controls
from sbus.protocol.errors import ErrorCode, ProtocolError
from sbus.protocol.packets import Control
from sbus.protocol.vouching import check_vouched, parse_loss
from sbusd.broker import log_messages
from sbusd.broker.access import AccessRules
from sbusd.broker.client_log import ClientLog
from sbusd.broker.roster import Client
from sbusd.dataplane.contract import Switch

_LOGGED_BYTES = 1_024
"""Longest part of a refused name in the log. The name can be as long as a packet."""


class Vouching:
    """The decisions of one bus. *counts* are the broker's counters."""

    def __init__(self, switch: Switch, access: AccessRules, *, log: ClientLog, counts: Counter[str]) -> None:
        self._switch = switch
        self._access = access
        self._log = log
        self._counts = counts

    def refuse_message(self, client: Client, packet: Control) -> None:
        """Raise ProtocolError with the reason why the switch did not route *packet*, whose key begins with ``!/from/``: EPERM, the client
        does not have the right; EMSGSIZE or EINVAL, the packet is malformed."""
        self.check_right(client, packet.key)
        check_vouched(packet.key.removeprefix(controls.FROM), packet.payload)
        raise AssertionError("a well-formed message for which a client may vouch has come to the control plane")

    def report_loss(self, client: Client, payload: bytes) -> None:
        """Send a loss notice to each connection that has one of the patterns in *payload*, that of ``lost/for``.

        Raises:
            ProtocolError: EPERM, the client does not have the right, or may publish to no key that a pattern matches; EINVAL, the payload
                is malformed; EMSGSIZE, a pattern is too long. Then no connection gets a notice.
        """
        self.check_right(client, controls.LOST_FOR)
        count, patterns = parse_loss(payload)
        for pattern in patterns:
            verdict = self._access.loss_report(pattern, client.credentials)
            if verdict.code is not None:
                raise ProtocolError(verdict.code, verdict.reason)
        self._counts["reported_losses"] += self._switch.report_loss(patterns, count, uid=client.credentials.uid)

    def check_right(self, client: Client, key: bytes) -> None:
        """Raise ProtocolError (EPERM) if a client does not have the right ``vouch``."""
        if not self._access.policy.may_vouch(client.credentials):
            self._log.record(log_messages.VOUCH_REFUSED, client, key=key[:_LOGGED_BYTES])
            raise ProtocolError(ErrorCode.EPERM, "only users with the vouch right can publish in the name of others and report losses")
