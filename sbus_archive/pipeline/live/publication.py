"""Publishes decided alerts, each once, through the outbox and sbus-store(8). Spec: sbus-live(8), After a kill.

Without the store, or without a stream for the keys, alerts are published as ordinary messages: at least once, with the same ``id``.
"""

from __future__ import annotations

import datetime
import json
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

import pyarrow as pa

from sbus.errors import RemoteRefusal
from sbus.protocol.errors import ErrorCode, SbusError
from sbus.store.errors import StoreError, StoreNotRunning
from sbus.sync.bus import Bus
from sbus_archive.pipeline.errors import SourceError
from sbus_archive.pipeline.live.live_state import Decided
from sbus_archive.pipeline.source.outbox import MESSAGES, Outbox, Publish

ID_SECONDS = 3600
"""How long the store knows the id of a message. Spec: sbus-store(8), store/put."""

WAIT_SECONDS = 30.0
"""How long a store that has stored alerts is waited for when it is not running: it restarts, or connects to a restarted bus."""


@dataclass(slots=True)
class AlertPublisher:
    """Publishes alerts on the bus at ``address``, with new connections from :meth:`connect`."""

    address: str | None
    had_store: bool = False
    """Whether the store has stored alerts before. If it is not running, it is then waited for."""
    stored: int = 0
    not_stored: int = 0
    """Alerts that the store did not confirm, so that they were published as ordinary messages."""
    problem: str = ""
    """Why the last alert was not stored."""
    is_repeat_harmless: bool = False
    """Whether the store would have recognized the last message, had it been published before."""
    _missing_since: float | None = None

    @contextmanager
    def connect(self) -> Iterator[AlertConnection]:
        """Give a connection. Raises SbusError: no bus accepts the connection."""
        with Bus.connect(self.address) as bus:
            bus.tell("echo/off")
            yield AlertConnection(self, bus)

    def must_wait(self, now: float) -> bool:
        """Return whether to try again later because the store is not running; *now* is the monotonic time in seconds."""
        if self._missing_since is None:
            self._missing_since = now
        return self.had_store and now - self._missing_since < WAIT_SECONDS

    def confirmed(self) -> None:
        """Count a message that the store has confirmed."""
        self.stored += 1
        self.had_store, self._missing_since, self.problem = True, None, ""

    def unconfirmed(self, problem: str) -> None:
        """Count a message that was published, but is not stored."""
        self.not_stored += 1
        self.problem = problem


@dataclass(slots=True)
class AlertConnection:
    """One connection. A call publishes messages with the ids in their payloads, and returns when the store or the bus has them."""

    publisher: AlertPublisher
    bus: Bus

    def __call__(self, messages: list[tuple[bytes, bytes]]) -> None:
        """Publish *messages*. Raises RemoteRefusal: the bus refused one; StoreNotRunning: try again; SbusError: it is not known."""
        for key, payload in messages:
            self._publish(key, payload)

    def _publish(self, key: bytes, payload: bytes) -> None:
        """Publish one message."""
        identifier, ended = _identity(payload)
        self.publisher.is_repeat_harmless = False
        try:
            put = self.bus.store.put(key, payload, id=identifier)
        except StoreNotRunning as error:
            if self.publisher.must_wait(time.monotonic()):
                raise
            problem = str(error)
        except StoreError as error:
            # The store did not store it, for example because no stream has the key.
            problem = str(error)
        else:
            self.publisher.is_repeat_harmless = put.is_duplicate or time.time() < ended + ID_SECONDS
            self.publisher.confirmed()
            return
        self.bus.publish(key, payload)
        self.bus.ping()
        self.publisher.unconfirmed(problem)


def _identity(payload: bytes) -> tuple[str, float]:
    """Return the id of an alert, and the time before which it was not published, in seconds since 1970."""
    value = json.loads(payload)
    moment = datetime.datetime.strptime(value["minute"], "%Y-%m-%dT%H:%MZ").replace(tzinfo=datetime.UTC)
    return value["id"], moment.timestamp() + 60


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
