"""A pattern that the rules allow reaches no key that they deny; rules for publishing decide as the switch's bits do."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbus.protocol.credentials import Credentials
from sbus.protocol.errors import ErrorCode
from sbus.protocol.keys import KeySpace, Reach
from sbus.protocol.packets import error_packet
from sbus_programs.config.rules import PolicyRule
from sbusd.broker.access import AccessRules
from sbusd.broker.policy import Policy
from sbusd.dataplane.contract import Refusal
from tests.support.examples import examples
from tests.support.switch_harness import SwitchHarness, refused

WORDS = st.sampled_from(["allow", "deny", None])
PREFIXES = st.lists(st.sampled_from(["a", "b", "/"]), max_size=3).map("".join)
RULES = st.builds(
    lambda keys, publish, subscribe, users, groups, units: PolicyRule(
        keys, publish, subscribe or (None if publish else "deny"), users, groups, units
    ),
    PREFIXES,
    WORDS,
    WORDS,
    st.sampled_from([(), (1,), (2,)]),
    st.sampled_from([(), (5,)]),
    st.sampled_from([(), (), ("a.service",), ("t@*.service", "b.service")]),
)
PATTERNS = st.lists(st.sampled_from([b"a", b"b", b"*", b"/"]), max_size=5).map(b"".join)
CREDENTIALS = st.sampled_from([Credentials(1, 1, 1), Credentials(1, 2, 5), Credentials(1, 3, 3, frozenset({5}))])
UNITS = ["", "a.service", "t@1.service", "c.service"]
CLIENTS = st.builds(lambda who, unit: who._replace(unit=unit), CREDENTIALS, st.sampled_from([None, *UNITS]))
KEYS = [b"".join(key) for length in range(6) for key in itertools.product([b"a", b"b", b"/"], repeat=length)]


def decides(rule: PolicyRule, word: str | None, key: bytes, who: Credentials) -> bool:
    """Return whether *rule* decides about one key, as sbusd.toml(5) says it."""
    about = not rule.users + rule.groups or who.uid in rule.users or bool({who.gid, *who.groups} & set(rule.groups))
    if rule.units and who.unit is None:
        about = about and word == "deny"
    elif rule.units:
        about = about and ("t@*.service" if who.unit == "t@1.service" else who.unit) in rule.units
    return word is not None and key.startswith(rule.keys.encode()) and about


def subscribable(rules: list[PolicyRule], key: bytes, who: Credentials) -> bool:
    """Return whether the first rule that decides about *key* allows it."""
    return next((rule.subscribe == "allow" for rule in rules if decides(rule, rule.subscribe, key, who)), True)


@settings(max_examples=examples(300))
@given(st.lists(RULES, max_size=5), PATTERNS, CLIENTS)
def test_a_pattern_that_is_allowed_reaches_no_denied_key(rules: list[PolicyRule], pattern: bytes, who: Credentials) -> None:
    decision = Policy(tuple(rules)).subscription(Reach(KeySpace(), pattern), who)
    if decision.is_allowed:
        assert [key for key in KEYS if KeySpace().matches(pattern, key) and not subscribable(rules, key, who)] == []
    else:
        assert decision.rule is not None
        # What is refused reaches a key of the rule that refused it.
        assert Reach(KeySpace(), pattern).touches(decision.rule.keys.encode())


@settings(max_examples=examples(300))
@given(st.lists(RULES, max_size=5), st.sampled_from(KEYS), CLIENTS)
def test_a_pattern_that_is_one_key_is_decided_as_the_key_is(rules: list[PolicyRule], key: bytes, who: Credentials) -> None:
    if not key.endswith(b"/") and key:
        assert Policy(tuple(rules)).subscription(Reach(KeySpace(), key), who).is_allowed is subscribable(rules, key, who)


@settings(max_examples=examples(300))
@given(st.lists(RULES, max_size=6), PATTERNS, st.sampled_from(KEYS), CREDENTIALS)
def test_a_unit_that_becomes_known_takes_nothing_away(rules: list[PolicyRule], pattern: bytes, key: bytes, who: Credentials) -> None:
    policy, reach = Policy(tuple(rules)), Reach(KeySpace(), pattern)
    unknown = policy.publication(KeySpace(), key, who).is_allowed, policy.subscription(reach, who).is_allowed
    for unit in UNITS:
        known = who._replace(unit=unit)
        allowed = policy.publication(KeySpace(), key, known).is_allowed, policy.subscription(reach, known).is_allowed
        assert all(now or not before for now, before in zip(allowed, unknown, strict=True))
        if not policy.needs_unit(who):
            assert allowed == unknown


def publishable(rules: list[PolicyRule], key: bytes, who: Credentials) -> bool:
    """Return whether the first rule that decides about *key* allows a MSG with it, wherever it is sent."""
    return next((rule.publish == "allow" for rule in rules if decides(rule, rule.publish, key, who)), True)


@settings(max_examples=examples(500))
@given(st.lists(RULES, max_size=5), PATTERNS, CLIENTS)
def test_a_loss_cannot_be_reported_only_if_no_matching_key_can_be_published(
    rules: list[PolicyRule], pattern: bytes, who: Credentials
) -> None:
    decision = Policy(tuple(rules)).loss_report(Reach(KeySpace(), pattern), who)
    if not decision.is_allowed:
        assert decision.rule is not None
        assert [key for key in KEYS if KeySpace().matches(pattern, key) and publishable(rules, key, who)] == []
    elif pattern in KEYS and pattern and not pattern.endswith(b"/") and Reach(KeySpace(), pattern).touches(pattern):
        assert publishable(rules, pattern, who)


@given(st.lists(RULES, max_size=8), st.sampled_from(KEYS), CLIENTS)
def test_the_bits_of_a_client_decide_as_the_rules_do(rules: list[PolicyRule], key: bytes, who: Credentials) -> None:
    policy = Policy(tuple(rules))
    mask = policy.publish_mask(who)
    by_bits = next(
        (rule for number, rule in enumerate(policy.publishing) if mask >> number & 1 and key.startswith(rule.keys.encode())), None
    )
    decision = policy.publication(KeySpace(), key, who)
    assert decision.rule is by_bits
    assert decision.is_allowed is (by_bits is None or by_bits.publish == "allow")


SECRETS = [b"!/cred//1//x", b"!/cred/", b"!/bus/error"]
ADDRESSES = [b"!/conn/2/", b"!/conn/2", b"!/conn/", b"!/conn//", b"!/conn/02/", b"!/conn/2/!/conn/2/", b"!/conn/3/!/conn/2/"]
"""How keys at an address begin, the second client's and others; two of them are cut short, and two are two addresses."""
ADDRESSED = [address + key for address in ADDRESSES for key in [b"", b"a", b"a/b", b"/a", b"b/a", *SECRETS]]
NUMBERS = sorted({b"/".join([*key.split(b"/")[:3], b""]) for key in ADDRESSED if key.count(b"/") >= 3})
"""Patterns that reach all of them."""
RESERVED_RULES = st.builds(
    PolicyRule,
    st.sampled_from(["!", "!/", "!/cred/", "!/conn/", "!/conn/2/", "!/conn/2/a", "!/conn/3/"]),
    st.sampled_from(["allow", "deny"]),
)
ANY_RULES = st.lists(RULES | RESERVED_RULES, max_size=6)


