"""Steps that wait, for both faces: a procedure is a generator that yields them, and a link waits for each in its own way. No I/O.

After each step the procedure goes on; where the wait failed or was cancelled, with that exception, so that it can put in order what it
has begun.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from sbusd.client.deadline import Deadline
from sbusd.client.pending_replies import Call
from sbusd.client.rpc.pending_requests import Outstanding

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Begin:
    """Wait until the connection can send, call ``start``, and wait until each call that it returns is done."""

    start: Callable[[], Sequence[Call]]
    deadline: Deadline


@dataclass(frozen=True, slots=True)
class Settle:
    """Wait until one of ``requests`` is done."""

    requests: Sequence[Outstanding]
    deadline: Deadline


Procedure = Generator[Begin | Settle, None, T]
"""Steps that end in a result."""
