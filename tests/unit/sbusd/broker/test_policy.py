"""The order of rules for keys and patterns, and the rights that the switch enforces.

tests/property/test_policy.py compares the order with a brute-force search.
"""

from __future__ import annotations

from unittest.mock import patch

import pytest

from sbus.protocol.credentials import Credentials
from sbus.protocol.keys import KeySpace, Reach
from sbus_programs.config.rules import Origin, PolicyRule, RightsSettings, Subjects
from sbus_programs.config.settings import DaemonSettings
from sbusd.broker.access import AccessRules, BusOwnership
from sbusd.broker.policy import MAX_CREDENTIALS, Policy, SwitchRights, SwitchRightsCache
from sbusd.broker.roster import MAX_ALLOWED, MAX_ALLOWED_BYTES
from sbusd.dataplane.contract import Sight
from tests.support.in_process_bus import MakeBus
from tests.support.wire import error_code

ALICE = Credentials(1, 1000, 100, frozenset({27}))
BOB = Credentials(2, 1001, 101)

OPEN = PolicyRule("lab/open/", "allow", "allow", origin=Origin("f", 1))
STAFF = PolicyRule("lab/", "allow", "allow", groups=(27,), origin=Origin("f", 2))
CLOSED = PolicyRule("lab/", "deny", "deny", origin=Origin("f", 3))
LAB = Policy((OPEN, STAFF, CLOSED))


def subscribes(policy: Policy, pattern: bytes, who: Credentials) -> bool:
    """Return whether *who* may subscribe."""
    return policy.subscription(Reach(KeySpace(), pattern), who).is_allowed


def test_without_rules_everything_is_allowed() -> None:
    assert Policy().publication(KeySpace(), b"a", ALICE).rule is None
    assert Policy().publication(KeySpace(), b"a", ALICE).is_allowed
    assert subscribes(Policy(), b"", ALICE)
    assert Policy().publish_mask(ALICE) == 0


def test_the_first_rule_about_key_and_client_decides_who_publishes() -> None:
    found = {(key, who): LAB.publication(KeySpace(), key, who) for key in (b"lab/open/x", b"lab/x", b"lab", b"x") for who in (ALICE, BOB)}
    assert {each: decision.rule for each, decision in found.items()} == {
        (b"lab/open/x", ALICE): OPEN,
        (b"lab/open/x", BOB): OPEN,
        (b"lab/x", ALICE): STAFF,
        (b"lab/x", BOB): CLOSED,
        (b"lab", ALICE): None,
        (b"lab", BOB): None,
        (b"x", ALICE): None,
        (b"x", BOB): None,
    }
    assert [each for each, decision in found.items() if not decision.is_allowed] == [(b"lab/x", BOB)]


@pytest.mark.parametrize("pattern", [b"", b"*/", b"*/x", b"lab/", b"lab/x", b"lab/*", b"l*/x", b"lab/open", b"lab*/x"])
def test_no_wildcard_evades_a_denying_rule(pattern: bytes) -> None:
    assert not subscribes(LAB, pattern, BOB)
    assert LAB.subscription(Reach(KeySpace(), pattern), BOB).rule is CLOSED
    assert subscribes(LAB, pattern, ALICE)


@pytest.mark.parametrize("pattern", [b"lab/open/", b"lab/open/*", b"lab", b"lab*", b"*", b"labor/", b"x", b"la*b/x"])
def test_patterns_that_match_no_denied_key_are_allowed(pattern: bytes) -> None:
    assert subscribes(LAB, pattern, BOB)


def test_allowing_a_part_of_the_matched_keys_does_not_allow_the_rest() -> None:
    assert not subscribes(Policy((PolicyRule("lab/", subscribe="allow"), PolicyRule("", subscribe="deny"))), b"", BOB)
    assert not subscribes(Policy((PolicyRule("lab/x", subscribe="allow"), PolicyRule("lab/", subscribe="deny"))), b"lab/*", BOB)


