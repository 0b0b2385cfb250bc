"""Users take turns at the committer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from sbus_programs.config.users import ChargedUsers, SubordinateIds, SubordinateRange
from sbus_services.store.calls.responses import CallError
from sbus_services.store.operation_queue import MAX_WAITING, MAX_WEIGHT, OperationQueue, QueuedOperation

Operations = Sequence[QueuedOperation[list[str]]]


class SteppedCommitter:
    """Performs operations only when the test says so."""

    def __init__(self) -> None:
        self.groups: list[tuple[Operations, Callable[[Operations], None]]] = []
        self.log: list[str] = []

    def submit(self, operations: Operations, finished: Callable[[Operations], None]) -> None:
        self.groups.append((operations, finished))

    def begun(self) -> int:
        """Return the number of operations that have begun."""
        return sum(len(operations) for operations, _ in self.groups)

    def commit(self) -> None:
        """Perform the operations that have begun."""
        groups, self.groups = self.groups, []
        for operations, finished in groups:
            for each in operations:
                try:
                    each.result = each.perform(self.log)
                except CallError as error:
                    each.error = error
            finished(operations)


CHARGED = ChargedUsers(SubordinateIds([SubordinateRange(100_000, 65_536, 1)]))
"""The ids from 100000 on are those of user 1."""


async def _turn() -> None:
    """Let the loop run until the committer has what was submitted."""
    for _ in range(3):
        await asyncio.sleep(0)


def _submit_two(queue: OperationQueue[list[str]]) -> None:
    for _ in range(2):
        queue.submit(1, lambda _: None, lambda _: None)


def test_a_user_with_many_operations_does_not_delay_another() -> None:
    async def main() -> None:
        committer = SteppedCommitter()
        queue: OperationQueue[list[str]] = OperationQueue(committer, CHARGED)
        for number in range(1_000):
            uid = 1 if number % 2 else 100_000 + number
            queue.submit(uid, lambda log, number=number: log.append(f"a{number}"), lambda _: None)  # type: ignore[misc]
        other = asyncio.ensure_future(queue.run(2, lambda log: log.append("b")))
        await _turn()
        assert committer.begun() == MAX_WEIGHT
        committer.commit()
        await _turn()
        committer.commit()
        await other
        assert committer.log.index("b") <= MAX_WEIGHT + 1
        committer.commit()
        queue.close()
        await queue.drained()
        assert len(committer.log) == 1_001

    asyncio.run(main())


def test_errors_limits_and_cancellation() -> None:
    async def main() -> None:
        committer = SteppedCommitter()
        queue: OperationQueue[list[str]] = OperationQueue(committer, CHARGED)

        def fail(_log: list[str]) -> None:
            raise CallError("ENOENT", "nothing")

        failing = asyncio.ensure_future(queue.run(1, fail))
        for number in range(MAX_WEIGHT + MAX_WAITING - 1):
            queue.submit(100_000 + number, lambda log: log.append("x"), lambda _: None)
        await _turn()
        with pytest.raises(CallError, match="EBUSY"):
            _submit_two(queue)
        dropped = asyncio.ensure_future(queue.run(3, lambda log: log.append("dropped")))
        await _turn()
        dropped.cancel()
        await _turn()
        while committer.groups:
            committer.commit()
            await _turn()
        with pytest.raises(CallError, match="ENOENT nothing"):
            await failing
        assert "dropped" not in committer.log
        queue.close()
        with pytest.raises(CallError, match="restarting, try again"):
            await queue.run(1, lambda _: None)

    asyncio.run(main())


def test_what_is_submitted_in_one_iteration_is_one_transaction() -> None:
    """The release of a dead worker's jobs and the take of another worker: one fsync."""

    async def main() -> None:
        committer = SteppedCommitter()
        queue: OperationQueue[list[str]] = OperationQueue(committer, CHARGED)
        queue.submit(1, lambda log: log.append("put"), lambda _: None)
        await _turn()
        queue.submit_now(lambda log: log.append("release"), lambda _: None)
        queue.submit(2, lambda log: log.append("take"), lambda _: None)
        await _turn()
        assert [len(operations) for operations, _ in committer.groups] == [1, 2]
        committer.commit()
        assert committer.log == ["put", "release", "take"]
        await queue.drained()

    asyncio.run(main())
