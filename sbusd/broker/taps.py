"""Taps: clients that receive a copy of all matching traffic, ``!/tap``, and for them all subscriptions in pages, ``!/bus/subscriptions``.

A page is correct when it is made, and follows all earlier lines of the tap. So a client that reads all pages and applies the later events
knows all subscriptions, although they change meanwhile. Spec: sbus-protocol(7) §6.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from sbus.protocol import controls
from sbus.protocol.errors import ErrorCode, ProtocolError
from sbus.protocol.keys import SECRET_HEAD
from sbusd.broker import log_messages
from sbusd.broker.access import AccessRules
from sbusd.broker.change_log import ChangeLog
from sbusd.broker.client_log import ClientLog
from sbusd.broker.events import stored_members
from sbusd.broker.quotas import UserQuotas
from sbusd.broker.refusals import Refusals
from sbusd.broker.roster import Client, Roster
from sbusd.dataplane.contract import Switch

PAGE_PATTERNS = 150
"""Patterns in one reply: about 20 kB of JSON, made in a third of a millisecond."""

PAGE_CLIENTS = 100
"""Maximum number of clients on a page, with or without patterns."""

PAGE_PATTERN_BYTES = 16 << 10
"""Bytes of patterns after which a page ends. JSON can encode one byte as six."""

_AFTER_SECRETS = SECRET_HEAD[:-1] + bytes([SECRET_HEAD[-1] + 1])
"""Greater than every pattern for private keys. As a pattern it is reserved, so no client has it."""

_CURSOR = re.compile(rb"([0-9]{1,19})/((?:[0-9a-f]{2})*)")


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
            raise ProtocolError(ErrorCode.EPERM, "only owners and users with the tap right can tap this bus")
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


@dataclass(frozen=True, slots=True)
class Cursor:
    """The end of a page: after one pattern of one connection. Patterns are ordered by their bytes, connections by number."""

    connection: int
    pattern: bytes

    @classmethod
    def parse(cls, text: bytes) -> Cursor | None:
        """Return the cursor *text*, or None for the start if it is empty. Raises ProtocolError (EINVAL) for anything else."""
        if not text:
            return None
        match = _CURSOR.fullmatch(text)
        if match is None:
            raise ProtocolError(ErrorCode.EINVAL, "the page to start after must be the value next of the previous page")
        return cls(int(match[1]), bytes.fromhex(match[2].decode()))

    def __str__(self) -> str:
        return f"{self.connection}/{self.pattern.hex()}"


def subscription_page(switch: Switch, roster: Roster, prefix: bytes, after: bytes, hides_from: int | None = None) -> dict[str, object]:
    """Return a page of the subscriptions of all clients after the cursor *after*.

    With *hides_from*, patterns for private keys are listed only if that user has stored them.

    Raises:
        ProtocolError: EINVAL, *after* is not a cursor.
    """
    cursor = Cursor.parse(after)
    found: list[dict[str, object]] = []
    size = 0
    before = 0
    for visited, client in enumerate(roster.after(cursor.connection - 1 if cursor else 0)):
        if visited == PAGE_CLIENTS:
            # Clients without patterns take time too. A cursor after the empty pattern is after a client that has no pattern.
            end = cursor if cursor is not None and cursor.connection == before else Cursor(before, b"")
            return {"after": after.decode(), "subscriptions": found, "next": str(end)}
        before = client.connection
        is_begun = cursor is not None and client.connection == cursor.connection
        cred = client.credentials.key(prefix).decode()
        hides = hides_from is not None and hides_from != client.credentials.uid
        for pattern in _patterns_after(switch, client.connection, cursor.pattern if cursor and is_begun else None, hides_secrets=hides):
            if len(found) == PAGE_PATTERNS or size >= PAGE_PATTERN_BYTES:
                return {"after": after.decode(), "subscriptions": found, "next": str(cursor)}
            found.append({"id": client.connection, "cred": cred, **stored_members(pattern)})
            size += len(pattern)
            cursor = Cursor(client.connection, pattern)
    return {"after": after.decode(), "subscriptions": found, "next": None}


def _patterns_after(switch: Switch, connection: int, after: bytes | None, *, hides_secrets: bool) -> list[bytes]:
    """Return patterns of a connection after *after*: if there are more than fit into a page, more than fit."""
    # One more than fits, to know whether another page follows.
    found = switch.patterns_after(connection, after, PAGE_PATTERNS + 1)
    if not hides_secrets:
        return found
    shown = [pattern for pattern in found if not pattern.startswith(SECRET_HEAD)]
    if len(shown) < len(found):
        # Those for private keys are adjacent in the order of bytes, and a client can have thousands of them.
        shown += switch.patterns_after(connection, max(found[-1], _AFTER_SECRETS), PAGE_PATTERNS + 1 - len(shown))
    return shown
