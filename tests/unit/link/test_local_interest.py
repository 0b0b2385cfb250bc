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
    interest.add(1, 1000, b"host/a/net/")
    interest.add(2, 1000, b"host/a/net/")
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
    interest.add(1, 1000, b"host/a/net/")
    interest.remove_all(10.0)
    interest.add(3, 1000, b"host/a/net/")
    interest.expire(99.0)
    assert interest.all_patterns() == [b"host/a/net/"]


def _fill(interest: LocalInterest, uid: int, size: int) -> tuple[int, int]:
    """Add patterns of *size* bytes, each by a client of its own; return how many were accepted, and their bytes."""
    patterns = (b"host/a/%d/%05d" % (uid, number) for number in range(5_000))
    accepted = sum(interest.add(100_000 * uid + number, uid, each.ljust(size, b"x")) for number, each in enumerate(patterns))
    return accepted, accepted * size


@pytest.mark.parametrize("size", [40, 3_900])
def test_no_user_can_use_more_than_its_clients_leave_free(size: int) -> None:
    """Whether they are many or long, and however many clients they have; root has a reserve."""
    interest = LocalInterest(ALL)
    for_users = min(local_interest.MAX_PATTERNS * 7 // 8, (local_interest.MAX_PATTERN_BYTES * 7 // 8) // size)
    for uid, part in ((30_002, 2), (30_003, 4), (30_004, 8)):
        accepted, _ = _fill(interest, uid, size)
        assert abs(accepted - for_users // part) <= 1
    accepted, _ = _fill(interest, 0, size)
    assert accepted > for_users // 10


def test_a_pattern_is_charged_to_a_user_that_has_it() -> None:
    interest = LocalInterest(ALL)
    first, second = b"host/a/x", b"host/a/y"
    for client, uid, pattern in ((1, 30_001, first), (2, 30_002, first), (3, 30_002, first), (2, 30_002, second)):
        assert interest.add(client, uid, pattern)
    assert _charged(interest) == {30_001: (1, 8), 30_002: (1, 8)}
    interest.remove_client(1, 0.0)
    assert _charged(interest) == {30_002: (2, 16)}
    interest.remove_client(2, 0.0)
    interest.expire(1.0)
    assert _charged(interest) == {30_002: (1, 8)}
    interest.remove_client(3, 1.0)
    interest.add(4, 30_003, first)
    assert _charged(interest) == {30_003: (1, 8)}
    interest.remove_all(1.0)
    interest.expire(2.0)
    assert _charged(interest) == {}


def _charged(interest: LocalInterest) -> dict[int, tuple[int, int]]:
    return {uid: (used.patterns, used.bytes) for uid, used in interest._used.items()}


def test_patterns_that_were_there_before_are_inherited() -> None:
    interest = LocalInterest(ALL)
    interest.add(1, 1000, b"host/a/x")
    interest.is_inheriting = False
    interest.add(1, 1000, b"host/a/y")
    assert (interest.inherited(Line(b"a", b"x")), interest.inherited(Line(b"a", b"y"))) == ([b"host/a/x"], [])
