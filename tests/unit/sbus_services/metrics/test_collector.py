"""The counts of one prefix."""

from __future__ import annotations

from sbus.items import Gap, Message, TapRecord
from sbus_services.metrics.collector import KeyPrefixes, PrefixCounts


def ignore(_prefix: str, _reason: str) -> None:
    """Take a failure."""


def record(kind: str, **fields: object) -> TapRecord:
    """Return a record of a tap."""
    message = Message(b"net/a", b"12345") if kind == "message" else None
    return TapRecord(kind, 1.0, None, fields, message)


def test_messages_are_counted_and_nothing_else() -> None:
    counts = PrefixCounts()
    counts.add(record("message", recipients=2, discarded=1))
    counts.add(record("message", recipients=0))
    counts.add(record("loss", count=5))
    counts.add(Gap(7))
    counts.add(Gap(0))
    assert (counts.messages, counts.payload_bytes, counts.recipients, counts.discarded) == (2, 10, 2, 1)
    assert (counts.missed, counts.interruptions) == (7, 1)


def test_families() -> None:
    prefixes = KeyPrefixes("/nowhere", ["net/", "a/"], ignore)
    prefixes.counts["a/"].messages = 3
    found = {family.metric.name: dict(family.samples) for family in prefixes.families()}
    assert found["sbus_prefix_messages_total"] == {("net/",): 0, ("a/",): 3}
    assert found["sbus_prefix_up"] == {("net/",): 0, ("a/",): 0}
    assert not list(KeyPrefixes("/nowhere", [], ignore).families())
