"""Access to explanations, and their content."""

from __future__ import annotations

import pytest

from sbus.protocol import controls
from sbus.protocol.credentials import Credentials
from sbus.protocol.errors import ErrorCode, ProtocolError
from sbus.protocol.keys import KeySpace
from sbus_programs.config.rules import Origin, PolicyRule
from sbus_programs.config.settings import DaemonSettings
from sbusd.broker.access import AccessRules
from sbusd.broker.explanation import KnownUsers, explain
from sbusd.broker.policy import Policy
from tests.support.in_process_bus import MakeBus
from tests.support.wire import error_code

ALICE = Credentials(55, 1000, 100, frozenset({27}))
RULE = PolicyRule("lab/", "deny", "deny", groups=(27,), origin=Origin("f.toml", 1), comment="keep out")
RULED = AccessRules(KeySpace(), 4_096, Policy((RULE,)))


def test_the_reply_names_the_rule_that_decides() -> None:
    assert explain(RULED, ALICE, b"1000\0subscribe\0*/x", is_owner=False) == {
        "uid": 1000,
        "action": "subscribe",
        "key": "*/x",
        "unit": None,
        "groups": [27, 100],
        "groups_from": "connection",
        "allowed": False,
        "error": "EPERM",
        "rule": "rule 1 of f.toml: keep out",
        "reason": "refused by rule 1 of f.toml: keep out",
        "owner": False,
        "blocks_others": False,
    }


def test_without_a_rule_the_protocol_decides() -> None:
    free = explain(RULED, ALICE, b"1000\0publish\0\xff", is_owner=False)
    assert (free["allowed"], free["error"], free["rule"], free["reason"], free["key"]) == (
        True,
        None,
        None,
        "no rule restricts publishing to this key",
        r"\xff",
    )
    secret = explain(RULED, ALICE, b"1000\0subscribe\0!/cred//1001//x", is_owner=False)
    assert (secret["allowed"], secret["error"], secret["rule"]) == (False, "EACCES", None)


def test_only_the_own_process_is_taken_into_account() -> None:
    assert explain(RULED, ALICE, b"1000\0subscribe\0!/cred///55/x", is_owner=False)["allowed"] is True
    root = Credentials(55, 0, 0)
    assert explain(RULED, root, b"1000\0subscribe\0!/cred//1000//x", is_owner=True)["allowed"] is True
    assert explain(RULED, root, b"1000\0subscribe\0!/cred///55/x", is_owner=True)["allowed"] is False


def test_a_private_key_is_not_for_credentials_that_do_not_exist() -> None:
    def reason(who: bytes) -> object:
        return explain(RULED, Credentials(55, 0, 0), who + b"\0subscribe\0!/cred//7//x", is_owner=True)["reason"]

    assert reason(b"1000") == "the private key is not for a new process of user 1000"
    assert reason(b"") == "the private key is not for every user"
    assert reason(b"0") == "the private key is not for !/cred/0/0/55"


def test_every_client_may_ask_about_an_unnamed_user() -> None:
    only_a_group = explain(RULED, ALICE, b"\0subscribe\0lab/x", is_owner=False)
    assert (only_a_group["uid"], only_a_group["allowed"]) == (None, True)
    closed = PolicyRule("lab/", subscribe="deny", origin=Origin("f.toml", 2))
    ruled = AccessRules(KeySpace(), 4_096, Policy((PolicyRule("lab/", subscribe="allow", users=(1000,), groups=(27,)), closed)))
    answer = explain(ruled, ALICE, b"\0subscribe\0lab/x", is_owner=False)
    assert (answer["allowed"], answer["error"], answer["rule"]) == (False, "EPERM", "rule 2 of f.toml")
    assert explain(ruled, ALICE, b"1000\0subscribe\0lab/x", is_owner=False)["allowed"] is True
    assert explain(ruled, ALICE, b"\0publish\0lab/x", is_owner=False)["allowed"] is True
    assert explain(RULED, ALICE, b"\0subscribe\0!/cred/100/1000/55/x", is_owner=False)["allowed"] is False


WEB = AccessRules(
    KeySpace(), 4_096, Policy((PolicyRule("web/", publish="allow", units=("web@*.service",)), PolicyRule("web/", publish="deny")))
)


@pytest.mark.parametrize(
    ("payload", "unit", "allowed"),
    [
        (b"1000\0publish\0web/x", "web@1.service", True),  # that of the client itself
        (b"1000\0publish\0web/x\0mail.service", "mail.service", False),
        (b"1000\0publish\0web/x\0", "", False),
        (b"1001\0publish\0web/x", None, False),
        (b"1001\0publish\0web/x\0web@2.service", "web@2.service", True),
        (b"\0publish\0web/x", "", False),
        (b"\0publish\0web/x\0web@2.service", "web@2.service", True),
    ],
)
def test_the_unit_is_taken_into_account(payload: bytes, unit: str | None, allowed: bool) -> None:
    found = explain(WEB, ALICE._replace(unit="web@1.service"), payload, is_owner=True)
    assert (found["unit"], found["allowed"]) == (unit, allowed)


def test_of_an_unknown_unit_what_a_rule_about_units_denies_is_denied() -> None:
    ruled = AccessRules(KeySpace(), 4_096, Policy((PolicyRule("a", "deny", "deny", units=("x.service",)),)))
    for action in (b"publish", b"subscribe"):
        for payload, allowed in ((b"1001\0%b\0a", False), (b"\0%b\0a", True), (b"1001\0%b\0a\0y.service", True)):
            assert explain(ruled, ALICE, payload % action, is_owner=True)["allowed"] is allowed


