"""What each message causes."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbus_programs.config.trigger import EVERY_USER
from sbus_programs.config.users import ChargedUsers
from sbus_services.trigger import rule_state
from sbus_services.trigger.rule_state import (
    ALL_USERS,
    FIRST_ACTIONS,
    MAX_USERS,
    Firing,
    Limits,
    Payload,
    RateDecision,
    RuleState,
    Sender,
    UnitNameError,
    escaped,
    text_matches,
    unit_of,
)
from tests.unit.sbus_services.trigger.rules import ALICE, BOB, message, peer, rate, rule


def test_a_message_causes_an_action_with_its_sender() -> None:
    state = RuleState(rule(), ChargedUsers())
    outcome, firing = state.judge(message(payload=b"p"), 0.0)
    assert outcome == "accepted"
    assert firing is not None
    assert (firing.unit, firing.key, firing.payload, firing.sender is not None) == ("x.service", b"a/b", b"p", True)


def test_each_outcome_is_counted() -> None:
    state = RuleState(rule(start="x@.service", instance=2, match=(("", "on"),), burst=rate(1, 10.0), loop=rate(2, 100.0)), ChargedUsers())
    sent = [message(payload=b"on", uid=BOB), message(payload=b"off"), message(b"a", b"on")]
    assert [state.judge(each, 0.0)[0] for each in sent] == ["wrong_sender", "unmatched", "invalid"]
    assert [state.judge(message(payload=b"on"), now)[0] for now in (0, 1, 10, 20, 21)] == [
        "accepted",
        "over_burst",
        "accepted",
        "loop",
        "suspended",
    ]
    assert state.judge(message(b"trigger/fired", b"on"), 30.0)[0] == "unmatched"
    assert sum(state.counts.values()) == 2 * state.counts["messages"] == 18


def test_an_entry_of_the_journal_counts_once() -> None:
    state = RuleState(rule(keys=("journal/",)), ChargedUsers())

    def entry(number: int, key: bytes = b"journal/x/err") -> str:
        return state.judge(message(key, json.dumps({"__CURSOR": f"c{number}"}).encode()), number * 100.0)[0]

    assert [entry(1), entry(2), entry(1), entry(1, b"other/x")] == ["accepted", "accepted", "repeated", "accepted"]
    assert state.judge(message(b"journal/x/err", b"no JSON"), 1e4)[0] == "accepted"


def test_lost_messages_are_counted_and_cause_an_action_if_the_rule_says_so() -> None:
    state, firing = RuleState(rule(), ChargedUsers()), RuleState(rule(on_gap="fire"), ChargedUsers())
    assert (state.gap(3), state.gap(0)) == (None, None)
    assert (state.counts["gaps"], state.counts["lost"]) == (2, 3)
    assert firing.gap(3) == Firing(firing.rule, "x.service")


@given(st.text("ab*", max_size=8).filter(bool), st.text("ab", max_size=12))
def test_a_star_is_any_text_and_the_rest_is_itself(glob: str, text: str) -> None:
    pattern = ".*".join(map(re.escape, glob.split("*")))
    assert text_matches(glob, text) == bool(re.fullmatch(pattern, text, re.DOTALL))


def test_characters_of_other_languages_of_patterns_are_themselves() -> None:
    assert text_matches("[a]?*", "[a]? b")
    assert not text_matches("[a]?", "aa")


def test_hostile_text_takes_time_in_proportion_to_its_size() -> None:
    """A regular expression or fnmatch(3) that backtracks would take years."""
    begin = time.process_time()
    assert not text_matches("*" + "a*" * 120 + "b", "a" * 400_000)
    assert not text_matches("*" + "a" * 127 + "b*", "a" * 400_000)
    assert time.process_time() - begin < 10


@pytest.mark.parametrize(
    ("payload", "conditions", "holds"),
    [
        (b"on", [("", "on")], True),
        (b"on\n", [("", "on")], False),
        (b"\xff on", [("", "* on")], True),
        (b'{"MESSAGE": "disk full", "PRIORITY": "3"}', [("MESSAGE", "*full"), ("PRIORITY", "3")], True),
        (b'{"MESSAGE": "disk full", "PRIORITY": "4"}', [("MESSAGE", "*full"), ("PRIORITY", "3")], False),
        (b'{"MESSAGE": ["a", "b"]}', [("MESSAGE", "b")], True),
        (b'{"n": 5, "t": true, "z": null, "o": {}}', [("n", "5"), ("t", "true")], True),
        (b'{"z": null}', [("z", "*")], False),
        (b'{"o": {}}', [("o", "*")], False),
        (b"not JSON", [("MESSAGE", "*")], False),
        (b"[" * 200_000, [("MESSAGE", "*")], False),
        (b'{"n": ' + b"9" * 10_000 + b"}", [("n", "*")], False),
        (b"[1]", [("n", "*")], False),
        (b"anything", [], True),
    ],
)
def test_conditions(payload: bytes, conditions: list[tuple[str, str]], holds: bool) -> None:
    assert Payload(payload).matches(conditions) == holds


TEMPLATE = {"start": "x@.service"}


@pytest.mark.slow
@pytest.mark.parametrize("text", ["a/b", "../../x", ".hidden", "a b", "a-b", r"a\x2d", "é", "a.b:c_d", "a\nb", "%i", "a@b", "/", "a//b"])
def test_systemd_escapes_in_the_same_way(text: str) -> None:
    if shutil.which("systemd-escape") is None:
        pytest.skip("systemd-escape is not installed")
    found = subprocess.run(["systemd-escape", "--", text], check=True, capture_output=True, text=True).stdout
    assert escaped(text.encode()) == found.removesuffix("\n")


@given(st.binary(min_size=1, max_size=40).filter(lambda key: b"\0" not in key))
def test_every_instance_is_a_file_name_and_no_two_keys_have_the_same(key: bytes) -> None:
    unit = unit_of(rule(**TEMPLATE), key)
    assert re.fullmatch(r"x@(?!\.)[A-Za-z0-9:_.\\-]+\.service", unit)
    instance = unit.removeprefix("x@").removesuffix(".service")
    parts = re.findall(r"\\x[0-9a-f]{2}|.", instance)
    assert b"".join(bytes([int(part[2:], 16)]) if part[0] == "\\" else b"/" if part == "-" else part.encode() for part in parts) == key


def test_parts_of_a_key() -> None:
    assert unit_of(rule(start="plain.service"), b"any/key") == "plain.service"
    assert unit_of(rule(**TEMPLATE, instance=2), b"journal/nginx.service/err") == "x@nginx.service.service"
    first, second = (unit_of(rule(**TEMPLATE, instance="message"), b"k") for _ in range(2))
    assert first != second
    assert re.fullmatch(r"x@[0-9a-f]+\.[0-9]+\.service", first)


@pytest.mark.parametrize(
    ("instance", "key", "says"),
    [
        (3, b"a/b", "no text in segment 3"),
        (2, b"a//b", "no text in segment 2"),
        ("key", b"", "the key is empty"),
        ("key", b"n" * 256, "at most 255"),
    ],
)
def test_a_key_without_an_instance(instance: str | int, key: bytes, says: str) -> None:
    with pytest.raises(UnitNameError, match=says):
        unit_of(rule(**TEMPLATE, instance=instance), key)


def verdicts(limits: Limits, uid: int, *times: float) -> list[str]:
    """Return what the limits say about messages at *times*."""
    return [limits.judge(uid, each).name for each in times]


def test_a_burst_is_over_when_its_interval_is() -> None:
    limits = Limits(rate(2, 10.0), rate(100, 100.0))
    assert verdicts(limits, ALICE, 0, 1, 2, 9.9, 10, 11, 12) == ["ALLOWED", "ALLOWED", "BURST", "BURST", "ALLOWED", "ALLOWED", "BURST"]
    assert verdicts(limits, BOB, 12) == ["ALLOWED"]


def test_a_loop_suspends_the_rule_for_its_user_alone_and_for_a_time() -> None:
    limits = Limits(rate(1, 1.0), rate(3, 10.0))
    assert verdicts(limits, ALICE, 0, 1, 2, 3, 4, 12.9) == ["ALLOWED", "ALLOWED", "ALLOWED", "LOOP", "SUSPENDED", "SUSPENDED"]
    assert (limits.suspended(4), limits.suspended(13)) == (1, 0)
    assert verdicts(limits, BOB, 4) == ["ALLOWED"]
    assert verdicts(limits, ALICE, 13.5) == ["ALLOWED"]


def test_all_users_together_are_bounded() -> None:
    limits = Limits(rate(1, 1000.0), rate(100, 1000.0))
    found = [limits.judge(uid, 0.0) for uid in range(3 * MAX_USERS)]
    assert found == [RateDecision.ALLOWED] * ALL_USERS + [RateDecision.ALL_BURST] * (len(found) - ALL_USERS)


def test_users_with_a_full_burst_leave_actions_for_those_with_none() -> None:
    limits = Limits(rate(3, 10.0), rate(100, 100.0))
    used = [verdicts(limits, uid, 0, 0, 0, 0) for uid in range(100, 100 + ALL_USERS - FIRST_ACTIONS)]
    assert used == [["ALLOWED", "ALLOWED", "ALLOWED", "BURST"]] * len(used)
    assert verdicts(limits, ALICE, 1, 1, 1) == ["ALLOWED", "ALL_BURST", "ALL_BURST"]
    assert verdicts(limits, BOB, 1) == ["ALLOWED"]
    assert verdicts(limits, ALICE, 10, 11.5, 12, 12) == ["ALLOWED", "ALLOWED", "ALLOWED", "BURST"]


LOCAL = b"!/store/!/cred/100/%d/9" % ALICE

STORE = 990

sender_of = partial(rule_state.sender_of, charged=ChargedUsers())


def test_a_connection_is_its_user() -> None:
    assert sender_of(rule(), peer()) == Sender(ALICE, ALICE, 5, ALICE)
    assert sender_of(rule(), peer(BOB)) is None
    assert sender_of(rule(), None) is None
    assert sender_of(rule(senders=(EVERY_USER,)), peer(BOB)) == Sender(BOB, BOB, 5, BOB)
    assert sender_of(rule(senders=(EVERY_USER,)), None) is None


def test_only_a_trusted_service_speaks_for_a_user() -> None:
    trusting = rule(vouched_by=(STORE,))
    assert sender_of(trusting, peer(STORE, LOCAL)) == Sender(ALICE, 100, 9, ALICE, STORE)
    assert sender_of(trusting, peer(BOB, LOCAL)) is None
    assert sender_of(trusting, peer(ALICE, LOCAL)) is None
    assert sender_of(rule(), peer(STORE, LOCAL)) is None
    assert sender_of(rule(senders=(EVERY_USER,)), peer(STORE, LOCAL)) is None


@pytest.mark.parametrize(
    "origin",
    [
        b"!/host/alpha/!/cred/100/1000/9",
        b"!/twin/1002/!/cred/100/1000/9",
        b"!/host/alpha/!/store/!/cred/100/1000/9",
        b"!/store/!/cred/1/2/3/!/cred/100/1000/9",
        b"!/store/!/cred/100/1000/9/x",
        b"!/store/!/cred/100/1000/9\n",
        b"words",
    ],
)
def test_an_author_on_another_host_is_not_a_user_here(origin: bytes) -> None:
    assert sender_of(rule(vouched_by=(STORE,), senders=(EVERY_USER, ALICE)), peer(STORE, origin)) is None