def test_a_denial_within_an_earlier_allowance_has_no_effect() -> None:
    policy = Policy((PolicyRule("lab/", subscribe="allow"), PolicyRule("lab/x/", subscribe="deny"), PolicyRule("x", subscribe="deny")))
    assert subscribes(policy, b"lab/", BOB)
    assert subscribes(policy, b"*/x/", BOB) is False  # it could match x…/x/
    assert subscribes(policy, b"l*/x/", BOB)


def test_a_rule_without_a_setting_for_the_action_does_not_decide() -> None:
    policy = Policy((PolicyRule("a", publish="deny"), PolicyRule("a", subscribe="deny"), PolicyRule("a", publish="allow")))
    assert policy.publication(KeySpace(), b"a", BOB).rule is policy.rules[0]
    assert policy.subscription(Reach(KeySpace(), b"a"), BOB).rule is policy.rules[1]


def test_rules_also_apply_to_the_key_after_an_address() -> None:
    policy = Policy(
        (OPEN, CLOSED, PolicyRule("!/conn/9/", publish="deny"), PolicyRule("!/conn/", publish="allow"), PolicyRule("q", "deny"))
    )
    keys = (b"5/lab/open/x", b"5/lab/x", b"9/lab/open/x", b"5/x", b"5/q")
    found = {key: policy.publication(KeySpace(), b"!/conn/" + key, BOB) for key in keys}
    assert {key: (decision.is_allowed, decision.rule) for key, decision in found.items()} == {
        b"5/lab/open/x": (True, OPEN),
        b"5/lab/x": (False, CLOSED),
        b"9/lab/open/x": (False, policy.rules[2]),
        b"5/x": (True, policy.rules[3]),
        b"5/q": (False, policy.rules[4]),
    }
    # A key without an address has no key after one.
    for key in (b"!/conn/5", b"!/conn/lab/x", b"!/connx/5/lab/x"):
        assert policy.publication(KeySpace(), key, BOB).is_allowed, key
    assert policy.publication(KeySpace(b"."), b"!/conn/5/lab/x", BOB).is_allowed


def test_a_rule_applies_to_its_users_and_groups() -> None:
    rules = (
        PolicyRule("a", publish="deny", users=(1000,)),
        PolicyRule("b", publish="deny", groups=(27,)),
        PolicyRule("c", publish="deny", groups=(100,)),
        PolicyRule("d", subscribe="deny"),
        PolicyRule("e", publish="deny", users=(1001,), groups=(27,)),
        PolicyRule("f", publish="deny"),
    )
    policy = Policy(rules)
    assert [rule.keys for rule in policy.publishing] == ["a", "b", "c", "e", "f"]
    assert policy.publish_mask(ALICE) == 0b11111
    assert policy.publish_mask(BOB) == 0b11000
    for who in (ALICE, BOB):
        for bit, rule in enumerate(policy.publishing):
            assert policy.publication(KeySpace(), rule.keys.encode(), who).is_allowed is not bool(policy.publish_mask(who) >> bit & 1)


def test_only_named_users_have_rights() -> None:
    policy = Policy((), RightsSettings(Subjects((1000,)), Subjects(), Subjects((), (101,))))
    assert [policy.may_see_presence(who) for who in (ALICE, BOB)] == [True, False]
    assert [policy.may_block_others(who) for who in (ALICE, BOB)] == [False, True]
    assert not Policy().may_block_others(Credentials(1, 0, 0))
    assert not Policy().may_vouch(Credentials(1, 0, 0))
    vouching = Policy((), RightsSettings(vouch=Subjects((), (101,))))
    assert [vouching.may_vouch(who) for who in (ALICE, BOB)] == [False, True]
    assert not Policy().may_deliver(Credentials(1, 0, 0))
    delivering = Policy((), RightsSettings(deliver=Subjects((1000,))))
    assert [delivering.may_deliver(who) for who in (ALICE, BOB)] == [True, False]
    assert [SwitchRightsCache(delivering, frozenset()).of(who).may_deliver for who in (ALICE, BOB)] == [True, False]


