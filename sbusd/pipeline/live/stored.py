"""Publishes alerts through sbus-store(8), which stores a message with a known id only once. Spec: sbus-live(8), After a kill.

Without the store, or without a stream for the keys, alerts are published as ordinary messages: at least once, with the same ``id``.
"""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sbusd.client.store.errors import StoreError, StoreNotRunning
from sbusd.client.sync.bus import Bus

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
