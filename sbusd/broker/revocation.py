"""The end of subscriptions that new rules do not allow, in steps between turns. Spec: sbusd.toml(5), sbusd(8), SIGNALS."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sbusd.broker import log_messages
from sbusd.broker.durable_state import BrokerComponents
from sbusd.broker.roster import Client
from sbusd.protocol.errors import ErrorCode
from sbusd.protocol.printable import printable

PATTERNS_AT_ONCE = 16
"""Patterns of a client that are read from the switch at once."""

Unsubscribe = Callable[[Client, bytes], bool]


def revocations(components: BrokerComponents, unsubscribe: Unsubscribe) -> Iterator[None]:
    """End the subscriptions of all clients that the rules of *components* do not allow, a client, pattern or instance a step.

    *unsubscribe* removes one instance of a client's pattern, and returns whether there was one. Between steps the bus may work.
    """
    number = 0
    while (client := components.roster.following(number)) is not None:
        number = client.connection
        yield from _revoke(components, unsubscribe, client)
        yield


def _revoke(components: BrokerComponents, unsubscribe: Unsubscribe, client: Client) -> Iterator[None]:
    """End the subscriptions of a client that the rules do not allow any more, and tell it which."""
    number = client.connection
    rule, count = None, 0
    for pattern in _patterns(components, number):
        yield
        if number not in components.roster:
            break
        verdict = components.acceptance.subscription(pattern, client.credentials, number)
        if verdict.rule is None or verdict.is_allowed:
            continue
        before = count
        # Not as often as it was when this began: the client may have ended some itself since.
        while number in components.roster and unsubscribe(client, pattern):
            count += 1
            yield
        if count > before and number in components.roster:
            words = f"the subscription {printable(pattern)} has ended: {verdict.reason}"
            components.refuse(client, ErrorCode.EPERM, words, b"SUB " + pattern)
            rule = rule or verdict.rule
    if rule is not None:
        who = client.credentials
        components.journal.record(
            log_messages.SUBSCRIPTIONS_REVOKED, uid=who.uid, pid=who.pid, connection=number, count=count, rule=rule.name
        )  # fmt: skip


def _patterns(components: BrokerComponents, number: int) -> Iterator[bytes]:
    """Iterate over the patterns of a client, which may change meanwhile, until it has ended."""
    last: bytes | None = None
    while number in components.roster:
        found = components.switch.patterns_after(number, last, PATTERNS_AT_ONCE)
        yield from found
        if len(found) < PATTERNS_AT_ONCE:
            return
        last = found[-1]
