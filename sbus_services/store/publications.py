"""Publishes stored messages under their keys: each stream in the order of its numbers, after the commit.

While the bus takes them, messages are published when they are committed. Otherwise, and after each new connection, they are read from the
file, where each put notes them; then the live messages follow.

Nothing waits here: what the bus has no room for now stays noted in the file, from which it is published later.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, partial

from sbus.errors import Closed, RemoteRefusal, SbusError, TimedOut
from sbus.protocol.printable import printable
from sbus_programs.config.store import QueueSettings, StoreSettings, StreamSettings
from sbus_services.store.bus_connections import ServingBus, passed_on
from sbus_services.store.calls.responses import CallError
from sbus_services.store.engine.engine import Engine
from sbus_services.store.engine.messages import NOWHERE, EngineError, NewMessage, Places, Rest, Stored, Taken
from sbus_services.store.engine.stream import KeyMap
from sbus_services.store.operation_queue import SERVICE, OperationQueue

MIN_BATCH = 4
"""Messages that are published as a batch."""

ASK_SECONDS = 0.05
"""Shortest interval of asking the bus whether it has taken what was sent."""


class StorePublisher:
    """One connection that publishes. *counts* are the store's counters; *report* gets one line for the log."""

    def __init__(self, counts: Counter[str], report: Callable[[str], None]) -> None:
        self._counts = counts
        self._report = report
        self._bus: ServingBus | None = None
        self._waiting: list[Callable[[], object]] = []
        self._task: asyncio.Task[None] | None = None

    @property
    def is_connected(self) -> bool:
        """Whether it has a connection."""
        return self._bus is not None

    def connected(self, bus: ServingBus) -> None:
        """Publish on *bus* from now on."""
        self._bus = bus

    def disconnected(self) -> None:
        """Publish nothing until the next connection. Whether the bus has taken what was sent last is not known."""
        self._bus = None
        self._waiting = []
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def publish_many(self, messages: Sequence[NewMessage]) -> tuple[int, int]:
        """Publish stored messages as those of their senders, until one does not fit, or the connection has ended.

        Return how many need no further attempt, and how many of these can never be published.
        """
        done, never = 0, 0
        together = self._bus.together() if self._bus is not None and len(messages) >= MIN_BATCH else contextlib.nullcontext()
        with contextlib.suppress(SbusError), together:
            for each in messages:
                packet = self._packet(each)
                if packet and (self._bus is None or not self._bus.send(packet)):
                    break
                done += 1
                never += not packet
                self._counts["published"] += bool(packet)
        return done, never

    async def publish_waiting(self, messages: Sequence[Stored]) -> int:
        """Publish stored messages, waiting for room, and return how many can never be published. Raises SbusError, OSError."""
        never = 0
        for each in messages:
            packet = self._packet(each)
            if packet:
                await self._send(packet)
                self._counts["published"] += 1
            never += not packet
        return never

    def when_taken(self, function: Callable[[], object]) -> None:
        """Call *function* when the bus has taken all that was sent before; never, if the connection ends before."""
        if self._bus is None:
            return
        self._waiting.append(function)
        if self._task is None:
            self._task = asyncio.ensure_future(self._ask(self._bus))

    async def taken(self) -> None:
        """Return when the bus has taken what was sent, or the connection has ended."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _send(self, packet: bytes) -> None:
        """Send *packet* when there is room. Raises SbusError, OSError."""
        while self._bus is not None:
            try:
                await self._bus.send_later(packet)
            except TimedOut as error:
                self._report(f"stored messages wait for the bus: {error}")
            else:
                return
        raise Closed("the bus")

    async def _ask(self, bus: ServingBus) -> None:
        """Ask whether the bus has taken what was sent, while functions wait for that."""
        try:
            while self._waiting:
                functions, self._waiting = self._waiting, []
                try:
                    # The response to a ping follows the handling of all packets before it.
                    with contextlib.suppress(RemoteRefusal):
                        await bus.ping()
                except TimedOut:
                    self._waiting = functions + self._waiting
                    continue
                for each in functions:
                    each()
                await asyncio.sleep(ASK_SECONDS)
        except (SbusError, OSError) as error:
            self._report(f"cannot publish stored messages: {error}")
        finally:
            if self._bus is bus:
                self._task = None

    def _packet(self, message: NewMessage | Stored) -> bytes:
        """Return the packet of *message*; empty if it has none, which is reported."""
        packet = passed_on(message.sender, message.key, message.payload)
        if packet and (self._bus is None or len(packet) <= self._bus.packet_limit):
            return packet
        self._report(f"cannot publish a stored message: with its sender, a payload of {len(message.payload)} bytes is too long")
        return b""


_CACHED_KEYS = 65_536


class Routes:
    """The streams and queues of *settings*. No key belongs to two streams."""

    def __init__(self, settings: StoreSettings) -> None:
        self.settings = settings
        self._streams = {each.name: each for each in settings.streams}
        self._queues = {each.name: each for each in settings.queues}
        self._queue_of = {each.stream: each for each in settings.queues}
        self._keys = KeyMap(settings.streams)
        self.stream_of = lru_cache(_CACHED_KEYS)(self._stream_of)
        """Returns the stream that stores a key, or None."""

    def stream(self, name: str) -> StreamSettings:
        """Return a stream. Raises CallError (ENOENT)."""
        if name not in self._streams:
            raise CallError("ENOENT", f"unknown stream {printable(name, 64)!r}")
        return self._streams[name]

    def queue(self, name: str) -> QueueSettings:
        """Return a queue. Raises CallError (ENOENT)."""
        if name not in self._queues:
            raise CallError("ENOENT", f"unknown queue {printable(name, 64)!r}")
        return self._queues[name]

    def queue_of(self, stream: str) -> QueueSettings | None:
        """Return the queue whose jobs are the messages of *stream*, or None."""
        return self._queue_of.get(stream)

    def with_last_values(self, pattern: bytes) -> list[StreamSettings]:
        """Return the streams with last values whose keys *pattern* can match."""
        return [each for name in self._keys.streams_of(pattern) if (each := self._streams[name]).last]

    def _stream_of(self, key: bytes) -> StreamSettings | None:
        name = self._keys.stream_of(key)
        return None if name is None else self._streams[name]


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
