"""Open calls: a slow reply is counted once in whatever batch it arrives, and no user displaces the calls of another."""

from __future__ import annotations

import random

import pytest

from sbus_archive.pipeline.live.minutes import MEASURES
from sbus_archive.pipeline.live.open_calls import KEPT_SECONDS, MAX_OPEN, MAX_OPEN_OF_USER, BatchCalls, CallRequest, OpenCalls, slow_group
from sbus_archive.tables.schema import CALL_SECONDS

SECOND = 10**9
SLOW = MEASURES.index("slow")


def request(number: int, ts: int = 0, uid: int | None = 1) -> CallRequest:
    return CallRequest(number, ts, "rpc/echo", uid)


@pytest.mark.parametrize("seed", range(20))
def test_slow_replies_of_later_batches_are_counted_once(seed: int) -> None:
    chance = random.Random(seed)
    calls = {number: (number * SECOND, number * SECOND + chance.randrange(3 * SECOND)) for number in range(100)}
    moments = sorted([(ts, 0, number) for number, (ts, _) in calls.items()] + [(ts, 1, number) for number, (_, ts) in calls.items()])
    state, found = OpenCalls(), 0
    while moments:
        batch, moments = moments[: (size := chance.randrange(1, 9))], moments[size:]
        begun = {number for _, kind, number in batch if kind == 0}
        ended = {number for _, kind, number in batch if kind == 1}
        slow = tuple(
            slow_group(calls[each][1] // (60 * SECOND), "rpc/echo", 1, 1)
            for each in begun & ended
            if calls[each][1] - calls[each][0] >= SECOND
        )
        requests = tuple(request(number, calls[number][0]) for number in begun - ended)
        replies = tuple((number, calls[number][1]) for number in ended - begun)
        groups = state.fold(BatchCalls(requests, replies, slow), SECOND)
        found += sum(group.counts[SLOW] for group in groups)
    assert found == sum(end - begin >= SECOND for begin, end in calls.values())
    assert (state.by_number, state.dropped) == ({}, 0)


def test_a_user_without_replies_does_not_displace_others() -> None:
    state = OpenCalls()
    state.fold(BatchCalls(tuple(request(number, number, uid=7) for number in range(1, 1_000))), SECOND)
    assert (len(state.by_number), state.dropped) == (MAX_OPEN_OF_USER, 999 - MAX_OPEN_OF_USER)
    crowd = tuple(request(10_000 + number, 5_000 + number, uid=100 + number % 40) for number in range(4_000))
    state.fold(BatchCalls(crowd), SECOND)
    assert len(state.by_number) == MAX_OPEN
    state.fold(BatchCalls((request(1_000_000, 90_000, uid=2),)), SECOND)
    assert (len(state.by_number), 1_000_000 in state.by_number) == (MAX_OPEN, True)
    (group,) = state.fold(BatchCalls(replies=((1_000_000, 90_000 + 2 * SECOND),)), SECOND)
    assert (group.uid, group.prefix, group.counts[SLOW]) == (2, "rpc/echo", 1)


def test_old_calls_are_forgotten() -> None:
    assert KEPT_SECONDS == CALL_SECONDS
    state = OpenCalls()
    state.fold(BatchCalls((request(1, 0),)), SECOND)
    state.fold(BatchCalls((request(2, (CALL_SECONDS + 1) * SECOND),)), SECOND)
    assert list(state.by_number) == [2]
    assert state.fold(BatchCalls(replies=((1, 1), (3, 1)), dropped=4), SECOND) == []
    assert state.dropped == 4
