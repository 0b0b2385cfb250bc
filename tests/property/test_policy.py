"""A pattern that the rules allow reaches no key that they deny; rules for publishing decide as the switch's bits do."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from sbusd.config.rules import PolicyRule
from sbusd.daemon.policy import Policy
from sbusd.protocol.credentials import Credentials
from sbusd.protocol.keys import KeySpace
from sbusd.protocol.overlap import Reach

WORDS = st.sampled_from(["allow", "deny", None])
PREFIXES = st.lists(st.sampled_from(["a", "b", "/"]), max_size=3).map("".join)
RULES = st.builds(
    lambda keys, publish, subscribe, users, groups: PolicyRule(keys, publish, subscribe or (None if publish else "deny"), users, groups),
    PREFIXES,
    WORDS,
    WORDS,
    st.sampled_from([(), (1,), (2,)]),
    st.sampled_from([(), (5,)]),
)
PATTERNS = st.lists(st.sampled_from([b"a", b"b", b"*", b"/"]), max_size=5).map(b"".join)
CLIENTS = st.sampled_from([Credentials(1, 1, 1), Credentials(1, 2, 5), Credentials(1, 3, 3, frozenset({5}))])
KEYS = [b"".join(key) for length in range(6) for key in itertools.product([b"a", b"b", b"/"], repeat=length)]


def decides(rule: PolicyRule, word: str | None, key: bytes, who: Credentials) -> bool:
    """Return whether *rule* decides about one key, as sbusd.toml(5) says it."""
    about = not rule.users + rule.groups or who.uid in rule.users or bool({who.gid, *who.groups} & set(rule.groups))
    return word is not None and key.startswith(rule.keys.encode()) and about


def subscribable(rules: list[PolicyRule], key: bytes, who: Credentials) -> bool:
    """Return whether the first rule that decides about *key* allows it."""
    return next((rule.subscribe == "allow" for rule in rules if decides(rule, rule.subscribe, key, who)), True)


@settings(deadline=None, max_examples=300)
@given(st.lists(RULES, max_size=5), PATTERNS, CLIENTS)
def test_a_pattern_that_is_allowed_reaches_no_denied_key(rules: list[PolicyRule], pattern: bytes, who: Credentials) -> None:
    decision = Policy(tuple(rules)).subscription(Reach(KeySpace(), pattern), who)
    if decision.is_allowed:
        assert [key for key in KEYS if KeySpace().matches(pattern, key) and not subscribable(rules, key, who)] == []
    else:
        assert decision.rule is not None
        # What is refused reaches a key of the rule that refused it.
        assert Reach(KeySpace(), pattern).touches(decision.rule.keys.encode())


@settings(deadline=None, max_examples=300)
@given(st.lists(RULES, max_size=5), st.sampled_from(KEYS), CLIENTS)
def test_a_pattern_that_is_one_key_is_decided_as_the_key_is(rules: list[PolicyRule], key: bytes, who: Credentials) -> None:
    if not key.endswith(b"/") and key:
        assert Policy(tuple(rules)).subscription(Reach(KeySpace(), key), who).is_allowed is subscribable(rules, key, who)


@given(st.lists(RULES, max_size=8), st.sampled_from(KEYS), CLIENTS)
def test_the_bits_of_a_client_decide_as_the_rules_do(rules: list[PolicyRule], key: bytes, who: Credentials) -> None:
    policy = Policy(tuple(rules))
    mask = policy.publish_mask(who)
    by_bits = next(
        (rule for number, rule in enumerate(policy.publishing) if mask >> number & 1 and key.startswith(rule.keys.encode())), None
    )
    decision = policy.publication(key, who)
    assert decision.rule is by_bits
    assert decision.is_allowed is (by_bits is None or by_bits.publish == "allow")
