"""Counters of minutes: sums are exact, and the number of subjects is bounded."""

from __future__ import annotations

import json
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from sbusd.pipeline.live.minutes import ALL, KEPT_MINUTES, MAX_SUBJECTS, PREFIX, USER, Group, Minute, Minutes

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
        minutes.fold(batch)
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
    minutes.fold([Group(1, f"invented/{number}", 7, (1, 1, 0, 0, 0)) for number in range(5 * MAX_SUBJECTS)])
    minutes.fold([Group(1, "used", 8, (50, 1, 0, 0, 0))])
    minutes.fold([Group(1, f"more/{number}", 7, (1, 1, 0, 0, 0)) for number in range(5 * MAX_SUBJECTS)])
    found = minutes.by_number[1]
    assert len(found.groups[PREFIX]) == MAX_SUBJECTS
    assert found.value(PREFIX, "used", "messages") == 50
    counted = sum(each[0] for each in found.groups[PREFIX].values()) + found.others[PREFIX][0]
    assert counted == found.value(ALL, "", "messages") == 10 * MAX_SUBJECTS + 50
    assert USER not in found.others


def test_json_has_everything() -> None:
    minutes = Minutes()
    minutes.fold([Group(1, f"k/{number}", number, (number, 1, 2, 3, 4)) for number in range(MAX_SUBJECTS + 5)])
    minutes.mark_incomplete(1, 1)
    found = minutes.by_number[1]
    assert Minute.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_old_minutes_are_dropped_and_those_of_a_wrong_clock() -> None:
    minutes = Minutes()
    minutes.fold([Group(number, "k", 1, (1, 1, 0, 0, 0)) for number in (1, 1000 - KEPT_MINUTES, 1000 - KEPT_MINUTES + 1, 1001, 9999)])
    minutes.forget(1000)
    assert sorted(minutes.by_number) == [1000 - KEPT_MINUTES + 1, 1001]


def test_a_long_interruption_marks_kept_minutes_only() -> None:
    minutes = Minutes()
    minutes.mark_incomplete(0, 10**6)
    assert len(minutes.by_number) == KEPT_MINUTES
    assert all(each.is_incomplete for each in minutes.by_number.values())
