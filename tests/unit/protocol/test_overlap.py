"""Could a pattern reach under a prefix? All short keys are tried in tests/property/test_overlap.py."""

from __future__ import annotations

import pytest

from sbusd.protocol.keys import KeySpace
from sbusd.protocol.overlap import Reach


@pytest.mark.parametrize(
    ("pattern", "reaches"),
    [
        (b"", True),
        (b"*/", True),
        (b"*", False),  # one segment alone
        (b"*/x", True),
        (b"l*/x", True),
        (b"lab", False),
        (b"lab*", False),
        (b"lab/", True),
        (b"lab/x", True),
        (b"lab/*/y/", True),
        (b"la*b/x", False),  # takes nothing at all
        (b"lab*/x", True),
        (b"labor/x", False),
        (b"x/", False),
        (b"lab/x*y/", False),
        (b"!/", False),
    ],
)
def test_patterns_that_reach_under_lab(pattern: bytes, reaches: bool) -> None:
    assert Reach(KeySpace(), pattern).touches(b"lab/") is reaches


@pytest.mark.parametrize("pattern", [b"lab", b"lab*", b"la*", b"labor", b"*", b"", b"l*/"])
def test_a_prefix_need_not_end_with_its_segment(pattern: bytes) -> None:
    assert Reach(KeySpace(), pattern).touches(b"la")


def test_wildcards_reach_no_secret_and_a_spelled_out_pattern_does() -> None:
    for pattern in (b"", b"*/", b"!*/", b"*/cred/", b"!/*/", b"!/cred/"):
        assert not Reach(KeySpace(), pattern).touches(b"!/cred/")
    assert Reach(KeySpace(), b"!/cred//1000//x").touches(b"!/cred/")
    assert Reach(KeySpace(), b"!/cred//1000//*").touches(b"")
    assert not Reach(KeySpace(), b"!/cred//1000//x").touches(b"!/cred//1001/")


def test_the_separator_is_the_buses() -> None:
    assert Reach(KeySpace(b"."), b"lab.*").touches(b"lab.x")
    assert not Reach(KeySpace(b"."), b"lab/*").touches(b"lab.x")


@pytest.mark.parametrize(
    ("pattern", "within"), [(b"lab/", True), (b"lab/x*", True), (b"lab", False), (b"l*/", False), (b"", False), (b"lab*/", False)]
)
def test_a_pattern_is_within_a_prefix_if_it_spells_it_out(pattern: bytes, within: bool) -> None:
    assert Reach(KeySpace(), pattern).is_within(b"lab/") is within


def test_everything_is_within_the_empty_prefix() -> None:
    assert Reach(KeySpace(), b"*").is_within(b"")
