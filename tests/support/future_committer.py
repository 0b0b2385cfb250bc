"""A committer whose operations are futures, for tests that wait for each of them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from sbus_services.store.engine.committer import Committer
from sbus_services.store.engine.engine import Engine

T = TypeVar("T")


@dataclass(eq=False)
class FutureOperation(Generic[T]):
    """An operation with the future of its result."""

    function: Callable[[Engine], T]
    future: Future[T] = field(default_factory=Future)
    result: Any = None
    error: BaseException | None = None

    @property
    def perform(self) -> Callable[[Engine], T]:
        return self.function

    def finish(self) -> None:
        """Give the outcome to the future."""
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)


class FutureCommitter(Committer):
    """A committer with one more method."""

    def begin(self, function: Callable[[Engine], T]) -> Future[T]:
        """Submit *function*; its future is done when its transaction is on the disk."""
        operation = FutureOperation(function)
        self.submit([operation], lambda operations: operations[0].finish())
        return operation.future
