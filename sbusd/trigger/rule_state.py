"""One rule at work: what each message causes, and the counters. No I/O."""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass

from sbusd.client.items import Message
from sbusd.config.trigger import TriggerRule
from sbusd.config.users import ChargedUsers
from sbusd.protocol.credentials import Peer
from sbusd.trigger.conditions import Payload
from sbusd.trigger.instances import UnitNameError, unit_of
from sbusd.trigger.rates import Limits, RateDecision
from sbusd.trigger.senders import Sender, sender_of

JOURNAL_HEAD = b"journal/"

OWN_HEAD = b"trigger/"
"""The beginning of the keys that the trigger itself publishes to."""

_CURSOR = "__CURSOR"
_CURSOR_CHARACTERS = 256
"""Longest cursor that is remembered: twice that of systemd."""

_REMEMBERED_ENTRIES = 1_024
"""Entries of the journal that are remembered: the feed sends its last batch again after it has lost the bus."""


@dataclass(frozen=True, slots=True)
class Firing:
    """One action that a message has caused; without a message, lost messages have."""

    rule: TriggerRule
    unit: str
    key: bytes = b""
    payload: bytes = b""
    sender: Sender | None = None


class RuleState:
    """A rule, its limits, and ``counts``: the numbers of messages by outcome; the names are those of sbus-trigger(8).

    *charged* says whose limits a sender takes.
    """

    def __init__(self, rule: TriggerRule, charged: ChargedUsers) -> None:
        self.rule = rule
        self._charged = charged
        self.limits = Limits(rule.burst, rule.loop)
        self.counts: Counter[str] = Counter()
        self.problem = ""
        """Why the last message was not used, for the log."""
        self._entries: OrderedDict[str, None] = OrderedDict()

    def judge(self, message: Message, now: float) -> tuple[str, Firing | None]:
        """Return the outcome of *message* at *now*, seconds of a clock that is not set, and the action that it causes, if any."""
        # A wildcard can match the trigger's own messages; then each action would cause the next one.
        outcome, firing = ("unmatched", None) if message.key_bytes.startswith(OWN_HEAD) else self._judged(message, now)
        self.counts["messages"] += 1
        self.counts[outcome] += 1
        return outcome, firing

    def sender(self, peer: Peer | None) -> Sender | None:
        """Return the sender of a message or call if it counts, else None, and why as ``problem``."""
        sender = sender_of(self.rule, peer, self._charged)
        if sender is None:
            name = "unknown" if peer is None else peer.origin or f"user {peer.uid}"
            self.problem = f"its sender, {name}, is not in from"
        return sender

    def admit(self, sender: Sender, key: bytes, payload: bytes, now: float) -> tuple[str, Firing | None]:
        """Return the outcome of a message or call that meets the conditions, by the limits of its sender, and its action, if any."""
        rule = self.rule
        try:
            unit = unit_of(rule, key)
        except UnitNameError as error:
            self.problem = str(error)
            return "invalid", None
        verdict = self.limits.judge(sender.charged, now)
        if verdict is RateDecision.ALLOWED:
            return "accepted", Firing(rule, unit, key, payload, sender)
        if verdict is RateDecision.BURST:
            self.problem = f"user {sender.charged} has sent more than {rule.burst.count} in {rule.burst.interval:g} s"
        elif verdict is RateDecision.ALL_BURST:
            self.problem = (
                f"all users together have caused their maximum of actions in {rule.burst.interval:g} s; see burst in trigger.toml(5)"
            )
        elif verdict is RateDecision.LOOP:
            self.problem = f"user {sender.charged} has caused {rule.loop.count} actions in {rule.loop.interval:g} s"
        return verdict.value, None

    def gap(self, lost: int) -> Firing | None:
        """Note that messages are missing, *lost* of them or an unknown number if 0; return the action that this causes, if any."""
        self.counts["gaps"] += 1
        self.counts["lost"] += lost
        return Firing(self.rule, self.rule.unit) if self.rule.on_gap == "fire" else None

    def _judged(self, message: Message, now: float) -> tuple[str, Firing | None]:
        sender = self.sender(message.sender)
        if sender is None:
            return "wrong_sender", None
        payload = Payload(message.payload)
        if not payload.matches(self.rule.match):
            return "unmatched", None
        if message.key_bytes.startswith(JOURNAL_HEAD) and self._is_repeated(payload):
            return "repeated", None
        return self.admit(sender, message.key_bytes, message.payload, now)

    def _is_repeated(self, payload: Payload) -> bool:
        """Return whether this entry of the journal has come before, and remember it."""
        cursor = next(iter(payload.texts(_CURSOR)), "")[:_CURSOR_CHARACTERS]
        if not cursor:
            return False
        if cursor in self._entries:
            return True
        self._entries[cursor] = None
        if len(self._entries) > _REMEMBERED_ENTRIES:
            self._entries.popitem(last=False)
        return False