def test_the_switch_gets_the_publish_rules_in_order() -> None:
    policy = Policy((PolicyRule("ä", publish="deny"), PolicyRule("b", subscribe="deny"), PolicyRule("c", publish="allow")))
    assert [rule[:2] for rule in policy.publish_rules()] == [("ä".encode(), False), (b"c", True)]


def test_the_switch_gets_the_errors_of_rules_that_deny_as_subscribers_get_them() -> None:
    origin = Origin("/etc/sbus/sbusd.toml", 2)
    policy = Policy((PolicyRule("lab/", publish="deny", comment="ask Ödön", origin=origin), PolicyRule("c", publish="allow", comment="c")))
    error = "CMSG !/bus/error\0EPERM refused by rule 2 of /etc/sbus/sbusd.toml: ask Ödön".encode()
    assert [rule.refusal for rule in policy.publish_rules()] == [error, b""]


POLICY = Policy(
    (PolicyRule(keys="a/", publish="deny", groups=(27,)), PolicyRule(keys="b/", publish="deny")),
    RightsSettings(presence=Subjects(users=(1000,)), block_others=Subjects(groups=(27,))),
)


def test_rights_depend_on_user_groups_and_ownership() -> None:
    cache = SwitchRightsCache(POLICY, frozenset({0}))
    assert cache.of(ALICE) == SwitchRights(True, 0b11, Sight.PRESENCE)
    assert cache.of(ALICE._replace(groups=frozenset())) == SwitchRights(False, 0b10, Sight.PRESENCE)
    assert cache.of(ALICE._replace(gid=27, groups=frozenset())) == SwitchRights(True, 0b11, Sight.PRESENCE)
    assert cache.of(ALICE._replace(uid=1001)) == SwitchRights(True, 0b11, Sight.OWN)
    assert cache.of(ALICE._replace(uid=0)) == SwitchRights(True, 0b11, Sight.ALL)


def test_the_rules_are_evaluated_once_for_all_connections_of_a_user() -> None:
    cache = SwitchRightsCache(POLICY, frozenset())
    with patch.object(Policy, "publish_mask", autospec=True, side_effect=Policy.publish_mask) as looked:
        found = {cache.of(ALICE._replace(pid=pid)) for pid in range(1, 100)}
    assert len(found) == 1
    assert looked.call_count == 1


IN_WEB = ALICE._replace(unit="web.service")
ABOUT_UNITS = Policy(
    (
        PolicyRule("a", "allow", "deny", units=("web.service",)),
        PolicyRule("a", "deny", "allow", users=(1000,), units=("mail@*.service",)),
        PolicyRule("b", "deny", "deny", groups=(77,), units=("web.service",)),
    )
)


def test_a_rule_about_units_applies_to_those_alone() -> None:
    assert ABOUT_UNITS.publish_mask(IN_WEB) == 0b001
    assert ABOUT_UNITS.publish_mask(IN_WEB._replace(gid=77)) == 0b101
    assert ABOUT_UNITS.publish_mask(ALICE._replace(unit="mail@x.service")) == 0b010
    assert ABOUT_UNITS.publish_mask(BOB._replace(unit="mail@x.service")) == 0
    assert ABOUT_UNITS.publish_mask(ALICE._replace(unit="")) == ABOUT_UNITS.publish_mask(ALICE._replace(unit="x.service")) == 0


def test_an_unknown_unit_is_denied_what_any_unit_is_denied_and_allowed_nothing() -> None:
    assert ABOUT_UNITS.publish_mask(ALICE) == 0b010
    assert ABOUT_UNITS.publish_mask(ALICE._replace(gid=77)) == 0b110
    assert not subscribes(ABOUT_UNITS, b"a", ALICE)
    assert subscribes(ABOUT_UNITS, b"a", ALICE._replace(unit=""))


