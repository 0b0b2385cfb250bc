"""What each message causes."""

from __future__ import annotations

import json

from sbusd.config.users import ChargedUsers
from sbusd.trigger.rule_state import Firing, RuleState
from tests.unit.trigger.rules import BOB, message, rate, rule


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
