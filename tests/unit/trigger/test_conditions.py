"""Conditions on payloads."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbusd.trigger.conditions import Payload, text_matches


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
