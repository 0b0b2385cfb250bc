"""Who may be a worker: one user's look-up of groups does not delay the calls of others."""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from functools import partial
from types import SimpleNamespace
from typing import cast

import pytest

from sbus import Peer
from sbus.asyncio.look_ups import LookUps
from sbus_programs.config.store import QueueSettings
from sbus_programs.config.users import ChargedUsers, SubordinateIds, SubordinateRange
from sbus_services.store.calls import job_calls
from sbus_services.store.calls.job_calls import JobCalls
from sbus_services.store.calls.responses import CallError
from sbus_services.store.context import StoreContext
from tests.support.held_directory import HeldDirectory

FIRST = 100_000

IDS = ChargedUsers(SubordinateIds([SubordinateRange(FIRST, 65_536, 1_000)]))


def caller(uid: int, gid: int) -> Peer:
    return Peer(7, uid, gid, 42, b"!/cred/%d/%d/42" % (gid, uid))


def test_a_slow_directory_does_not_stop_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    is_asked, may_answer = threading.Event(), threading.Event()

    def slow(_name: str, gid: int) -> list[int]:
        is_asked.set()
        assert may_answer.wait(60), "the event loop waits for a look-up of groups"
        return [gid]

    monkeypatch.setattr("os.getgrouplist", slow)
    monkeypatch.setattr(job_calls, "LookUps", partial(LookUps, 60))
    monkeypatch.setattr("sbus.rpc.caller_access._known_groups", OrderedDict())
    asyncio.run(_check_others_meanwhile(is_asked, may_answer))


async def _check_others_meanwhile(is_asked: threading.Event, may_answer: threading.Event) -> None:
    jobs = JobCalls(cast(StoreContext, SimpleNamespace(charged=IDS)))
    queue = QueueSettings("work", "jobs", users=(1001,), groups=(99_998,))
    waiting = asyncio.create_task(jobs.check_worker(caller(0, 99_999), queue))
    try:
        while not is_asked.is_set():
            await asyncio.sleep(0.01)
        await jobs.check_worker(caller(1001, 1001), queue)
        await jobs.check_worker(caller(99_999, 99_998), queue)
        assert not waiting.done()
    finally:
        may_answer.set()
    with pytest.raises(CallError, match="EACCES"):
        await waiting


def test_the_ids_of_a_user_do_not_delay_the_look_ups_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    directory = HeldDirectory(1_001, {}, frozenset({4_711}))
    monkeypatch.setattr(job_calls, "groups_of", directory.groups_of)
    monkeypatch.setattr(job_calls, "LookUps", partial(LookUps, 60))

    async def main() -> None:
        jobs = JobCalls(cast(StoreContext, SimpleNamespace(charged=IDS)))
        queue = QueueSettings("work", "jobs", groups=(4_711,))
        hung = [asyncio.create_task(jobs.check_worker(caller(FIRST + number, 1), queue)) for number in range(100)]
        while not directory.asked:
            await asyncio.sleep(0.01)
        await jobs.check_worker(caller(1_001, 1), queue)
        assert directory.asked == [FIRST, 1_001]
        for each in hung:
            each.cancel()
        await asyncio.gather(*hung, return_exceptions=True)

    try:
        asyncio.run(asyncio.wait_for(main(), 60))
    finally:
        directory.answers.set()


def test_a_look_up_without_end_is_an_error_that_says_try_again(monkeypatch: pytest.MonkeyPatch) -> None:
    directory = HeldDirectory(1_001, {}, frozenset({4_711}))
    monkeypatch.setattr(job_calls, "groups_of", directory.groups_of)
    monkeypatch.setattr(job_calls, "LookUps", partial(LookUps, 0.01))

    async def main() -> None:
        jobs = JobCalls(cast(StoreContext, SimpleNamespace(charged=IDS)))
        with pytest.raises(CallError, match="EAGAIN cannot look up the groups of user 1000 now; try again"):
            await jobs.check_worker(caller(1_000, 1), QueueSettings("work", "jobs", groups=(4_711,)))

    try:
        asyncio.run(asyncio.wait_for(main(), 60))
    finally:
        directory.answers.set()
