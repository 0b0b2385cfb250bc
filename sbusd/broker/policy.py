"""The policy: the administrator's rules for publishing and subscribing, and the rights of users. Spec: sbusd.toml(5).

For a key, the first rule decides that matches the key and the client and that has a setting for the action. A pattern matches many keys,
and all of them must be allowed. So a rule that denies decides if the pattern could match one of its keys, unless an earlier rule allows all
of these. A rule that allows decides only if the pattern matches no other keys than those of the rule.

Rules on publishing apply twice to a key at an address: to the whole key, and to the key after the address. Both must be allowed.

A rule that names units needs the unit of the client. If that is unknown, the rule denies what it would deny, and does not allow what it
would allow. So a unit that becomes known never takes anything from its client.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from sbus.protocol.credentials import Credentials
from sbus.protocol.errors import ErrorCode
from sbus.protocol.keys import KeySpace, Reach
from sbus.protocol.packets import error_packet
from sbus_programs.config.rules import PolicyRule, RightsSettings, Subjects
from sbusd.broker.roster import AllowedPatterns
from sbusd.dataplane.contract import PublishRule, Sight


@dataclass(frozen=True, slots=True)
class Decision:
    """A decision, and the rule that decided; None: no rule matches, so the action is allowed."""

    is_allowed: bool
    rule: PolicyRule | None = None


_UNDECIDED = Decision(True)

MAX_CREDENTIALS = 1_024
"""Maximum number of sets of credentials in the cache of rights. When it is full, it is emptied."""


@dataclass(frozen=True, slots=True)
class Policy:
    """The rules of one bus in their order, and the rights of users."""

    rules: tuple[PolicyRule, ...] = ()
    rights: RightsSettings = field(default_factory=RightsSettings)

    @property
    def publishing(self) -> tuple[PolicyRule, ...]:
        """The rules on publishing. The n-th rule is bit n of :meth:`publish_mask`."""
        return tuple(rule for rule in self.rules if rule.publish is not None)

    @property
    def depends_on_unit(self) -> bool:
        """Whether any rule names units."""
        return any(rule.units for rule in self.rules)

    def needs_unit(self, who: Credentials) -> bool:
        """Return whether a decision about *who* depends on its unit."""
        return any(rule.units and _is_about(rule, who) for rule in self.rules)

    def publish_rules(self) -> tuple[PublishRule, ...]:
        """Return :attr:`publishing` for the switch."""
        return tuple(PublishRule(rule.prefix, rule.publish == "allow", self._error(rule)) for rule in self.publishing)

    def publish_mask(self, who: Credentials) -> int:
        """Return the rules on publishing that apply to *who*, as bits, with which the switch decides itself."""
        return sum(1 << number for number, rule in enumerate(self.publishing) if _applies_to(rule, who, rule.publish))

    def publication(self, keyspace: KeySpace, key: bytes, who: Credentials) -> Decision:
        """Return whether *who* may publish to *key*, with the rule.

        For messages the switch decides the same itself: ``is_denied`` in sbusd/dataplane/turn/delivery.pxi. Of a key at an address, the
        rules must allow both the whole key and the key after the address.
        """
        whole, inner = self._publication(key, who), keyspace.inner_key(key)
        if inner is None or not whole.is_allowed:
            return whole
        after = self._publication(inner, who)
        return whole if after.rule is None else after

    def _publication(self, key: bytes, who: Credentials) -> Decision:
        """Return the decision of the first rule that matches the bytes of *key* and applies to *who*."""
        for rule in self.rules:
            if rule.publish is not None and key.startswith(rule.prefix) and _applies_to(rule, who, rule.publish):
                return Decision(rule.publish == "allow", rule)
        return _UNDECIDED

    def publication_prefix(self, key: bytes, who: Credentials) -> bytes | None:
        """Return the shortest prefix of *key* whose keys have the same decision for *who*, reserved ones aside; None if there is none."""
        length = 0
        for rule in self.rules:
            if rule.publish is None or not _applies_to(rule, who, rule.publish):
                continue
            prefix = rule.prefix
            if key.startswith(prefix):
                length = max(length, len(prefix))
            elif prefix.startswith(key):
                return None
            else:
                length = max(length, next(place for place, pair in enumerate(zip(prefix, key, strict=False), 1) if pair[0] != pair[1]))
        return key[:length]

    def loss_report(self, reach: Reach, who: Credentials) -> Decision:
        """Return whether *who* may publish to any key that the pattern of *reach* matches."""
        denied: tuple[bytes, ...] = ()
        for rule in self.rules:
            if rule.publish is None or not _applies_to(rule, who, rule.publish):
                continue
            prefix = rule.prefix
            if rule.publish == "allow":
                if reach.touches(prefix) and not prefix.startswith(denied):
                    return Decision(True, rule)
            elif reach.is_within(prefix):
                return Decision(False, rule)
            else:
                denied += (prefix,)
        return _UNDECIDED

    def subscription(self, reach: Reach, who: Credentials) -> Decision:
        """Return whether *who* may subscribe to the pattern of *reach*."""
        allowed: tuple[bytes, ...] = ()
        for rule in self.rules:
            if rule.subscribe is None or not _applies_to(rule, who, rule.subscribe):
                continue
            prefix = rule.prefix
            if rule.subscribe == "allow":
                if reach.is_within(prefix):
                    return Decision(True, rule)
                allowed += (prefix,)
            elif reach.touches(prefix) and not prefix.startswith(allowed):
                return Decision(False, rule)
        return _UNDECIDED

    def refusal_reason(self, rule: PolicyRule, action: Literal["publish", "subscribe"]) -> str:
        """Return the words of the error for an *action* that *rule* denies.

        If another rule allows it to a group, the words say what a user needs to know who has just become a member.
        """
        words = f"refused by {rule.name}"
        allowing = (each.prefix for each in self.rules if each.groups and getattr(each, action) == "allow")
        if any(prefix.startswith(rule.prefix) or rule.prefix.startswith(prefix) for prefix in allowing):
            words += "; another rule allows it to a group: new members must log in again"
        return words

    def _error(self, rule: PolicyRule) -> bytes:
        """Return the error for a message that *rule* denies. Its comment is shown to those whom it denies something, and to no others."""
        return b"" if rule.publish == "allow" else error_packet(ErrorCode.EPERM, self.refusal_reason(rule, "publish"))

    def may_see_presence(self, who: Credentials) -> bool:
        """Return whether *who* may see connections of other users."""
        return _has(who, self.rights.presence)

    def may_tap(self, who: Credentials) -> bool:
        """Return whether *who* may receive a copy of all traffic."""
        return _has(who, self.rights.tap)

    def may_vouch(self, who: Credentials) -> bool:
        """Return whether *who* may publish messages in the name of others, and report losses."""
        return _has(who, self.rights.vouch)

    def may_deliver(self, who: Credentials) -> bool:
        """Return whether *who* may publish messages to one connection alone."""
        return _has(who, self.rights.deliver)

    def may_read_statistics(self, who: Credentials) -> bool:
        """Return whether *who* may read the counters of the bus and of all users."""
        return _has(who, self.rights.stats)

    def may_block_others(self, who: Credentials) -> bool:
        """Return whether a full queue of *who* may block publishers of other users."""
        return _has(who, self.rights.block_others)


def _applies_to(rule: PolicyRule, who: Credentials, decision: str | None) -> bool:
    """Return whether a rule applies to *who* with its *decision*. If the unit of *who* is unknown, a rule about units only denies."""
    return _is_about(rule, who) and (not rule.units or (decision == "deny" if who.unit is None else rule.names_unit(who.unit)))


def _is_about(rule: PolicyRule, who: Credentials) -> bool:
    """Return whether a rule is about the user or a group of *who*. A rule without users and groups is about all."""
    return not (rule.users or rule.groups) or _names(who, rule.users, rule.groups)


def _has(who: Credentials, subjects: Subjects) -> bool:
    """Return whether *subjects* include *who*."""
    return _names(who, subjects.users, subjects.groups)


def _names(who: Credentials, users: tuple[int, ...], groups: tuple[int, ...]) -> bool:
    """Return whether *who* is one of the users, or a member of one of the groups."""
    return who.uid in users or who.gid in groups or not who.groups.isdisjoint(groups)


class SwitchRights(NamedTuple):
    """The rights that the switch enforces itself, of all clients with the same user and groups.

    See :meth:`sbusd.dataplane.contract.Switch.set_party`.
    """

    blocks_others: bool
    rules: int
    sight: Sight
    may_vouch: bool = False
    may_deliver: bool = False
    needs_unit: bool = False
    """Whether they depend on the client's unit. The switch does not get this one."""