@pytest.mark.parametrize(
    "payload",
    [
        *(b"", b"1000", b"1000\0publish", b"\0publish", b"\0\0a", b"x\0publish\0a", b"-1\0publish\0a", b"4294967295\0publish\0a"),
        *(b"1000\0read\0a", b"1" * 99 + b"\0publish\0a", b"1000\0publish\0a\0b", b"alice\0publish\0a", "١\0publish\0a".encode()),
        *(b"1000:\0publish\0a", b"1000:1,,2\0publish\0a", b"1000:x\0publish\0a", b":1\0publish\0a", b"1000:4294967295\0publish\0a"),
        *(b"1000\0publish\0a\0a.service\0", b"1000\0publish\0a\0x@*.service", b"1000\0publish\0a\0\xff.service", b"\0publish\0a\0x.slice"),
    ],
)
def test_an_invalid_request_is_an_error(payload: bytes) -> None:
    with pytest.raises(ProtocolError) as refusal:
        explain(RULED, ALICE, payload, is_owner=True)
    assert refusal.value.code is ErrorCode.EINVAL


MEMBERS = AccessRules(
    KeySpace(),
    4_096,
    Policy((PolicyRule("lab/", "allow", "allow", groups=(27,)), PolicyRule("lab/", "deny", "deny", origin=Origin("f", 2)))),
)


def test_the_groups_of_another_user_are_those_of_its_latest_connection(make_bus: MakeBus) -> None:
    bus = make_bus(DaemonSettings(policy=MEMBERS.policy.rules))
    owner = bus.client()

    def asked(user: bytes = b"1000") -> tuple[object, ...]:
        answer = owner.ask_json(controls.EXPLAIN, user + b"\0publish\0lab/x")
        return answer["allowed"], answer["groups"], answer["groups_from"]

    assert asked() == (False, [], None)
    member = bus.client(uid=1000, gid=100, groups=frozenset({27}))
    assert asked() == (True, [27, 100], "connection")
    other_user = bus.client(uid=1000, gid=100)
    assert asked() == (False, [100], "connection")
    assert asked(b"1000:100,27") == (True, [27, 100], "request")
    for each in (member, other_user):
        each.close()
    bus.run()
    assert asked() == (False, [100], "connection")  # who asks may come after the user has gone


def test_only_owners_may_name_groups(make_bus: MakeBus) -> None:
    member = make_bus(DaemonSettings(policy=MEMBERS.policy.rules)).client(uid=1000, gid=100)
    member.control(controls.EXPLAIN, b"1000:27\0publish\0lab/x")
    (refused,) = member.receive_all()
    assert error_code(refused) == "EPERM"


def test_a_refusal_for_want_of_a_group_says_who_must_log_in_again(make_bus: MakeBus) -> None:
    bus = make_bus(DaemonSettings(policy=MEMBERS.policy.rules))
    other_user, tap = bus.client(uid=1000, gid=100), bus.client()
    tap.control(controls.TAP_ON, b"lab/")
    bus.run()
    other_user.publish(b"lab/x")
    other_user.subscribe(b"lab/x")
    refusals = [packet for packet in other_user.barrier() if b"refused by rule 2 of f; " in packet]
    assert len(refusals) == 2
    assert all(b"log in again" in packet for packet in [*refusals, *(line for line in tap.receive_all() if b"denial" in line)])


def test_only_an_owner_may_ask_about_other_users(make_bus: MakeBus) -> None:
    bus = make_bus(DaemonSettings(policy=(RULE,)))
    owner, other = bus.client(), bus.client(uid=1000, groups=frozenset({27}))
    assert owner.ask_json(controls.EXPLAIN, b"1000\0publish\0lab/x")["uid"] == 1000
    assert other.ask_json(controls.EXPLAIN, b"1000\0publish\0lab/x")["allowed"] is False
    other.control(controls.EXPLAIN, b"0\0publish\0lab/x")
    (reported,) = other.receive_all()
    assert error_code(reported) == "EPERM"


def test_the_reply_says_whether_the_user_is_an_owner() -> None:
    def owner(payload: bytes) -> object:
        return explain(RULED, ALICE, payload, is_owner=True, known=KnownUsers(owns={1000}.__contains__))["owner"]

    assert [owner(who + b"\0publish\0a") for who in (b"1000", b"1001", b"")] == [True, False, False]


@pytest.mark.parametrize(
    ("key", "prefix"),
    [
        (b"lab/oven", "lab/"),
        (b"lab/", "lab/"),
        (b"lad/x", "lad"),
        (b"net/link", "n"),
        (b"la", None),
        (b"", None),
        (b"!/cred//1000//x", None),
    ],
)
def test_a_prefix_has_the_same_decision_for_all_its_keys(key: bytes, prefix: str | None) -> None:
    answer = explain(RULED, ALICE, b"1000\0publish\0" + key, is_owner=False)
    assert answer.get("prefix") == prefix
    unnamed = explain(RULED, ALICE, b"\0publish\0" + key, is_owner=False)
    assert unnamed.get("prefix") == (None if key.startswith(b"!/") else "")
    if prefix is not None:
        for other in (prefix.encode(), prefix.encode() + b"x", prefix.encode() + b"/\xff"):
            same = explain(RULED, ALICE, b"1000\0publish\0" + other, is_owner=False)
            assert (same["allowed"], same["rule"]) == (answer["allowed"], answer["rule"])
