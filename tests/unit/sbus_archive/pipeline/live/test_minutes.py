"""Counters of minutes: sums are exact, and the number of subjects is bounded."""

from __future__ import annotations

import json
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from sbus_archive.pipeline.live.minutes import (
    ALL,
    KEPT_MINUTES,
    MAX_ENCODED,
    MAX_IMPORTANT,
    MAX_SUBJECTS,
    PREFIX,
    USER,
    Group,
    Important,
    Minute,
    Minutes,
    escape,
    shortened,
)
from sbus_programs.config.live import Threshold

GROUPS = st.lists(
    st.builds(
        Group,
        st.integers(100, 103),
        st.none() | st.sampled_from(["a", "b/c", "!/cred"]),
        st.none() | st.integers(0, 3),
        st.tuples(*[st.integers(0, 1000)] * 5),
    )
)


@given(st.lists(GROUPS, max_size=4))
def test_sums_are_those_of_the_rows(batches: list[list[Group]]) -> None:
    minutes = Minutes()
    expected = Counter[tuple[int, str, str]]()
    for batch in batches:
        minutes.fold(batch, Important())
        for each in batch:
            expected[each.minute, ALL, ""] += each.counts[0]
            if each.prefix is not None:
                expected[each.minute, PREFIX, each.prefix] += each.counts[0]
            if each.uid is not None:
                expected[each.minute, USER, str(each.uid)] += each.counts[0]
    for (number, group, subject), count in expected.items():
        assert minutes.by_number[number].value(group, subject, "messages") == count
    for number, minute in minutes.by_number.items():
        assert sum(found[0] for found in minute.groups[ALL].values()) == expected[number, ALL, ""]


def test_invented_keys_do_not_displace_those_in_use() -> None:
    minutes = Minutes()
    minutes.fold([Group(1, f"invented/{number}", 7, (1, 1, 0, 0, 0)) for number in range(5 * MAX_SUBJECTS)], Important())
    minutes.fold([Group(1, "used", 8, (50, 1, 0, 0, 0))], Important())
    minutes.fold([Group(1, f"more/{number}", 7, (1, 1, 0, 0, 0)) for number in range(5 * MAX_SUBJECTS)], Important())
    found = minutes.by_number[1]
    assert len(found.groups[PREFIX]) == MAX_SUBJECTS
    assert found.value(PREFIX, "used", "messages") == 50
    counted = sum(each[0] for each in found.groups[PREFIX].values()) + found.others[PREFIX][0]
    assert counted == found.value(ALL, "", "messages") == 10 * MAX_SUBJECTS + 50
    assert USER not in found.others


def test_json_has_everything() -> None:
    minutes = Minutes()
    minutes.fold([Group(1, f"k/{number}", number, (number, 1, 2, 3, 4)) for number in range(MAX_SUBJECTS + 5)], Important())
    minutes.mark_incomplete(1, 1)
    found = minutes.by_number[1]
    assert Minute.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_old_minutes_are_dropped_and_those_of_a_wrong_clock() -> None:
    minutes = Minutes()
    minutes.fold(
        [Group(number, "k", 1, (1, 1, 0, 0, 0)) for number in (1, 1000 - KEPT_MINUTES, 1000 - KEPT_MINUTES + 1, 1001, 9999)], Important()
    )
    minutes.forget(1000)
    assert sorted(minutes.by_number) == [1000 - KEPT_MINUTES + 1, 1001]


def test_a_long_interruption_marks_kept_minutes_only() -> None:
    minutes = Minutes()
    minutes.mark_incomplete(0, 10**6)
    assert len(minutes.by_number) == KEPT_MINUTES
    assert all(each.is_incomplete for each in minutes.by_number.values())