class SwitchRightsCache:
    """The rights under one policy, determined once for each set of credentials, not for each connection: that reads every rule.

    Create another cache when the policy or the *owners* change.
    """

    def __init__(self, policy: Policy, owners: frozenset[int]) -> None:
        self._policy = policy
        self._owners = owners
        self.depends_on_unit = policy.depends_on_unit
        """Whether rights can depend on the unit of a client."""
        self.known: dict[tuple[int, int, frozenset[int], str | None], tuple[SwitchRights, AllowedPatterns]] = {}
        """By uid, gid, groups, and the unit if anything depends on it: the rights, and ordinary patterns that such a client may subscribe
        to."""

    def of(self, who: Credentials) -> SwitchRights:
        """Return the rights of a client with the credentials *who*. Its pid does not matter."""
        return self.find(who)[0]

    def find(self, who: Credentials) -> tuple[SwitchRights, AllowedPatterns]:
        """Return the rights of *who*, and the cached patterns that such a client may subscribe to. The caller adds patterns."""
        key = who.uid, who.gid, who.groups, who.unit if self.depends_on_unit else None
        found = self.known.get(key)
        if found is None:
            if len(self.known) >= MAX_CREDENTIALS:
                self.known.clear()
            found = self.known[key] = self._determine(who), AllowedPatterns()
        return found

    def _determine(self, who: Credentials) -> SwitchRights:
        """Return the rights of *who* by the policy."""
        policy = self._policy
        sight = Sight.ALL if who.uid in self._owners else Sight.PRESENCE if policy.may_see_presence(who) else Sight.OWN
        rules = policy.publish_mask(who)
        return SwitchRights(
            policy.may_block_others(who), rules, sight, policy.may_vouch(who), policy.may_deliver(who), policy.needs_unit(who)
        )
