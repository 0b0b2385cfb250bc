"""Who may be a worker: one user's look-up of groups does not delay the calls of others."""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from typing import cast

import pytest

from sbusd.client import Peer
from sbusd.config.store import QueueSettings
from sbusd.store.calls.call_errors import CallError
from sbusd.store.calls.job_calls import JobCalls
from sbusd.store.context import StoreContext


def caller(uid: int, gid: int) -> Peer:
    return Peer(7, uid, gid, 42, b"!/cred/%d/%d/42" % (gid, uid))


def test_a_slow_directory_does_not_stop_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    is_asked, may_answer = threading.Event(), threading.Event()

    def slow(_name: str, gid: int) -> list[int]:
        is_asked.set()
        assert may_answer.wait(60), "the event loop waits for a look-up of groups"
        return [gid]

    monkeypatch.setattr("os.getgrouplist", slow)
    monkeypatch.setattr("sbusd.client.rpc.caller_access._known_groups", OrderedDict())
    asyncio.run(_check_others_meanwhile(is_asked, may_answer))


async def _check_others_meanwhile(is_asked: threading.Event, may_answer: threading.Event) -> None:
    jobs = JobCalls(cast(StoreContext, None))
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
