"""What local patterns make of lines of interest."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbus_services.link import local_interest
from sbus_services.link.frames import Line
from sbus_services.link.local_interest import LocalInterest, wanted_lines
from sbus_services.link.remote_interest import COST
from sbus_services.link.rules import Import, Rules
from tests.support.examples import examples

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
    interest.is_inheriting = False
    interest.add(1, 1000, b"host/a/net/")
    interest.add(2, 1000, b"host/a/net/")
    interest.remove(1, b"host/a/net/")
    interest.expire(9.0)
    ends = [interest.next_end]
    interest.remove_client(2)
    interest.remove(2, b"host/a/net/")
    interest.expire(10.0)
    assert [*ends, interest.next_end] == [None, 11.0]
    interest.expire(10.9)
    assert (interest.is_wanted(line), interest.patterns(line)) == (True, [b"host/a/net/"])
    interest.expire(11.0)
    assert (interest.is_wanted(line), interest.changed, interest.all_patterns()) == (False, {line}, [])


def test_a_client_that_returns_in_time_keeps_the_line() -> None:
    interest = LocalInterest(ALL)
    interest.add(1, 1000, b"host/a/net/")
    interest.remove_all()
    interest.add(3, 1000, b"host/a/net/")
    interest.is_inheriting = False
    interest.expire(99.0)
    assert (interest.all_patterns(), interest.next_end) == ([b"host/a/net/"], None)


def test_nothing_is_withdrawn_before_the_bus_has_reported_who_has_what() -> None:
    interest = LocalInterest(ALL)
    interest.add(1, 1000, b"host/a/net/")
    interest.remove_all()
    for now in (10.0, 99.0):
        interest.expire(now)
    assert (interest.all_patterns(), interest.next_end) == ([b"host/a/net/"], None)
    interest.is_inheriting = False
    interest.expire(100.0)
    assert interest.next_end == 101.0
    interest.expire(101.0)
    assert interest.all_patterns() == []


def _fill(interest: LocalInterest, uid: int, size: int, count: int = 5_000) -> int:
    """Add patterns of *size* bytes, each by a client of its own; return how many are announced then."""
    patterns = [(b"host/a/%d/%05d" % (uid, number)).ljust(size, b"x") for number in range(count)]
    for number, pattern in enumerate(patterns):
        interest.add(100_000 * uid + number, uid, pattern)
    return _announced(interest, patterns)


def _announced(interest: LocalInterest, patterns: list[bytes]) -> int:
    return sum(bool(interest.lines(pattern)) for pattern in patterns)


def _space(size: int) -> int:
    """Return how many patterns of *size* bytes users can have."""
    each = size - len(b"host/a/") + COST
    return min(local_interest.LIMITS.lines * 7 // 8, (local_interest.LIMITS.bytes * 7 // 8) // each)


@pytest.mark.parametrize("size", [40, 3_900])
def test_every_user_has_as_many_patterns_as_the_others(size: int) -> None:
    """Whether they are many or long, however many users came first, and however many clients each has; root has a reserve."""
    interest = LocalInterest(ALL)
    for users in range(1, 8):
        assert abs(_fill(interest, 30_000 + users, size) - _space(size) // users) <= 1
    assert _fill(interest, 0, size) > _space(size) // 10
    assert _fill(interest, 40_000, size, 1) == 1


def test_ids_of_one_user_have_the_share_of_one_user() -> None:
    interest = LocalInterest(ALL, charged=lambda uid: 30_000 if uid >= 200_000 else uid)
    for number in range(40):
        _fill(interest, 200_000 + number, 40, 400)
    assert _fill(interest, 30_001, 40) == _space(40) // 2


def test_a_user_with_more_makes_room_and_gets_to_know_it() -> None:
    """Of a pattern that several users have, those that are charged for less keep it."""
    interest, space = LocalInterest(ALL), _space(40)
    shared = b"host/a/shared"
    interest.add(1, 30_002, shared)
    assert _fill(interest, 30_001, 40) == space - 1
    interest.add(2, 30_001, shared)
    assert interest.add(3, 30_002, b"host/a/1") == [shared, (b"host/a/30001/%05d" % (space - 2)).ljust(40, b"x")]
    assert (len(interest.lines(shared)), interest.add(4, 30_001, b"host/a/2")) == (1, [b"host/a/2"])
    interest.remove(1, shared)
    assert interest.add(4, 30_001, b"host/a/2") == [], "a pattern without a client makes room before its second is over"
    assert not interest.lines(shared)


ACTIONS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 11), st.sampled_from((1, 60)), st.booleans()), max_size=120)


@settings(max_examples=examples(60))
@given(ACTIONS)
def test_whatever_users_do_each_has_its_share(actions: list[tuple[int, int, int, bool]]) -> None:
    """Six users add and remove patterns, some of them the same. The model has what each of them was not refused."""
    users = 6
    limits = local_interest.Cost(32, 32 * (COST + 12))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(local_interest, "LIMITS", limits)
        interest = LocalInterest(ALL)
        model: dict[int, set[bytes]] = {uid: set() for uid in range(1, users + 1)}
        for user, number, size, is_added in actions:
            uid, pattern = user + 1, b"host/a/%d/" % (number if number < 4 else 100 * user + number) + b"x" * size
            if not is_added:
                interest.remove(uid, pattern)
                model[uid].discard(pattern)
                continue
            before = {each: _cost(held) for each, held in model.items()}
            refused = interest.add(uid, uid, pattern)
            model[uid].add(pattern)
            for held in model.values():
                held.difference_update([each for each in refused if not interest.lines(each)])
            _compare(interest, model)
            part = local_interest.Cost(*(limit * 7 // 8 // users for limit in limits))
            more = _cost([pattern])
            is_small = all(has + new <= may for has, new, may in zip(before[uid], more, part, strict=True))
            assert pattern in model[uid] or not is_small, "a user with less than its part was refused"
            for other, cost in before.items():
                if other != uid and any(has > now for has, now in zip(cost, _cost(model[other]), strict=True)):
                    assert any(has > may - 1 for has, may in zip(cost, part, strict=True)), "a user with less than its part lost a pattern"


def _cost(patterns: Iterable[bytes]) -> local_interest.Cost:
    costs = [local_interest.cost_of(wanted_lines(ALL, pattern)) for pattern in patterns]
    return local_interest.Cost(sum(each.lines for each in costs), sum(each.bytes for each in costs))


def _compare(interest: LocalInterest, model: dict[int, set[bytes]]) -> None:
    """Learn from *interest* which holders of a shared pattern lost it, and check all sums."""
    for uid, held in model.items():
        has = interest._by_user.get(uid)
        kept = set() if has is None else set(has.patterns)
        assert kept <= held
        assert has is None or (has.lines, has.bytes) == _cost(kept)
        model[uid] = kept
    everything = set().union(*model.values()) | set(interest._ending)
    assert everything == set(interest._entries)
    assert (interest._all.lines, interest._all.bytes) == _cost(everything)
    assert all(used <= limit * 7 / 8 for used, limit in zip(_cost(everything), local_interest.LIMITS, strict=True))


def test_patterns_that_were_there_before_are_inherited() -> None:
    interest = LocalInterest(ALL)
    interest.add(1, 1000, b"host/a/x")
    interest.is_inheriting = False
    interest.add(1, 1000, b"host/a/y")
    assert (interest.inherited(Line(b"a", b"x")), interest.inherited(Line(b"a", b"y"))) == ([b"host/a/x"], [])
