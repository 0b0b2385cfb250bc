"""The access rules for subscriptions."""

from __future__ import annotations

import itertools

import pytest

from sbus.protocol.credentials import Credentials
from sbus.protocol.errors import ErrorCode
from sbus.protocol.keys import KeySpace
from sbus_programs.config.rules import Origin, PolicyRule
from sbusd.broker.access import AccessRules
from sbusd.broker.policy import Policy

PEER = Credentials(pid=55, uid=1000, gid=100, groups=frozenset({4, 27}))
PLAIN = AccessRules(KeySpace(), 4_096)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        *((b"", None), (b"a/*", None), (b"!/cred//1000//", None), (b"!/cred//7//x", None), (b"!/conn/7/", None), (b"!/conn/7/a/*", None)),
        *(
            (b"!/event/", ErrorCode.EPERM),
            (b"!/bus/lost", ErrorCode.EPERM),
            (b"!/", ErrorCode.EPERM),
            (b"!/conn/7/!/bus/", ErrorCode.EPERM),
        ),
        *((b"!/conn/7/!/conn/8/", ErrorCode.EPERM), (b"k" * 4_097, ErrorCode.EMSGSIZE), (b"lab/oven", ErrorCode.EPERM)),
        *((b"!/conn/7/lab/oven", ErrorCode.EPERM), (b"lab/*", ErrorCode.EPERM), (b"lab*", None), (b"*/oven", None)),
    ],
)
def test_a_loss_can_be_reported_for_what_can_be_published(pattern: bytes, expected: ErrorCode | None) -> None:
    access = AccessRules(KeySpace(), 4_096, Policy((PolicyRule("lab/", publish="deny"),)))
    verdict = access.loss_report(pattern, PEER)
    assert verdict.reason
    assert verdict.code is expected


def code(pattern: bytes, access: AccessRules = PLAIN) -> ErrorCode | None:
    """Return the error that PEER gets for *pattern*, None if it is allowed. The verdict must have a reason and be consistent."""
    verdict = access.subscription(pattern, PEER)
    assert verdict.reason
    assert verdict.is_allowed == (verdict.code is None)
    return verdict.code


@pytest.mark.parametrize(
    ("gid", "uid", "pid"), list(itertools.product([b"", b"100", b"4", b"27", b"0100"], [b"", b"1000"], [b"", b"55", b"055"]))
)
def test_own_and_empty_ids_match_a_secret_key_in_every_combination(gid: bytes, uid: bytes, pid: bytes) -> None:
    for rest in (b"", b"x", b"a/*/c/", b"*"):
        assert code(b"!/cred/%b/%b/%b/%b" % (gid, uid, pid, rest)) is None


@pytest.mark.parametrize(("gid", "uid", "pid"), [(b"101", b"", b""), (b"", b"1001", b""), (b"", b"", b"56"), (b"1000", b"100", b"55")])
def test_one_foreign_id_denies_a_secret_key(gid: bytes, uid: bytes, pid: bytes) -> None:
    assert code(b"!/cred/%b/%b/%b/x" % (gid, uid, pid)) is ErrorCode.EACCES


@pytest.mark.parametrize(("gid", "uid", "pid"), list(itertools.product([b"", b"100"], [b"", b"1000"], [b"0", b"00"])))
def test_a_process_that_the_bus_does_not_see_has_no_keys_of_its_own(gid: bytes, uid: bytes, pid: bytes) -> None:
    unseen = PEER._replace(pid=0)
    verdict = PLAIN.subscription(b"!/cred/%b/%b/%b/x" % (gid, uid, pid), unseen)
    assert verdict.code is ErrorCode.EACCES
    assert "omit it" in verdict.reason
    assert not PLAIN.opens(b"!/cred/%b/%b/%b/x" % (gid, uid, pid), unseen)
    assert PLAIN.subscription(b"!/cred/%b/%b//x" % (gid, uid), unseen).is_allowed


@pytest.mark.parametrize("ids", [b"*//", b"/*/", b"//*", b"10*/1000/55", b"-1//", b"+100//", b" 100//", b"0x64//", b"1e2//", b"\xd9\xa1//"])
def test_an_id_is_decimal_or_empty(ids: bytes) -> None:
    assert code(b"!/cred/%b/x" % ids) is ErrorCode.EACCES


@pytest.mark.parametrize("number", [b"4294967396", b"18446744073709551716", b"1" + b"0" * 4_000])
def test_an_id_does_not_wrap_around(number: bytes) -> None:
    assert code(b"!/cred/%b///x" % number) is ErrorCode.EACCES


@pytest.mark.parametrize("pattern", [b"!/cred/", b"!/cred/100", b"!/cred/100/1000", b"!/cred/100/1000/55", b"!/cred///"])
def test_an_incomplete_secret_key_is_refused(pattern: bytes) -> None:
    assert code(pattern) is ErrorCode.EACCES


