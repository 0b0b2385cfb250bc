"""Publishes decided alerts, each once, through the outbox. Spec: sbus-live(8), After a kill."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import pyarrow as pa

from sbusd.client.errors import RemoteRefusal
from sbusd.pipeline.errors import SourceError
from sbusd.pipeline.live.live_state import Decided
from sbusd.pipeline.source.outbox import MESSAGES, Outbox, Publish
from sbusd.protocol.errors import ErrorCode, SbusError

_PERMANENT = frozenset({ErrorCode.EPERM, ErrorCode.EACCES, ErrorCode.EMSGSIZE, ErrorCode.EINVAL})
"""Refusals that the same message would get again. Others, such as a used-up quota, pass."""

Connect = Callable[[], AbstractContextManager[Publish]]
"""Returns a new connection to the bus."""


@dataclass(slots=True)
class Published:
    """The result of an attempt."""

    last: int = 0
    """The number of the last alert that was published or refused; 0 if there is none."""
    repeated: list[str] = field(default_factory=list)
    """The keys of the alerts that the bus may have received twice."""
    refused: list[str] = field(default_factory=list)
    """Why the bus refused alerts, which are dropped."""
    problem: str = ""
    """Why the alerts after the last one could not be published."""


def publish_decided(
    outbox: Outbox, series: str, decided: Sequence[Decided], connect: Connect, is_harmless: Callable[[], bool] = lambda: False
) -> Published:
    """Publish *decided* in order. An alert that the bus refuses permanently is dropped, so that it does not block the others.

    *is_harmless* returns whether the last message, if it was a repeated one, was recognized by its id.

    Raises:
        SourceError: the outbox is damaged or in use.
    """
    result, waiting = Published(), deque(decided)
    try:
        while waiting:
            # After a refusal the bus may have closed the connection.
            with connect() as publish:
                _publish_until_refusal(outbox, series, waiting, publish, result, is_harmless=is_harmless)
    except SourceError:
        raise
    except (SbusError, OSError) as error:
        result.problem = str(error)
    return result


def _publish_until_refusal(
    outbox: Outbox, series: str, waiting: deque[Decided], publish: Publish, result: Published, *, is_harmless: Callable[[], bool]
) -> None:
    """Publish from *waiting* until it is empty, or until an alert was refused."""
    while waiting:
        each = waiting[0]
        message = pa.RecordBatch.from_pylist([{"key": each.key.encode(), "payload": each.payload.encode()}], schema=MESSAGES)
        is_refused = False
        try:
            if outbox.deliver(series, each.number, [message], publish).repeated and not is_harmless():
                result.repeated.append(each.key)
        except RemoteRefusal as error:
            if error.code not in _PERMANENT:
                raise
            outbox.discard(series, each.number)
            result.refused.append(str(error))
            is_refused = True
        result.last = each.number
        waiting.popleft()
        if is_refused:
            return