@settings(max_examples=examples(500))
@given(ANY_RULES, st.sampled_from([b"", b"1", b"2", b"02", b"*"]), st.sampled_from(KEYS + SECRETS + ADDRESSED), CLIENTS)
def test_an_address_does_not_bypass_the_rules(rules: list[PolicyRule], number: bytes, key: bytes, who: Credentials) -> None:
    access = AccessRules(KeySpace(), 4_096, Policy(tuple(rules)))
    addressed = b"!/conn/%b/%b" % (number, key)
    allowed = access.publication(key, who).is_allowed
    expected = allowed and publishable(rules, addressed, who) and not key.startswith(b"!/conn/")
    verdict = access.publication(addressed, who)
    assert verdict.is_allowed is expected
    if not verdict.is_allowed and verdict.rule is not None:
        # The rule that is named is about one of the two names.
        assert verdict.rule.publish == "deny"
        assert any(name.startswith(verdict.rule.keys.encode()) for name in (addressed, key))


@given(st.lists(RULES, max_size=6), st.sampled_from(ADDRESSED), CLIENTS)
def test_with_dots_an_address_is_a_key_as_any(rules: list[PolicyRule], key: bytes, who: Credentials) -> None:
    access = AccessRules(KeySpace(b"."), 4_096, Policy(tuple(rules)))
    assert access.publication(key, who).is_allowed is publishable(rules, key, who)


@pytest.mark.parametrize("separator", [b"/", b"."])
@settings(max_examples=examples(100))
@given(ANY_RULES, st.lists(st.sampled_from(KEYS) | st.sampled_from(SECRETS + ADDRESSED), max_size=12), CLIENTS)
def test_the_switch_rejects_exactly_what_the_policy_denies(
    separator: bytes, rules: list[PolicyRule], keys: list[bytes], who: Credentials
) -> None:
    access = AccessRules(KeySpace(separator), 4_096, Policy(tuple(rules)))
    harness = SwitchHarness(keyspace=KeySpace(separator))
    try:
        harness.switch.set_publish_rules(access.policy.publish_rules())
        publisher, listener = harness.connect(), harness.connect(b"", b"!/cred//1//x", *NUMBERS)
        harness.switch.set_party(publisher, who.uid, rules=access.policy.publish_mask(who))
        for key in keys:
            harness.send(publisher, b"MSG %b\0" % key)
            harness.run()
        verdicts = [access.publication(key, who) for key in keys]
        assert harness.drain(listener) == [b"MSG %b\0" % key for key, verdict in zip(keys, verdicts, strict=True) if verdict.is_allowed]
        expected = [
            refused(Refusal.RESERVED, key)
            if verdict.rule is None
            else error_packet(ErrorCode.EPERM, access.policy.refusal_reason(verdict.rule, "publish")) + b"\0" + key
            for key, verdict in zip(keys, verdicts, strict=True)
            if not verdict.is_allowed
        ]
        assert harness.drain(publisher) == expected
        harness.check_balance()
    finally:
        harness.close()
