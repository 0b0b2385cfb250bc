"""The rate of events, and those that a newer one replaces."""

from __future__ import annotations

from collections import OrderedDict

from hypothesis import given
from hypothesis import strategies as st

from sbusd.feeds.udev.devices import DeviceEvent
from sbusd.feeds.udev.waiting_events import MAX_WAITING, WaitingEvents


def event(name: str, action: str = "change", number: int = 0) -> DeviceEvent:
    return DeviceEvent.of({"DEVPATH": f"/devices/{name}", "SUBSYSTEM": "x", "ACTION": action, "SEQNUM": str(number)})


def taken(waiting: WaitingEvents, now: float) -> list[tuple[str, str, int]]:
    found = []
    while (item := waiting.take(now)) is not None:
        found.append((item[0].device.name, item[0].action, item[1]))
    return found


def test_a_rate_is_not_exceeded_and_next_time_is_when_one_is_due() -> None:
    waiting = WaitingEvents(10)
    for number in range(30):
        assert not waiting.add(event(str(number)))
    now = 100.0
    found = [taken(waiting, now)]
    while (due := waiting.next_time()) is not None:
        assert due > now
        assert taken(waiting, now + (due - now) / 2) == []
        now = due + 1e-6
        found.append(taken(waiting, now))
    assert all(len(each) == 1 for each in found)
    assert 2.8 < now - 100.0 < 3.0
    assert [each[0][0] for each in found] == [str(number) for number in range(30)]


def test_the_newest_event_of_a_key_replaces_older_ones_and_takes_their_place_at_the_end() -> None:
    waiting = WaitingEvents(1_000)
    for action in ("add", "remove", "add"):
        waiting.add(event("a", action))
    waiting.add(event("b", "add"))
    assert taken(waiting, 1.0) == [("a", "remove", 0), ("a", "add", 1), ("b", "add", 0)]
    assert waiting.next_time() is None


def test_it_is_full_at_its_limit() -> None:
    waiting = WaitingEvents(1)
    for number in range(MAX_WAITING - 1):
        waiting.add(event(str(number)))
    was_full = waiting.is_full
    waiting.add(event("last"))
    assert (was_full, waiting.is_full) == (False, True)
    assert waiting.add(event("last")), "one that replaces another needs no room"
    assert len(waiting) == MAX_WAITING


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["add", "remove", "change"]))))
def test_nothing_is_lost_but_what_is_counted(given_events: list[tuple[str, str]]) -> None:
    waiting = WaitingEvents(1)
    model: OrderedDict[tuple[str, str], int] = OrderedDict()
    for name, action in given_events:
        before = model.pop((name, action), None)
        model[name, action] = 0 if before is None else before + 1
        assert waiting.add(event(name, action)) == (before is not None)
    found, now = [], 0.0
    while len(waiting):
        now += 1.0
        found += taken(waiting, now)
    assert found == [(name, action, count) for (name, action), count in model.items()]
    assert sum(count + 1 for _, _, count in found) == len(given_events)
