"""Delays between attempts double up to a maximum, and begin again after a connection that lasted."""

from __future__ import annotations

import asyncio

import pytest

from sbus_programs.backoff import FIRST_SECONDS, MAX_SECONDS, STABLE_SECONDS, Attempts, Backoff


def test_delays_double_up_to_a_maximum() -> None:
    backoff = Backoff()
    step = FIRST_SECONDS
    for _ in range(20):
        assert step / 2 <= backoff.delay() <= step
        step = min(step * 2, MAX_SECONDS)
    assert step == MAX_SECONDS


def test_only_a_connection_that_lasted_is_a_success() -> None:
    backoff = Backoff()
    for _ in range(20):
        backoff.delay()
    backoff.lasted(STABLE_SECONDS - 1)
    assert backoff.delay() > FIRST_SECONDS
    backoff.lasted(STABLE_SECONDS)
    assert backoff.delay() <= FIRST_SECONDS


def test_attempts_begin_at_once_and_pause_until_a_connection_lasted(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses = list[float]()

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    async def main() -> None:
        attempts = Attempts()
        for lasted in [0.0] * 9 + [STABLE_SECONDS, 0.0]:
            await anext(attempts)
            now = asyncio.get_running_loop().time() + lasted
            monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda now=now: now)

    monkeypatch.setattr("sbus_programs.backoff.asyncio.sleep", sleep)
    asyncio.run(main())
    assert len(pauses) == 10  # none before the first attempt
    assert MAX_SECONDS / 2 <= pauses[8] <= MAX_SECONDS
    assert max(pauses[0], pauses[9]) <= FIRST_SECONDS