def test_a_user_who_invents_keys_displaces_no_prefix_of_another_user() -> None:
    """Also with many messages, and with a message to each key of the other user before that user's."""
    minutes, count = Minutes(), MAX_SUBJECTS // 2
    used = [f"used/{number}" for number in range(count)]
    minutes.fold([Group(1, prefix, 7, (1, 1, 0, 0, 0)) for prefix in used], Important())
    for turn in range(3):
        minutes.fold([Group(1, f"invented/{turn}-{number}", 7, (1000, 1, 0, 0, 0)) for number in range(1000)], Important())
        minutes.fold([Group(1, prefix, 8, (1, 1, 0, 0, 0)) for prefix in used], Important())
        assert all(minutes.by_number[1].value(PREFIX, prefix, "messages") for prefix in used)
    found = minutes.by_number[1]
    # The invented keys of the first turn displaced some, before the other user had used them.
    assert all(found.value(PREFIX, prefix, "messages") >= 3 for prefix in used)
    assert len(found.groups[PREFIX]) == MAX_SUBJECTS
    assert set(found.publishers) == set(found.groups[PREFIX])


def test_subjects_that_decide_about_alerts_remain() -> None:
    rule = Threshold("lost", "denials", 5, "prefix")
    important = Important({PREFIX: {"raised"}, USER: {"9"}}, frozenset({"usual"}), (rule,))
    minutes = Minutes()
    own = [Group(1, "raised", 7, (1, 0, 0, 0, 0)), Group(1, "usual", 7, (1, 0, 0, 0, 0)), Group(1, "denied", 7, (0, 0, 0, 0, 5))]
    own += [Group(1, "denied-less", 7, (0, 0, 0, 0, 4)), Group(1, None, 9, (1, 0, 0, 0, 0))]
    minutes.fold([*own, *(Group(1, f"k/{number}", 100 + number, (50, 0, 0, 0, 0)) for number in range(2 * MAX_SUBJECTS))], important)
    found = minutes.by_number[1]
    assert {"raised", "usual", "denied"} <= set(found.groups[PREFIX])
    assert "denied-less" not in found.groups[PREFIX]
    assert "9" in found.groups[USER]
    assert len(found.groups[PREFIX]) == MAX_SUBJECTS + 3


def test_the_number_of_important_subjects_is_bounded() -> None:
    minutes = Minutes()
    important = Important(thresholds=(Threshold("any", "messages", 1, "prefix"),))
    minutes.fold([Group(1, f"k/{number}", 7, (1, 0, 0, 0, 0)) for number in range(5000)], important)
    assert len(minutes.by_number[1].groups[PREFIX]) == MAX_SUBJECTS + MAX_IMPORTANT


def test_long_prefixes_are_stored_shortened() -> None:
    minutes = Minutes()
    minutes.fold([Group(1, "\\xff" * 4096, 7, (1, 0, 0, 0, 0)), Group(1, "x" * 4096, 7, (1, 0, 0, 0, 0))], Important())
    assert all(len(prefix) <= MAX_ENCODED for prefix in minutes.by_number[1].groups[PREFIX])
    assert len(minutes.by_number[1].groups[PREFIX]) == 2


@given(st.text(max_size=6000) | st.text("aé\\\U0001f600", min_size=30, max_size=400))
def test_a_subject_is_bounded_and_shortened_once(subject: str) -> None:
    found = shortened(subject)
    assert len(escape(found)) <= MAX_ENCODED
    # JSON has at most six characters where percent-encoding has three.
    assert len(json.dumps(found)) <= 2 * MAX_ENCODED + 2
    assert shortened(found) == found
    assert escape(found) == escape(subject)


def test_a_short_subject_is_stored_as_it_is() -> None:
    for subject in ("a/b", "x" * MAX_ENCODED, "é" * 36, ""):
        assert shortened(subject) == subject


def test_a_long_subject_keeps_whole_characters() -> None:
    assert shortened("é" * 100).split("~")[0] == "é" * 33
    assert shortened("x" * 4096).split("~")[0] == "x" * 200


def test_different_subjects_have_different_keys() -> None:
    subjects = ["a/b", "a%2Fb", "a", "x" * 300, "x" * 301, "é", "é" * 300, "é" * 301, "*"]
    assert len({escape(subject) for subject in subjects}) == len(subjects)
