"""What clients send under ``!/to/``: direct messages, for one connection alone. Spec: sbus-protocol(7) §6.

The switch routes each well-formed direct message of a client with the right ``deliver``. The control plane gets only the others, and
refuses them.
"""

from __future__ import annotations

from sbus.protocol import controls
from sbus.protocol.direct_messages import check_direct
from sbus.protocol.errors import ErrorCode, ProtocolError
from sbus.protocol.packets import Control
from sbusd.broker import log_messages
from sbusd.broker.access import AccessRules
from sbusd.broker.client_log import ClientLog
from sbusd.broker.roster import Client
from sbusd.broker.vouching import Vouching

_LOGGED_BYTES = 1_024
"""Longest part of a refused name in the log. The name can be as long as a packet."""


class DirectMessages:
    """The refusals of one bus. *vouching* refuses what a direct message has from others."""

    def __init__(self, access: AccessRules, vouching: Vouching, *, log: ClientLog) -> None:
        self._access = access
        self._vouching = vouching
        self._log = log

    def refuse(self, client: Client, packet: Control) -> None:
        """Raise ProtocolError with the reason why the switch did not route *packet*, whose key begins with ``!/to/``: EPERM, the client
        does not have the right, or the right to vouch; EMSGSIZE or EINVAL, the packet is malformed."""
        if not self._access.policy.may_deliver(client.credentials):
            self._log.record(log_messages.DELIVER_REFUSED, client, key=packet.key[:_LOGGED_BYTES])
            raise ProtocolError(ErrorCode.EPERM, "only users with the deliver right can publish to one connection alone")
        check_direct(packet.key.removeprefix(controls.TO), packet.payload)
        self._vouching.check_right(client, packet.key)
        raise AssertionError("a well-formed direct message that a client may send has come to the control plane")
