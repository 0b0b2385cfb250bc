"""Group commit: many operations share one transaction, so one fsync(2) acknowledges all of them."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from sbus_services.store.engine.engine import Engine
from sbus_services.store.engine.messages import EngineError

MAX_OPERATIONS = 256
"""Maximum number of operations of one transaction."""

MAX_SECONDS = 0.005
"""Seconds after which a transaction takes no further operation: the first one waits for the last."""


class Operation(Protocol):
    """What the committer runs: *perform* in its thread; then it sets *result*, or *error*."""

    result: Any
    error: BaseException | None

    @property
    def perform(self) -> Callable[[Engine], Any]:
        """The function to call."""


Op = TypeVar("Op", bound=Operation)


class Committer:
    """A thread that runs operations of an engine. Until it is closed, only this thread uses the engine."""

    def __init__(self, engine: Engine) -> None:
        """Start the thread."""
        self._engine = engine
        self._tasks: queue.SimpleQueue[tuple[Sequence[Operation], Callable[[Any], None]] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="committer", daemon=True)
        self._thread.start()

    def submit(self, operations: Sequence[Op], finished: Callable[[Sequence[Op]], None]) -> None:
        """Run *operations* in one transaction, in their order, and call *finished* in the thread when the transaction is on the disk.

        An error of an operation undoes only that, and is its error. If the commit fails because the disk is full, each operation of the
        transaction is run again on its own; so one can be performed twice, and only the last time counts.
        """
        with self._lock:
            if not self._is_closed:
                self._tasks.put((operations, finished))
                return
        for each in operations:
            each.error = EngineError("EBUSY", "the store is closed; try again")
        finished(operations)

    def close(self) -> None:
        """Finish what was submitted, and end the thread. The engine stays open."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._tasks.put(None)
        self._thread.join()

    def _run(self) -> None:
        """Commit groups of operations until the committer is closed."""
        while (first := self._tasks.get()) is not None:
            group, is_last = [first], False
            count = len(first[0])
            error = self._begin(first[0])
            end = time.monotonic() + MAX_SECONDS
            while error is None and count < MAX_OPERATIONS and time.monotonic() < end:
                try:
                    task = self._tasks.get_nowait()
                except queue.Empty:
                    break
                if task is None:
                    is_last = True
                    break
                group.append(task)
                count += len(task[0])
                error = self._perform(task[0])
            if error is None:
                error = self._commit()
            self._finish(group, error)
            if is_last:
                return

    def _begin(self, operations: Sequence[Operation]) -> BaseException | None:
        """Begin a transaction with *operations*, and return the error if that has failed."""
        try:
            self._engine.begin()
        except EngineError as error:
            return error
        return self._perform(operations)

    def _perform(self, operations: Sequence[Operation]) -> BaseException | None:
        """Run *operations*, and return the error of the one that has ended the transaction, if one did."""
        for each in operations:
            _perform(each, self._engine)
            if not self._engine.in_transaction:
                return each.error
        return None

    def _commit(self) -> BaseException | None:
        """Commit, and return the error if that fails."""
        try:
            self._engine.commit()
        except EngineError as error:
            return error
        return None

    def _finish(self, group: Sequence[tuple[Sequence[Operation], Callable[[Any], None]]], error: BaseException | None) -> None:
        """Report the operations of a transaction, which has failed with *error* if that is not None."""
        is_full = isinstance(error, EngineError) and error.code == "ENOSPC"
        for operations, finished in group:
            for each in operations:
                if is_full:
                    # Reading needs no space, and must go on.
                    _perform(each, self._engine)
                elif error is not None:
                    each.error = error
            finished(operations)


def _perform(each: Operation, engine: Engine) -> None:
    """Run an operation, and keep its result or error."""
    each.result = each.error = None
    try:
        with engine.database.operation():
            each.result = each.perform(engine)
    except BaseException as error:
        each.error = error
