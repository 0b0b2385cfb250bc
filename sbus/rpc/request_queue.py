"""The requests of a service that wait to be run. No I/O. Spec: sbus-rpc(7) §7."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from sbus.rpc.requests import Task

WAITING_PER_USER = 256
"""Maximum number of queued requests of a user: more than a caller sends concurrently by default, and for a thousand users at most some
hundred megabytes, because few requests are large."""


class RequestQueue:
    """Queued requests: a queue for each user, and for each remote host, which take turns."""

    def __init__(self) -> None:
        self._queues: OrderedDict[tuple[int, int], deque[Task]] = OrderedDict()
        self._size = 0

    def __len__(self) -> int:
        """Return the number of queued requests."""
        return self._size

    def put(self, task: Task) -> bool:
        """Queue *task*; return False if too many of the same party are queued."""
        queue = self._queues.setdefault(task.request.party, deque())
        if len(queue) >= WAITING_PER_USER:
            return False
        queue.append(task)
        self._size += 1
        return True

    def take(self) -> Task | None:
        """Return the first request of the party that is next; None if the queue is empty."""
        if not self._queues:
            return None
        party, queue = self._queues.popitem(last=False)
        task = queue.popleft()
        self._size -= 1
        if queue:
            self._queues[party] = queue
        return task


class PendingTasks(Protocol):
    """The requests of users whose groups are being looked up."""

    def __contains__(self, uid: int) -> bool:
        """Return whether requests of the user *uid* wait: those that arrive later do too, so that they keep their order."""

    def put(self, task: Task) -> bool:
        """Let *task* wait, until :meth:`Dispatcher.decide`; return False if too many of its party wait."""

    def take_all(self) -> list[Task]:
        """Return those that wait, which will not be run."""
