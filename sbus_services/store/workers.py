"""The calls of ``store/take`` that wait for jobs, and the connections that hold leases; when one ends, its jobs are ready at once.

The store subscribes to the end of a connection before it gives it the first job, and then asks whether it is still there. After a crash
of the bus, new connections have the numbers of earlier ones: the socket of a connection tells them apart. The date at which it began
would not, because that changes with the wall clock.

The outcome of a take is a page of jobs. One without jobs that says that there are ``more`` costs its user the turn, and is not the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from sbus import AsyncBus, SbusError
from sbus.errors import Closed, Disconnected
from sbus.items import Message
from sbus.protocol import controls
from sbus.protocol.keys import EVENT_HEAD, connection_address
from sbus_programs.config.users import ChargedUsers
from sbus_programs.wall_clock import Clocks
from sbus_services.store.calls.responses import CallError, restarting
from sbus_services.store.engine.messages import JobPage, LeasedJob
from sbus_services.store.operation_queue import QueuedOperation

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


MAX_WATCHED = 16_384
"""Connections that are watched. A bus has fewer for its users by default."""


class Holder:
    """A connection that can hold leases. ``identity`` tells it from others that had its number; 0: unknown."""

    __slots__ = ("connection", "identity", "is_gone", "queues", "watched")

    def __init__(self, connection: int, identity: int = 0) -> None:
        self.connection = connection
        self.identity = identity
        self.queues: set[str] = set()
        """The queues of which it has got jobs."""
        self.is_gone = False
        """Whether it has ended. Operations in the committer's thread read it: an ended connection gets no job."""
        self.watched: asyncio.Future[None] | None = None
        """Done when the store will be notified of its end; None while the store has no bus."""


class Workers:
    """*gone* is called with each holder whose connection has ended."""

    def __init__(self, gone: Callable[[Holder], None]) -> None:
        self._gone = gone
        self._holders: dict[int, Holder] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._bus: AsyncBus | None = None

    def __len__(self) -> int:
        """Return the number of connections that are watched."""
        return len(self._holders)

    async def admit(self, connection: int) -> Holder:
        """Return the holder for *connection* when it is watched. Raises CallError if it has ended, or cannot be watched."""
        for _ in range(2):  # the first one can be an earlier connection that had the same number
            holder = self._holders.get(connection)
            if holder is None:
                if len(self._holders) >= MAX_WATCHED:
                    raise CallError("EBUSY", f"{MAX_WATCHED} workers are connected; try again later")
                holder = self._begin(connection)
            if holder.watched is None:
                raise CallError("EAGAIN", "the store is not connected to the bus; try again")
            await asyncio.shield(holder.watched)
            if not holder.is_gone:
                return holder
        raise CallError("EAGAIN", "the connection of the worker has ended")

    async def connected(self, bus: AsyncBus, holders: Mapping[int, int]) -> None:
        """Watch by *bus* from now on: *holders*, numbers of connections and the identity of each, and all that were watched before.

        When it returns, the jobs of those that have ended meanwhile are ready again, or soon.
        """
        self._bus = bus
        for connection in {*holders, *self._holders}:
            self._begin(connection, holders.get(connection, 0))
        await asyncio.gather(*[holder.watched for holder in self._holders.values() if holder.watched], return_exceptions=True)

    async def disconnected(self) -> None:
        """Watch no connection: the bus is away. The holders are known until :meth:`connected`, which asks for each."""
        self._bus = None
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self, connection: int, identity: int = 0) -> Holder:
        """Watch *connection*."""
        holder = self._holders.setdefault(connection, Holder(connection, identity))
        if self._bus is None:
            holder.watched = None
        else:
            holder.watched = asyncio.get_running_loop().create_future()
            task = asyncio.ensure_future(self._watch(self._bus, holder, holder.watched))
            self._tasks[connection] = task
            task.add_done_callback(lambda _: self._tasks.pop(connection, None) if self._tasks.get(connection) is task else None)
        return holder

    async def _watch(self, bus: AsyncBus, holder: Holder, watched: asyncio.Future[None]) -> None:
        """Wait for the end of a connection."""
        try:
            async with bus.subscribe(b"%bdisconnect/%d" % (EVENT_HEAD, holder.connection)) as events:
                if await _is_connected(bus, holder):
                    _set(watched)
                    while not isinstance(await events.receive(), Message):
                        if not await _is_connected(bus, holder):  # its event may be among the lost packets
                            break
                self._end(holder)
        except (Disconnected, Closed):
            pass  # connected() begins again
        except (SbusError, OSError, ValueError) as error:
            watched_error = CallError("EAGAIN", f"the store cannot watch the worker: {error}")
            if not watched.done():
                watched.set_exception(watched_error)
                watched.exception()  # perhaps no task waits for it
            self._holders.pop(holder.connection, None)
        finally:
            _set(watched)
            if self._bus is not bus:
                holder.watched = None

    def _end(self, holder: Holder) -> None:
        """Note that a connection has ended."""
        if not holder.is_gone:
            holder.is_gone = True
            self._holders.pop(holder.connection, None)
            self._gone(holder)


async def _is_connected(bus: AsyncBus, holder: Holder) -> bool:
    """Return whether the connection of *holder* exists, and note its identity. Raises SbusError, ValueError."""
    connection = holder.connection
    page = json.loads(await bus.control(controls.CONNECTIONS, b"%d" % (connection - 1)))
    for each in page["connections"]:
        if each["id"] == connection:
            identity = _identity_of(each["inode"])
            if holder.identity not in (0, identity):
                return False  # another one has its number
            holder.identity = identity
            return True
    if not page["hidden"]:
        return False
    # Without the right to see the connections of others: a caller receives its responses.
    with contextlib.suppress(SbusError):
        return bool(await bus.members(connection_address(connection) + b"ret/-"))
    return True


def _identity_of(inode: int) -> int:
    """Return the identity of the connection whose socket has *inode*: the kernel does not use it again until the next boot."""
    return int.from_bytes(hashlib.blake2b(f"{_boot_id()} {inode}".encode(), digest_size=7).digest()) or 1


@lru_cache(1)
def _boot_id() -> str:
    """Return the identity of this boot, or no words if a container hides it."""
    try:
        return Clocks().boot_id()
    except OSError:
        return ""


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
