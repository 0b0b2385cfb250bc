"""The revocation of subscriptions that new rules do not allow, in steps between turns. Spec: sbusd.toml(5), sbusd(8), SIGNALS."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sbus.protocol.errors import ErrorCode
from sbus.protocol.memberships import split_stored, subscription_words
from sbusd.broker import log_messages
from sbusd.broker.access import AccessRules
from sbusd.broker.client_log import ClientLog
from sbusd.broker.refusals import Refusals
from sbusd.broker.roster import Client, Roster
from sbusd.dataplane.contract import Switch

PATTERNS_AT_ONCE = 16
"""Number of patterns of a client that are read from the switch together."""

Unsubscribe = Callable[[Client, bytes], bool]


class Revocation:
    """The check of all subscriptions of one bus. *unsubscribe* removes an instance of a pattern, and returns whether there was one."""

    def __init__(self, switch: Switch, roster: Roster, refusals: Refusals, log: ClientLog, unsubscribe: Unsubscribe) -> None:
        self._switch = switch
        self._roster = roster
        self._refusals = refusals
        self._log = log
        self._unsubscribe = unsubscribe
        self._steps: Iterator[None] = iter(())
        self.is_running = False

    def start(self, access: AccessRules) -> None:
        """Start to check all subscriptions by the rules *access*, from the first client."""
        self._steps = self._check_all(access)
        self.is_running = True

    def step(self) -> None:
        """Check one client or one pattern, or remove one instance of a pattern. The bus may work between steps."""
        self.is_running = next(self._steps, self) is not self

    def _check_all(self, access: AccessRules) -> Iterator[None]:
        """Revoke the subscriptions of all clients that *access* does not allow."""
        number = 0
        while (client := self._roster.following(number)) is not None:
            number = client.connection
            yield from self._check(access, client)
            yield

    def _check(self, access: AccessRules, client: Client) -> Iterator[None]:
        """Revoke the subscriptions of one client that *access* does not allow, send it the errors, and write one record."""
        number = client.connection
        rule, count = None, 0
        for pattern in self._patterns(number):
            yield
            if number not in self._roster:
                break
            verdict = access.subscription(split_stored(pattern)[0], client.credentials, number)
            if verdict.rule is None or verdict.is_allowed:
                continue
            before = count
            # The client itself may remove instances between steps, so their number is not known in advance.
            while number in self._roster and self._unsubscribe(client, pattern):
                count += 1
                yield
            if count > before and number in self._roster:
                reason = f"{subscription_words(pattern)} has ended: {verdict.reason}"
                self._refusals.refuse(client, ErrorCode.EPERM, reason, b"SUB " + pattern)
                rule = rule or verdict.rule
        if rule is not None:
            self._log.record(log_messages.SUBSCRIPTIONS_REVOKED, client, count=count, rule=rule.name)

    def _patterns(self, number: int) -> Iterator[bytes]:
        """Iterate over the patterns of a connection, which may change meanwhile, until the connection has ended."""
        last: bytes | None = None
        while number in self._roster:
            found = self._switch.patterns_after(number, last, PATTERNS_AT_ONCE)
            yield from found
            if len(found) < PATTERNS_AT_ONCE:
                return
            last = found[-1]
