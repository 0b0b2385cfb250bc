"""What local patterns make of lines of interest."""

from __future__ import annotations

import pytest

from sbusd.link import local_interest
from sbusd.link.frames import Line
from sbusd.link.local_interest import LocalInterest, wanted_lines
from sbusd.link.rules import Import, Rules

ALL = Rules("R", "b", imports=(Import(b""),))
SOME = Rules("R", "b", imports=(Import(b"net/", frozenset({"a", "c"})), Import(b"cluster/", shared=True)))


@pytest.mark.parametrize(
    ("pattern", "lines"),
    [
        (b"host/a/net/", [(b"a", b"net/")]),
        (b"host/*/net/x", [(b"*", b"net/x")]),
        (b"host/a*/", [(b"a*", b"")]),
        (b"host/", [(b"*", b"")]),
        (b"host/a", []),
        (b"host/b/x", []),
        (b"host/a.b/x", []),
        (b"host/a*x/y", []),
        (b"*/a/net/", []),
        (b"", []),
        (b"net/", []),
    ],
)
def test_a_pattern_needs_these_lines(pattern: bytes, lines: list[tuple[bytes, bytes]]) -> None:
    assert list(wanted_lines(ALL, pattern)) == lines


@pytest.mark.parametrize(
    ("pattern", "lines"),
    [
        (b"host/*/", [(b"a", b"net/"), (b"c", b"net/")]),
        (b"host/a/x", []),
        (b"host/z/net/", []),
        (b"", [(b"*", b"cluster/")]),
        (b"cluster/*", [(b"*", b"cluster/*")]),
    ],
)
def test_lines_are_within_the_imports(pattern: bytes, lines: list[tuple[bytes, bytes]]) -> None:
    assert list(wanted_lines(SOME, pattern)) == lines


def test_a_line_is_withdrawn_a_second_after_its_last_client() -> None:
    interest, line = LocalInterest(ALL), Line(b"a", b"net/")
    interest.add(1, b"host/a/net/")
    interest.add(2, b"host/a/net/")
    interest.remove(1, b"host/a/net/", 10.0)
    ends = [interest.next_end]
    interest.remove_client(2, 10.0)
    interest.remove(2, b"host/a/net/", 10.5)
    assert [*ends, interest.next_end] == [None, 11.0]
    interest.expire(10.9)
    assert (interest.is_wanted(line), interest.patterns(line)) == (True, [b"host/a/net/"])
    interest.expire(11.0)
    assert (interest.is_wanted(line), interest.changed, interest.all_patterns()) == (False, {line}, [])


def test_a_client_that_returns_in_time_keeps_the_line() -> None:
    interest = LocalInterest(ALL)
    interest.add(1, b"host/a/net/")
    interest.remove_all(10.0)
    interest.add(3, b"host/a/net/")
    interest.expire(99.0)
    assert interest.all_patterns() == [b"host/a/net/"]


def test_no_client_can_use_more_than_it_leaves_free() -> None:
    interest = LocalInterest(ALL)
    accepted = [sum(interest.add(client, b"host/a/%d/%d" % (client, number)) for number in range(5_000)) for client in (1, 2, 3)]
    assert accepted == [local_interest.MAX_PATTERNS // 2, local_interest.MAX_PATTERNS // 4, local_interest.MAX_PATTERNS // 8]


def test_patterns_that_were_there_before_are_inherited() -> None:
    interest = LocalInterest(ALL)
    interest.add(1, b"host/a/x")
    interest.is_inheriting = False
    interest.add(1, b"host/a/y")
    assert (interest.inherited(Line(b"a", b"x")), interest.inherited(Line(b"a", b"y"))) == ([b"host/a/x"], [])
