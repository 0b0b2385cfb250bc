"""Thresholds, hysteresis and anomalies: each alert is raised once and cleared once."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from sbus.protocol.keys import MAX_KEY_BYTES
from sbus_archive.pipeline.live.alerts import Alert, Raised, Usual, decide
from sbus_archive.pipeline.live.minutes import ALL, MAX_RAISED, PREFIX, Minute
from sbus_programs.config.live import ANOMALY, Anomaly, LiveSettings, Threshold

FLOOD = Threshold("flood", "messages", 100, "prefix", 50)
SETTINGS = LiveSettings(thresholds=(FLOOD,), anomaly=Anomaly(deviations=6, min_difference=60))


def minute(messages: dict[str, int], *, is_incomplete: bool = False) -> Minute:
    """Return a minute with these messages by prefix."""
    made = Minute(is_incomplete=is_incomplete)
    for prefix, count in messages.items():
        made.add(PREFIX, prefix, (count, 0, 0, 0, 0))
        made.add(ALL, "", (count, 0, 0, 0, 0))
    return made


def changes_of(changes: list[Alert]) -> list[tuple[str, str, bool, int]]:
    """Return what matters of *changes*."""
    return [(each.rule, each.subject, each.is_raised, each.value) for each in changes]


@given(st.lists(st.tuples(st.integers(0, 200), st.booleans())))
def test_a_threshold_agrees_with_a_plain_model(values: list[tuple[int, bool]]) -> None:
    raised: Raised = {}
    is_raised = False
    for number, (value, is_incomplete) in enumerate(values):
        changes, _ = decide(SETTINGS, minute({"k": value}, is_incomplete=is_incomplete), number, {}, raised)
        expected = []
        if not is_raised and value >= 100:
            expected, is_raised = [("flood", "k", True, value)], True
        elif is_raised and value <= 50 and not is_incomplete:
            expected, is_raised = [("flood", "k", False, value)], False
        assert changes_of(changes) == expected
        assert raised == ({"flood": {"k"}} if is_raised else {})


def test_a_subject_that_is_quiet_is_cleared() -> None:
    raised: Raised = {"flood": {"k"}}
    assert changes_of(decide(SETTINGS, minute({}), 1, {}, raised)[0]) == [("flood", "k", False, 0)]
    assert raised == {}


def test_a_rule_that_is_gone_is_cleared() -> None:
    raised: Raised = {"old": {"k"}}
    assert changes_of(decide(SETTINGS, minute({}), 1, {}, raised)[0]) == [("old", "k", False, 0)]


def test_anomalies_high_and_low_with_hysteresis() -> None:
    """The bound is 6 * 1.4826 * 10 = 88.956; it clears within half of that."""
    usual = {"k": Usual(1000.0, 10.0)}
    settings = LiveSettings(anomaly=SETTINGS.anomaly)
    raised: Raised = {}
    found = [changes_of(decide(settings, minute({"k": value}), value, usual, raised)[0]) for value in (1088, 1089, 1050, 1044, 911, 956)]
    assert found == [
        [],
        [(ANOMALY, "k", True, 1089)],
        [],
        [(ANOMALY, "k", False, 1044)],
        [(ANOMALY, "k", True, 911)],
        [(ANOMALY, "k", False, 956)],
    ]


def test_a_minute_with_missing_messages_is_not_too_low_but_can_be_too_high() -> None:
    usual, raised, settings = {"k": Usual(1000.0, 0.0)}, Raised(), LiveSettings(anomaly=SETTINGS.anomaly)
    assert changes_of(decide(settings, minute({"k": 10}, is_incomplete=True), 1, usual, raised)[0]) == []
    assert changes_of(decide(settings, minute({"k": 2000}, is_incomplete=True), 2, usual, raised)[0]) == [(ANOMALY, "k", True, 2000)]
    assert changes_of(decide(settings, minute({"k": 1000}, is_incomplete=True), 3, usual, raised)[0]) == []
    assert changes_of(decide(settings, minute({"k": 1000}), 4, usual, raised)[0]) == [(ANOMALY, "k", False, 1000)]


def test_an_incomplete_minute_clears_nothing_also_without_a_usual_number() -> None:
    settings, raised = LiveSettings(anomaly=SETTINGS.anomaly), Raised({ANOMALY: {"k"}})
    assert decide(settings, minute({}, is_incomplete=True), 1, {}, raised) == ([], 0)
    assert decide(settings, minute({}), 2, None, raised) == ([], 0)
    assert changes_of(decide(settings, minute({}), 3, {}, raised)[0]) == [(ANOMALY, "k", False, 0)]


def test_the_difference_has_a_minimum_and_an_unknown_prefix_is_not_judged() -> None:
    settings = LiveSettings(anomaly=SETTINGS.anomaly)
    assert decide(settings, minute({"k": 60, "new": 10**6}), 1, {"k": Usual(0.0, 0.0)}, {}) == ([], 0)
    assert changes_of(decide(settings, minute({"k": 61}), 1, {"k": Usual(0.0, 0.0)}, {})[0]) == [(ANOMALY, "k", True, 61)]


def test_the_number_of_raised_alerts_is_bounded() -> None:
    raised: Raised = {}
    changes, suppressed = decide(SETTINGS, minute({f"k/{number}": 100 for number in range(MAX_RAISED + 5)}), 1, {}, raised)
    assert (len(changes), suppressed, len(raised["flood"])) == (MAX_RAISED, 5, MAX_RAISED)
    # Those that are cleared make room in the same minute.
    changes, suppressed = decide(SETTINGS, minute({f"m/{number}": 100 for number in range(MAX_RAISED)}), 2, {}, raised)
    assert (sum(each.is_raised for each in changes), suppressed) == (MAX_RAISED, 0)


def test_alerts_do_not_cause_alerts() -> None:
    assert decide(SETTINGS, minute({"alert/flood": 1000, "alert": 1000}), 1, {"alert/flood": Usual(0, 0)}, {}) == ([], 0)


@given(st.text(max_size=6000))
def test_keys_are_valid_whatever_the_subject(subject: str) -> None:
    key = Alert("flood", subject, True, "messages", 1, 1, 1).key()
    assert key.startswith(b"alert/flood/")
    assert key.count(b"/") == 2
    assert len(key) <= MAX_KEY_BYTES
    assert not set(key) & set(b"\0* \n")


def test_the_payload() -> None:
    alert = Alert("flood", "a/b", True, "messages", 120, 100, 29_000_000)
    payload = json.loads(alert.payload("alpha"))
    assert len(payload.pop("id")) == 32
    assert payload == {
        "state": "raised",
        "rule": "flood",
        "subject": "a/b",
        "measure": "messages",
        "value": 120,
        "threshold": 100,
        "minute": "2025-02-19T21:20Z",
        "host": "alpha",
    }
    assert alert.payload("alpha") == alert.payload("alpha") != alert.payload("beta")
