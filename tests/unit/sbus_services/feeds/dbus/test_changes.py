"""The table of changes: the last state of each key is published, at a bounded rate, and nothing twice."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from sbus_services.feeds.dbus.changes import Change, ChangeKind, ChangeTable
from tests.support.examples import examples


class Subscriber:
    """What a subscriber knows that applies each change, and when it received of each key."""

    def __init__(self) -> None:
        self.state: dict[str, Any] = {}
        self.ends: list[str] = []
        self.times: dict[str, list[float]] = {}

    def apply(self, change: Change, now: float) -> None:
        before = self.state.get(change.key)
        if change.kind is ChangeKind.NEW:
            assert before is None
        if change.kind is ChangeKind.CHANGE:
            assert before not in (None, change.attributes)
        if before is not None:
            assert {**change.attributes, **change.old} == before
        if change.kind is ChangeKind.REMOVE:
            self.state.pop(change.key, None)
            self.ends.append(change.key)
        else:
            self.state[change.key] = change.attributes
        self.times.setdefault(change.key, []).append(now)


KEYS = st.sampled_from(["a", "b", "c"])
STEPS = st.one_of(
    st.tuples(st.just("put"), KEYS, st.integers(0, 2)),
    st.tuples(st.just("remove"), KEYS, st.booleans()),
    st.tuples(st.just("take"), st.just(""), st.integers(0, 3)),
    st.tuples(st.just("wait"), st.just(""), st.integers(1, 15)),
    st.tuples(st.just("take_all"), st.just(""), st.just(0)),
)


class Run:
    """A table, its state, and a subscriber, in steps."""

    def __init__(self) -> None:
        self.table = ChangeTable(interval=1.0)
        self.subscriber = Subscriber()
        self.now = 0.0
        self.current: dict[str, Any] = {}
        self.forced: set[str] = set()

    def put(self, key: str, value: int) -> None:
        self.table.put(key, {"value": value}, self.now)
        self.current[key] = {"value": value}

    def remove(self, key: str, is_notable: int) -> None:
        self.table.remove(key, self.now, is_notable=bool(is_notable))
        self.current.pop(key, None)

    def take(self, _key: str, count: int) -> None:
        for _ in range(count):
            if (change := self.table.take(self.now)) is not None:
                self.subscriber.apply(change, self.now)

    def wait(self, _key: str, tenths: int) -> None:
        self.now += tenths / 10

    def take_all(self, _key: str, _value: int) -> None:
        for change in self.table.take_all(self.now):
            self.subscriber.apply(change, self.now)
            self.forced.add(change.key)
        assert {change.key: change.attributes for change in self.table.snapshot()} == self.current


@settings(max_examples=examples(500))
@given(st.lists(STEPS, max_size=60))
def test_a_subscriber_ends_with_the_state_and_hears_of_each_key_at_a_bounded_rate(steps: list[tuple[str, str, int]]) -> None:
    run = Run()
    for step, key, value in steps:
        getattr(run, step)(key, value)
    for _ in range(20):
        run.wait("", 10)
        run.take("", 10)
    assert run.subscriber.state == run.current
    assert run.table.due() is None
    assert len(run.table) == len(run.current)
    for key, times in run.subscriber.times.items():
        if key not in run.forced:
            assert all(later - earlier >= 0.999 for earlier, later in itertools.pairwise(times))


def test_the_first_change_is_due_at_once_and_the_next_after_the_interval() -> None:
    table = ChangeTable(interval=1.0)
    table.put("a", {"x": 1, "y": 1}, 10.0)
    assert table.take(10.0) == Change(ChangeKind.NEW, "a", {"x": 1, "y": 1})
    table.put("a", {"x": 2, "y": 1}, 10.1)
    table.put("a", {"x": 3, "y": 1}, 10.2)
    assert table.due() == 11.0
    assert table.take(10.9) is None
    assert table.take(11.0) == Change(ChangeKind.CHANGE, "a", {"x": 3, "y": 1}, {"x": 1})
    assert table.coalesced == 1


def test_a_change_that_is_taken_back_is_not_published() -> None:
    table = ChangeTable()
    table.put("a", {"x": 1}, 0.0)
    table.take(0.0)
    table.put("a", {"x": 2}, 1.0)
    table.put("a", {"x": 1}, 1.0)
    assert table.take(2.0) is None


def test_a_removal_has_the_last_values_even_if_they_were_never_published() -> None:
    table = ChangeTable()
    table.put("job", {"result": None}, 0.0)
    table.remove("job", 0.0, {"result": "done"})
    table.remove("job", 0.0)
    assert table.take(0.0) == Change(ChangeKind.REMOVE, "job", {"result": "done"})
    table.remove("unknown", 0.0)
    assert table.take(9.0) is None


def test_too_many_ends_are_dropped_and_counted_and_memory_is_bounded() -> None:
    table = ChangeTable(most=10)
    table.put("kept", {"x": 1}, 0.0)
    table.take(0.0)
    for number in range(10_000):
        table.put(f"job{number}", {"number": number}, 0.0)
        table.remove(f"job{number}", 0.0)
    table.remove("kept", 0.0)
    assert table.dropped == 9_990
    assert len(table._queue) < 100
    ends = []
    while (change := table.take(100.0)) is not None:
        ends.append(change.key)
    # The end of an entry that subscribers know is never dropped.
    assert sorted(ends) == sorted([*(f"job{number}" for number in range(9_990, 10_000)), "kept"])


def test_a_key_that_is_removed_and_created_is_limited_too() -> None:
    table = ChangeTable(interval=1.0)
    table.put("a", {"x": 1}, 0.0)
    assert table.take(0.0) is not None
    table.remove("a", 0.0)
    assert table.take(1.0) == Change(ChangeKind.REMOVE, "a", {"x": 1})
    assert table.take(1.0) is None
    table.put("a", {"x": 1}, 1.0)
    assert table.take(1.5) is None
    assert table.take(2.0) == Change(ChangeKind.NEW, "a", {"x": 1})
