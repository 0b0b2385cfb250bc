"""Users take turns, however many calls each has, and no place is lost."""

from __future__ import annotations

import asyncio

import pytest

from sbusd.ctl.fair_semaphore import FairSemaphore

ALICE, BOB, CAROL = 1, 2, 3


def _run(asked: list[int], places: int = 1) -> list[int]:
    """Return in which order users were served who asked in the order of *asked*."""
    served: list[int] = []

    async def one(turns: FairSemaphore, uid: int) -> None:
        async with turns.place(uid):
            served.append(uid)
            await asyncio.sleep(0)

    async def run() -> None:
        turns = FairSemaphore(places)
        await asyncio.gather(*(one(turns, uid) for uid in asked))

    asyncio.run(run())
    return served


def test_who_has_many_calls_does_not_keep_others_waiting() -> None:
    assert _run([BOB] * 60 + [ALICE, CAROL]) == [BOB, BOB, ALICE, CAROL, *[BOB] * 58]


def test_they_take_turns() -> None:
    assert _run([BOB, BOB, BOB, ALICE, ALICE]) == [BOB, BOB, ALICE, BOB, ALICE]
    assert sorted(_run([BOB, ALICE] * 20, places=7)) == [ALICE] * 20 + [BOB] * 20


@pytest.mark.parametrize("is_late", [False, True])
def test_who_is_cancelled_takes_no_place_with_it(is_late: bool) -> None:
    """*is_late*: in the moment in which its turn has come."""

    async def run() -> None:
        turns, end = FairSemaphore(1), asyncio.Event()

        async def hold() -> None:
            async with turns.place(BOB):
                await end.wait()

        first, second = asyncio.ensure_future(hold()), asyncio.ensure_future(hold())
        await asyncio.sleep(0)
        if is_late:
            end.set()
            await asyncio.sleep(0)
            assert first.done()
            assert not second.done()
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        end.set()
        await first
        async with asyncio.timeout(30), turns.place(ALICE):
            pass

    asyncio.run(run())


def test_a_failure_gives_the_place_back() -> None:
    async def run() -> None:
        turns = FairSemaphore(1)
        with pytest.raises(ZeroDivisionError):
            async with turns.place(BOB):
                raise ZeroDivisionError
        async with asyncio.timeout(30), turns.place(ALICE):
            pass

    asyncio.run(run())
