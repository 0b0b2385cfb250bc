"""The steps of an operation. An operation is a generator that yields steps; a link performs each step, in its own way. No I/O.

After each step the link resumes the operation. If a wait fails or is cancelled, the link raises that exception inside the operation, so
that the operation can undo what it has begun.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from sbusd.client.errors import TimedOut
from sbusd.client.pending_replies import Call
from sbusd.client.rpc.pending_requests import PendingRequest

C = TypeVar("C", bound=Call)
T = TypeVar("T")


class Deadline:
    """The time when *what* must be done: *seconds* from now; None means never."""

    __slots__ = ("_at", "_seconds", "_what")

    def __init__(self, what: str, seconds: float | None) -> None:
        self._what = what
        self._seconds = seconds
        self._at = None if seconds is None else time.monotonic() + seconds

    def remaining(self) -> float | None:
        """Return the remaining seconds, 0 or more, or None if there is no limit."""
        return None if self._at is None else max(0.0, self._at - time.monotonic())

    def check(self) -> None:
        """Raise TimedOut if the deadline has passed."""
        if self._at is not None and time.monotonic() >= self._at:
            raise self.expired()

    def expired(self) -> TimedOut:
        """Return the error for this deadline."""
        return TimedOut(self._what, self._seconds or 0.0)


class Begin(Generic[C]):
    """Wait until the connection can send, call *start*, and wait until each of the ``calls`` that it returned is done."""

    __slots__ = ("_start", "calls", "deadline")

    def __init__(self, start: Callable[[], Sequence[C]], deadline: Deadline) -> None:
        self.calls: Sequence[C] = ()
        """Empty until *start* has been called."""
        self.deadline = deadline
        self._start = start

    def begin(self) -> Sequence[C]:
        """Put the calls into the session, and return them."""
        self.calls = self._start()
        return self.calls

    def result(self) -> bytes:
        """Return the response of the last call. Raises the error of the first call that failed."""
        answer = b""
        for call in self.calls:
            answer = call.result()
        return answer


@dataclass(frozen=True, slots=True)
class Send:
    """Send ``packet`` after all packets before it, for as long as a publication may take."""

    packet: bytes


@dataclass(frozen=True, slots=True)
class Settle:
    """Wait until one of ``requests`` is done."""

    requests: Sequence[PendingRequest]
    deadline: Deadline


Step = Begin[Any] | Send | Settle

Operation = Generator[Step, None, T]
"""Steps that end in a result."""
