"""Publishes what calls have put: each stream in the order of its numbers, after the commit.

While the bus takes them, messages are published when they are committed. Otherwise, and after each new connection, they are read from the
file, where each put notes them; then the live messages follow.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from sbusd.client.errors import SbusError
from sbusd.store.calls.call_errors import CallError
from sbusd.store.engine.engine import Engine
from sbusd.store.engine.messages import NOWHERE, EngineError, NewMessage, Places, Rest, Taken
from sbusd.store.operation_queue import SERVICE, OperationQueue
from sbusd.store.publisher import StorePublisher
from sbusd.store.routes import Routes

RETRY_SECONDS = 1.0
"""Interval of reading again after an error of the file."""


class Published:
    """What the bus has taken, to be noted in the file with the next commits."""

    def __init__(self) -> None:
        self._streams: dict[str, int] = {}
        self._noted: dict[str, int] = {}
        self._places = self._noted_places = NOWHERE
        self._never = 0

    def taken(self, stream: str, seq: int, never: int = 0) -> None:
        """Note that the bus has the messages of *stream* up to *seq*, but *never* that cannot be published."""
        self._streams[stream] = max(seq, self._streams.get(stream, 0))
        self._never += never

    def announced(self, places: Places, never: int = 0) -> None:
        """Note that the bus has what was noted up to *places*, but *never* that cannot be published."""
        self._places = Places(max(places.ends, self._places.ends), max(places.letters, self._places.letters))
        self._never += never

    def of_streams(self, streams: Iterable[str]) -> Taken:
        """Return what a put to *streams* must note of these."""
        if self._never:
            return Taken()  # the sweep notes all of it, so that nothing is counted twice
        return Taken({name: self._streams[name] for name in streams if self._streams.get(name) != self._noted.get(name)})

    def new(self) -> Taken:
        """Return all that must be noted."""
        streams = {name: seq for name, seq in self._streams.items() if seq != self._noted.get(name)}
        return Taken(streams, self._places if self._places != self._noted_places else NOWHERE, self._never)

    def noted(self, taken: Taken) -> None:
        """Note that *taken* is in the file."""
        self._noted.update(taken.streams)
        self._never -= taken.never
        if taken.places != NOWHERE:
            self._noted_places = taken.places


class Publications:
    """Publishes messages by *publisher*; *routes* returns the present settings, *report* gets one line for the log."""

    def __init__(
        self,
        publisher: StorePublisher,
        operations: OperationQueue[Engine],
        published: Published,
        counts: Counter[str],
        *,
        routes: Callable[[], Routes],
        report: Callable[[str], None],
    ) -> None:
        self._publisher = publisher
        self._operations = operations
        self._published = published
        self._counts = counts
        self._routes = routes
        self._report = report
        self._sent: dict[str, int] = {}
        """Of each stream, the number up to which this connection has sent the messages."""
        self._task: asyncio.Task[None] | None = None
        self.is_live = False
        """Whether all that was committed is sent."""

    def connected(self) -> None:
        """Publish what earlier connections have perhaps not published, and then all that is committed."""
        self._begin_rest()

    async def disconnected(self) -> None:
        """Publish nothing until the next connection."""
        self.is_live = False
        self._sent.clear()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    def committed(self, stream: str, messages: Sequence[tuple[int, NewMessage]]) -> None:
        """Publish *messages*, with their numbers, which were noted and committed now. Called in the order of the commits."""
        if not self.is_live or not messages:
            return
        done, never = self._publisher.publish_many([message for _, message in messages])
        if done:
            self._note(stream, messages[done - 1][0], never)
        if done < len(messages):
            self._begin_rest()

    def _note(self, stream: str, seq: int, never: int) -> None:
        """Note that messages of *stream* up to *seq* were sent."""
        self._sent[stream] = seq
        self._publisher.when_taken(partial(self._published.taken, stream, seq, never))

    def _begin_rest(self) -> None:
        """Publish from the file."""
        self.is_live = False
        if self._publisher.is_connected and self._task is None:
            self._task = asyncio.ensure_future(self._publish_rest())

    async def _publish_rest(self) -> None:
        """Publish from the file until all is published that was committed, or the connection ends."""
        try:
            while not self.is_live:
                try:
                    rest = await self._operations.run(SERVICE, partial(_next, dict(self._sent)), committed=self._found)
                except EngineError as error:
                    self._report(f"cannot read what is to be published: {error}")
                    await asyncio.sleep(RETRY_SECONDS)
                    continue
                if rest is not None:
                    await self._publish(rest)
        except (SbusError, OSError) as error:
            self._report(f"cannot publish stored messages: {error}")
        except CallError:
            pass  # the store stops; the next start publishes the others
        finally:
            self._task = None

    def _found(self, rest: Rest | None) -> None:
        """Note that nothing is left: what is committed after that is published when it is."""
        self.is_live = rest is None and self._publisher.is_connected

    async def _publish(self, rest: Rest) -> None:
        """Publish messages from the file. Raises SbusError, OSError."""
        settings, never = self._routes().settings.stream(rest.stream), 0
        if settings is not None and settings.publish:
            never = rest.gone + await self._publisher.publish_waiting(rest.messages)
            self._counts["published_late"] += len(rest.messages)
        self._note(rest.stream, rest.last, never)


def _next(sent: Mapping[str, int], engine: Engine) -> Rest | None:
    """Return what is to be published after *sent*."""
    return engine.next_unpublished(sent)