def test_only_users_of_a_rule_about_units_need_a_unit() -> None:
    assert ABOUT_UNITS.depends_on_unit
    assert ABOUT_UNITS.needs_unit(BOB)
    named = Policy(tuple(rule for rule in ABOUT_UNITS.rules if rule.users or rule.groups))
    assert [named.needs_unit(who) for who in (ALICE, BOB, BOB._replace(gid=77))] == [True, False, True]
    assert not POLICY.depends_on_unit
    assert not POLICY.needs_unit(ALICE)


def test_rights_depend_on_the_unit_only_if_a_rule_does() -> None:
    cache = SwitchRightsCache(ABOUT_UNITS, frozenset())
    assert cache.of(IN_WEB) == SwitchRights(False, 0b001, Sight.OWN, needs_unit=True)
    assert cache.of(ALICE).rules == 0b010
    assert len(cache.known) == 2
    cache = SwitchRightsCache(POLICY, frozenset())
    assert cache.find(IN_WEB) is cache.find(ALICE)


def test_the_cache_is_bounded_for_many_users() -> None:
    cache = SwitchRightsCache(POLICY, frozenset())
    for uid in range(3 * MAX_CREDENTIALS):
        assert cache.of(ALICE._replace(uid=uid)).sight is (Sight.PRESENCE if uid == 1000 else Sight.OWN)
        assert len(cache.known) <= MAX_CREDENTIALS


CLOSED_TO_STAFF = PolicyRule(keys="lab/", subscribe="deny", groups=(27,))
OWNERSHIP = BusOwnership(0, None, frozenset({0}))


def test_cached_patterns_do_not_apply_to_other_users_or_new_rules(make_bus: MakeBus) -> None:
    bus = make_bus(DaemonSettings(policy=(CLOSED_TO_STAFF,)))
    free, same_user, closed_out = bus.client(uid=1000), bus.client(uid=1000, groups=frozenset({27})), bus.client(uid=1001, gid=27)
    for _ in range(2):
        free.subscribe(b"lab/x")
        assert free.barrier() == []
        for each in (same_user, closed_out):
            each.subscribe(b"lab/x")
            assert [error_code(packet) for packet in each.barrier()] == ["EPERM"]
    bus.broker.reconfigure(DaemonSettings(policy=(PolicyRule(keys="lab/", subscribe="deny"),)), OWNERSHIP)
    free.subscribe(b"lab/x")
    assert [error_code(packet) for packet in free.barrier()] == ["EPERM"]
    bus.broker.reconfigure(DaemonSettings(), OWNERSHIP)
    for each in (free, same_user, closed_out):
        each.subscribe(b"lab/x")
        assert each.barrier() == []


def test_rules_are_evaluated_once_per_pattern_and_user_but_each_time_for_a_secret_key(make_bus: MakeBus) -> None:
    bus = make_bus(DaemonSettings(policy=(CLOSED_TO_STAFF,)))
    with patch.object(AccessRules, "subscription", autospec=True, side_effect=AccessRules.subscription) as looked:
        for pid in range(1, 10):
            client = bus.client(uid=1000, pid=pid)
            client.subscribe(b"lab/x")
            assert client.barrier() == []
        assert looked.call_count == 1
        other = bus.client(uid=1000, pid=77)
        for pattern in (b"!/cred//1000//x", b"!/cred//1000//x"):
            other.subscribe(pattern)
        assert other.barrier() == []
        assert looked.call_count == 3


def test_the_cache_is_bounded_for_many_patterns(make_bus: MakeBus) -> None:
    bus = make_bus()
    client = bus.client(uid=1000)
    for number in range(3 * MAX_ALLOWED):
        client.subscribe(b"%d" % number)
        client.subscribe(b"%d/" % number + MAX_ALLOWED_BYTES * b"x")
        assert client.barrier() == []
    allowed = bus.broker.roster[client.connection].allowed
    assert 0 < len(allowed) <= MAX_ALLOWED
    assert max(map(len, allowed)) <= MAX_ALLOWED_BYTES
