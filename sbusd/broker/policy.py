"""The administrator's rules: who may publish and subscribe where, and who may do more. Spec: sbusd.toml(5).

For a key, the first rule decides that is about it and about the client, and that has a word on the action. For a pattern, which
stands for many keys, all of them must be allowed: a rule that denies decides as soon as the pattern could reach one key of its,
unless an earlier rule already allows them all; one that allows decides only if the pattern reaches no other keys than its own.

A key at an address has two names for the rules on publishing: the whole key, and the key behind the address. Both must be allowed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sbusd.config.rules import PolicyRule, RightsSettings, Subjects
from sbusd.dataplane.contract import PublishRule
from sbusd.protocol.credentials import Credentials
from sbusd.protocol.keys import KeySpace
from sbusd.protocol.overlap import Reach


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether the rules allow something, and the one that decided; None: no rule is about it, so it is allowed."""

    is_allowed: bool
    rule: PolicyRule | None = None


_UNDECIDED = Decision(True)


@dataclass(frozen=True, slots=True)
class Policy:
    """The rules of one bus in their order, and the rights of some."""

    rules: tuple[PolicyRule, ...] = ()
    rights: RightsSettings = field(default_factory=RightsSettings)

    @property
    def publishing(self) -> tuple[PolicyRule, ...]:
        """The rules on publishing: the n-th is bit n of :meth:`publish_mask`."""
        return tuple(rule for rule in self.rules if rule.publish is not None)

    def publish_rules(self) -> tuple[PublishRule, ...]:
        """Return :attr:`publishing` as the switch takes them."""
        return tuple(PublishRule(rule.prefix, rule.publish == "allow") for rule in self.publishing)

    def publish_mask(self, who: Credentials) -> int:
        """Return which of the rules on publishing are about *who*, as bits: what the switch needs to decide by itself."""
        return sum(1 << number for number, rule in enumerate(self.publishing) if _is_about(rule, who))

    def publication(self, keyspace: KeySpace, key: bytes, who: Credentials) -> Decision:
        """Return whether *who* may publish to *key*: what the switch decides for itself, with its rule.

        Where there is a key behind an address, the rules must allow both: the whole key, and the one behind the address.
        """
        whole, inner = self._publication(key, who), keyspace.inner_key(key)
        if inner is None or not whole.is_allowed:
            return whole
        behind = self._publication(inner, who)
        return whole if behind.rule is None else behind

    def _publication(self, key: bytes, who: Credentials) -> Decision:
        """Return what the first rule says that is about *key* byte for byte and about *who*."""
        for rule in self.rules:
            if rule.publish is not None and key.startswith(rule.prefix) and _is_about(rule, who):
                return Decision(rule.publish == "allow", rule)
        return _UNDECIDED

    def subscription(self, reach: Reach, who: Credentials) -> Decision:
        """Return whether *who* may subscribe to the pattern that *reach* is of."""
        opened: tuple[bytes, ...] = ()
        for rule in self.rules:
            if rule.subscribe is None or not _is_about(rule, who):
                continue
            prefix = rule.prefix
            if rule.subscribe == "allow":
                if reach.is_within(prefix):
                    return Decision(True, rule)
                opened += (prefix,)
            elif reach.touches(prefix) and not prefix.startswith(opened):
                return Decision(False, rule)
        return _UNDECIDED

    def may_see_presence(self, who: Credentials) -> bool:
        """Return whether *who* may know of other users' connections."""
        return _has(who, self.rights.presence)

    def may_tap(self, who: Credentials) -> bool:
        """Return whether *who* may be told of all traffic."""
        return _has(who, self.rights.tap)

    def may_block_others(self, who: Credentials) -> bool:
        """Return whether a full queue of *who* may hold up publishers of other users."""
        return _has(who, self.rights.block_others)


def _is_about(rule: PolicyRule, who: Credentials) -> bool:
    """Return whether a rule is about *who*; one that names nobody is about everyone."""
    return not (rule.users or rule.groups) or _names(who, rule.users, rule.groups)


def _has(who: Credentials, subjects: Subjects) -> bool:
    """Return whether *who* is among *subjects*."""
    return _names(who, subjects.users, subjects.groups)


def _names(who: Credentials, users: tuple[int, ...], groups: tuple[int, ...]) -> bool:
    """Return whether *who* is one of the users, or in one of the groups."""
    return who.uid in users or who.gid in groups or not who.groups.isdisjoint(groups)
