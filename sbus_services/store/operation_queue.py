"""The operations that wait for the committer: a queue for each user, which take turns, so that no user delays the others for long.

The committer makes one transaction of several: `sbus_services.store.engine.committer`.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from sbus_programs.config.users import ChargedUsers
from sbus_services.store.calls.responses import CallError, restarting

E = TypeVar("E")
T = TypeVar("T")

MAX_WEIGHT = 512
"""Weight of the operations that the committer has: the group that it commits, and the next one."""

SCAN_WEIGHT = MAX_WEIGHT
"""Weight of an operation that looks at thousands of rows: the committer has one of them at a time, so others soon have their turn."""

MAX_WAITING = 1_024
"""Operations of one user that wait here."""

SERVICE = -1
"""The user of operations that the store does for itself: those for ordinary messages, and the sweep."""


class GroupCommitter(Protocol[E]):
    """The committer, as it is used here."""

    def submit(self, operations: Sequence[QueuedOperation[E]], finished: Callable[[Sequence[QueuedOperation[E]]], None]) -> None:
        """Perform *operations* in one transaction, in the committer's thread, and call *finished* there after the commit."""


@dataclass(slots=True, eq=False)
class QueuedOperation(Generic[E]):
    """An operation that waits for its turn; *done* gets it after the commit, with its result or error."""

    perform: Callable[[E], Any]
    done: Callable[[QueuedOperation[E]], None]
    weight: int = 1
    is_cancelled: bool = False
    result: Any = None
    error: BaseException | None = None


class OperationQueue(Generic[E]):
    """Gives operations to *committer* in turns of the users that are *charged*. Belongs to one event loop."""

    def __init__(self, committer: GroupCommitter[E], charged: ChargedUsers) -> None:
        self._committer = committer
        self._charged = charged
        self._loop = asyncio.get_running_loop()
        self._users: OrderedDict[int, deque[QueuedOperation[E]]] = OrderedDict()
        self._weight = 0
        self._begun: list[QueuedOperation[E]] = []
        """What is handed to the committer at the end of the iteration of the loop, so that it is one transaction."""
        self._handing_over: asyncio.Handle | None = None
        self._finished: deque[Sequence[QueuedOperation[E]]] = deque()
        self._is_notified = False
        self._is_closed = False
        self._idle = asyncio.Event()
        self._idle.set()

    def __len__(self) -> int:
        """Return the number of operations that wait here."""
        return sum(map(len, self._users.values()))

    async def run(
        self, uid: int, operation: Callable[[E], T], weight: int = 1, committed: Callable[[T], object] = lambda _result: None
    ) -> T:
        """Perform *operation* when it is the turn of the user of *uid*, and return its result after the commit.

        *committed* gets the result even if the task is cancelled meanwhile, in the order of the commits. If the task is cancelled, an
        operation that has not begun is dropped. Raises what *operation* raises, and CallError.
        """
        future: asyncio.Future[T] = self._loop.create_future()

        def done(performed: QueuedOperation[E]) -> None:
            if performed.error is None:
                committed(performed.result)
            _resolve(future, performed)

        waiting = self.submit(uid, operation, done, weight)
        try:
            return await future
        except asyncio.CancelledError:
            waiting.is_cancelled = True
            raise

    def submit(
        self, uid: int, operation: Callable[[E], Any], done: Callable[[QueuedOperation[E]], None], weight: int = 1
    ) -> QueuedOperation[E]:
        """Do as :meth:`run`, and call *done* in the event loop, in the order of the commits. Raises CallError if too many wait."""
        if self._is_closed:
            raise restarting()
        user = self._charged.of(uid)
        queue = self._users.setdefault(user, deque())
        if len(queue) >= MAX_WAITING and user != SERVICE:
            raise CallError("EBUSY", f"{MAX_WAITING} operations of user {user} already wait; try again later")
        waiting = QueuedOperation(operation, done, weight)
        queue.append(waiting)
        self._begin_some()
        return waiting

    def submit_now(self, operation: Callable[[E], Any], done: Callable[[QueuedOperation[E]], None]) -> None:
        """Perform *operation* before all that waits here, in one transaction with what is submitted in the same iteration of the loop."""
        self._begin(QueuedOperation(operation, done))

    def close(self) -> None:
        """Accept no further operation. Those that wait are still performed."""
        self._is_closed = True

    async def drained(self) -> None:
        """Return when no operation waits, and the committer has none."""
        while self._users or self._weight:
            self._idle.clear()
            await self._idle.wait()

    def _begin_some(self) -> None:
        while self._users and self._weight < MAX_WEIGHT:
            user, queue = self._users.popitem(last=False)
            waiting = queue.popleft()
            if queue:
                self._users[user] = queue
            if not waiting.is_cancelled:
                self._begin(waiting)
        if not self._users and not self._weight:
            self._idle.set()

    def _begin(self, waiting: QueuedOperation[E]) -> None:
        self._weight += waiting.weight
        self._idle.clear()
        self._begun.append(waiting)
        if self._handing_over is None:
            self._handing_over = self._loop.call_soon(self._hand_over)

    def _hand_over(self) -> None:
        """Give the committer what has begun."""
        self._handing_over = None
        begun, self._begun = self._begun, []
        self._committer.submit(begun, self._committed)

    def _committed(self, operations: Sequence[QueuedOperation[E]]) -> None:
        """Note the end of operations, in the thread of the committer: one notification is enough for several groups."""
        self._finished.append(operations)
        if not self._is_notified:
            self._is_notified = True
            self._loop.call_soon_threadsafe(self._finish)

    def _finish(self) -> None:
        """Report the operations that have ended."""
        self._is_notified = False
        while self._finished:
            for each in self._finished.popleft():
                self._weight -= each.weight
                each.done(each)
        self._begin_some()


def _resolve(future: asyncio.Future[Any], performed: QueuedOperation[Any]) -> None:
    """Give the outcome of an operation to *future*, unless its task was cancelled."""
    if future.done():
        return
    if performed.error is not None:
        future.set_exception(performed.error)
    else:
        future.set_result(performed.result)
