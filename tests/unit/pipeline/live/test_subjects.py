"""Subjects are bounded, whatever keys users invent, and differ if the keys differ."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from sbusd.pipeline.live.subjects import MAX_ENCODED, escape, shortened


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