@pytest.mark.parametrize("pattern", [b"!/", b"!/cred", b"!/*", b"!//", b"!/conn/1/", b"!/bus/error", b"!/event", b"!/event*/", b"!/cre*/"])
def test_other_reserved_keys_are_denied_to_clients(pattern: bytes) -> None:
    assert code(pattern) is ErrorCode.EPERM


@pytest.mark.parametrize("pattern", [b"!/event/", b"!/event/connect/7", b"!/event/*/7", b"!/event/subscribe/*/rpc/"])
def test_every_client_may_subscribe_to_events(pattern: bytes) -> None:
    assert code(pattern) is None


@pytest.mark.parametrize("rest", [b"", b"x", b"*", b"a/*/c/"])
def test_only_the_own_address_is_allowed(rest: bytes) -> None:
    own = b"!/conn/17/" + rest
    assert PLAIN.subscription(own, PEER, 17).is_allowed
    for connection in (0, 1, 7, 18, 117):
        assert PLAIN.subscription(own, PEER, connection).code is ErrorCode.EPERM


@pytest.mark.parametrize("head", [b"!/conn/*/", b"!/conn/1*/", b"!/conn/017/", b"!/conn/+17/", b"!/conn//", b"!/conn/17", b"!/conn/1717/"])
def test_an_address_in_another_spelling_is_denied(head: bytes) -> None:
    assert PLAIN.subscription(head, PEER, 17).code is ErrorCode.EPERM


@pytest.mark.parametrize("pattern", [b"", b"!", b"!x", b"!*/", b"!!/", b"*", b"*/cred/", b"a/!/cred/0/0/0/x", b"\xff"])
def test_keys_without_the_reserved_prefix_are_ordinary(pattern: bytes) -> None:
    assert code(pattern) is None


def test_the_longest_pattern_is_allowed_and_a_longer_one_is_refused_first() -> None:
    access = AccessRules(KeySpace(), 16)
    assert code(b"k" * 16, access) is None
    assert code(b"k" * 17, access) is ErrorCode.EMSGSIZE
    assert code(b"!/cred/0/0/0/xxxxxx", access) is ErrorCode.EMSGSIZE


def test_a_credential_prefix_is_required_if_configured() -> None:
    access = AccessRules(KeySpace(prefix=b"!/cred/1/2/3"), 4_096)
    assert code(b"!/cred/1/2/3/!/cred/100/1000/55/x", access) is None
    assert code(b"!/cred/1/2/3/!/cred///4/x", access) is ErrorCode.EACCES
    assert code(b"!/cred/100/1000/55/x", access) is ErrorCode.EACCES
    assert code(b"!/cred/1/2/4/!/cred/100/1000/55/x", access) is ErrorCode.EACCES


def test_with_dots_nothing_is_reserved() -> None:
    access = AccessRules(KeySpace(b"."), 4_096)
    for pattern in (b"!/cred/0/0/0/x", b"!/bus", b"!.cred.0.0.0.x"):
        assert code(pattern, access) is None


def test_a_refusal_does_not_reveal_the_owner_of_a_secret_key() -> None:
    verdict = PLAIN.subscription(b"!/cred/0/0/1/x", PEER)
    assert verdict.reason == "the private key is not for !/cred/100/1000/55"


DENIED = PolicyRule("lab/", "deny", "deny", origin=Origin("f.toml", 3), comment="keep out")
RULED = AccessRules(
    KeySpace(), 4_096, Policy((DENIED, PolicyRule("!/", "deny"), PolicyRule("", "allow", "allow", origin=Origin("f.toml", 5))))
)


def test_a_refusal_names_the_rule_and_its_comment() -> None:
    for verdict in (RULED.subscription(b"*/x", PEER), RULED.publication(b"lab/x", PEER)):
        assert (verdict.code, verdict.reason, verdict.rule) == (ErrorCode.EPERM, "refused by rule 3 of f.toml: keep out", DENIED)


def test_a_rule_that_allows_is_named() -> None:
    verdict = RULED.publication(b"x", PEER)
    assert (verdict.code, verdict.reason) == (None, "allowed by rule 5 of f.toml")


def test_no_rule_allows_what_the_protocol_denies() -> None:
    for pattern, expected in (
        (b"!/cred//1001//x", ErrorCode.EACCES),
        (b"!/bus/error", ErrorCode.EPERM),
        (b"k" * 4_097, ErrorCode.EMSGSIZE),
    ):
        verdict = RULED.subscription(pattern, PEER)
        assert (verdict.code, verdict.rule) == (expected, None)
    assert RULED.publication(b"!/bus/error", PEER).rule is None
    assert RULED.publication(b"k" * 4_097, PEER).code is ErrorCode.EMSGSIZE


def test_a_rule_can_deny_secret_keys_that_the_protocol_allows() -> None:
    assert RULED.publication(b"!/cred//1000//x", PEER).code is ErrorCode.EPERM
    assert RULED.subscription(b"!/cred//1000//x", PEER).is_allowed
    assert PLAIN.publication(b"!/cred//1000//x", PEER).is_allowed
