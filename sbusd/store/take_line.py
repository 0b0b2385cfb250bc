"""The calls of ``store/take`` that wait for jobs of one queue: users take turns, and a job goes to the first that waits.

The outcome of a take is a page of jobs. One without jobs that says that there are ``more`` costs its user the turn, and is not the end.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from sbusd.config.users import ChargedUsers
from sbusd.store.calls.call_errors import restarting
from sbusd.store.engine.messages import JobPage, LeasedJob
from sbusd.store.operation_queue import QueuedOperation

MAX_CONCURRENT = 64
"""Takes of one queue in the committer at the same time, so that one commit serves many workers."""


Taken = Callable[[QueuedOperation[Any]], None]
"""Gets the outcome of a take."""


@dataclass(eq=False, slots=True)
class Taker:
    """One call: *begin* submits its take to the committer and reports the outcome; *give_back* gets jobs if the call has ended."""

    user: int
    begin: Callable[[Taken], object]
    give_back: Callable[[Sequence[LeasedJob]], object]
    future: asyncio.Future[Sequence[LeasedJob]]
    waits: bool


class TakeLine:
    """The line of one queue, in which the users that are *charged* take turns."""

    def __init__(self, charged: ChargedUsers) -> None:
        self._charged = charged
        self._users: OrderedDict[int, deque[Taker]] = OrderedDict()
        self._taking = 0
        self._news = 0
        self._concurrent = 1
        self._is_empty = False

    def __len__(self) -> int:
        """Return the number of calls that wait, without those in the committer."""
        return sum(map(len, self._users.values()))

    async def take(
        self,
        uid: int,
        begin: Callable[[Taken], object],
        give_back: Callable[[Sequence[LeasedJob]], object],
        wait_seconds: float,
    ) -> Sequence[LeasedJob]:
        """Return jobs, or an empty sequence if there is none for *wait_seconds*. Raises what the take raises."""
        user = self._charged.of(uid)
        taker = Taker(user, begin, give_back, asyncio.get_running_loop().create_future(), wait_seconds > 0)
        self._users.setdefault(user, deque()).append(taker)
        if not taker.waits:
            self._is_empty = False  # the caller wants to know it for certain
        self._begin_some()
        try:
            if not taker.waits:
                return await taker.future
            async with asyncio.timeout(wait_seconds):
                return await asyncio.shield(taker.future)
        except TimeoutError:
            return taker.future.result() if taker.future.done() and not taker.future.cancelled() else ()
        except asyncio.CancelledError:
            if taker.future.done() and not taker.future.cancelled() and taker.future.exception() is None:
                give_back(taker.future.result())
            raise
        finally:
            self._leave(taker)

    def ready(self, jobs: int = 1) -> None:
        """Serve calls that wait: the queue may have about *jobs* jobs that are ready. More takes begin as long as they find jobs."""
        self._news += 1
        self._concurrent = max(self._concurrent, min(jobs, MAX_CONCURRENT))
        self._is_empty = False
        self._begin_some()

    def close(self) -> None:
        """Fail all calls that wait: the store restarts."""
        for takers in self._users.values():
            for taker in takers:
                if not taker.future.done():
                    taker.future.set_exception(restarting())
        self._users.clear()

    def _leave(self, taker: Taker) -> None:
        """Remove a call that has ended."""
        taker.future.cancel()
        takers = self._users.get(taker.user)
        if takers is not None and taker in takers:
            takers.remove(taker)
            if not takers:
                del self._users[taker.user]

    def _answer_waitless(self) -> None:
        """Answer the calls that do not wait, and are behind others of their user: the queue is empty."""
        for takers in self._users.values():
            for taker in takers:
                if not taker.waits and not taker.future.done():
                    taker.future.set_result(())

    def _begin_some(self) -> None:
        """Begin takes while there may be jobs."""
        while self._users and not self._is_empty and self._taking < self._concurrent:
            user, takers = self._users.popitem(last=False)
            taker = takers.popleft()
            if takers:
                self._users[user] = takers
            if taker.future.done():
                continue
            self._taking += 1
            news = self._news
            try:
                taker.begin(partial(self._taken, taker, news))
            except Exception as error:  # the caller gets it
                self._taking -= 1
                taker.future.set_exception(error)

    def _taken(self, taker: Taker, news: int, performed: QueuedOperation[Any]) -> None:
        """Note the outcome of a take."""
        self._taking -= 1
        if performed.error is not None:
            if not taker.future.done():
                taker.future.set_exception(performed.error)
        else:
            page: JobPage = performed.result
            if page.jobs:
                self._found(taker, page.jobs)
            else:
                self._found_none(taker, news, more=page.more)
        self._begin_some()

    def _found(self, taker: Taker, jobs: Sequence[LeasedJob]) -> None:
        """Answer a call with jobs."""
        if taker.future.done():
            taker.give_back(jobs)
        else:
            self._concurrent = min(2 * self._concurrent, MAX_CONCURRENT)
            taker.future.set_result(jobs)

    def _found_none(self, taker: Taker, news: int, *, more: bool) -> None:
        """Note that a take has found no job: the queue is empty, unless there are *more*, or there was news since."""
        if news == self._news or more:
            self._concurrent = 1
        if news == self._news and not more:
            self._is_empty = True
            self._answer_waitless()
        if taker.future.done():
            return
        if taker.waits or more:
            # Calls of one user keep their order.
            self._users.setdefault(taker.user, deque()).appendleft(taker)
            self._users.move_to_end(taker.user, last=more)
        else:
            taker.future.set_result(())
