"""Streams of a service: responses in parts, as many as the caller accepts. No I/O. Spec: sbus-rpc(7) §7, "Streams".

A handler that is a generator makes a part when the caller has granted it, so nothing is queued here. Attacks that this prevents:

1. *Keep handlers busy without reading.* A stream that waits for its caller takes none of the places of handlers that run.
2. *Open streams without end.* Each user and each remote host has a limited number of streams.
3. *Starve others.* The parties take turns, however many streams each has, as with requests.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import AsyncGenerator, Callable, Generator
from types import AsyncGeneratorType, GeneratorType
from typing import TYPE_CHECKING, TypeAlias, TypeGuard

from sbus.errors import ServiceError

if TYPE_CHECKING:
    from sbus.rpc.requests import Result, Task

STREAMS_PER_USER = 64
"""Maximum number of open streams of a user or of a remote host: as many as an ``AsyncBus`` runs handlers."""

MAX_WINDOW = 1_024
"""Maximum number of parts that a caller may grant ahead. A caller that does not read loses parts in the bus, and its stream fails."""

Parts: TypeAlias = "Generator[Result, None, None] | AsyncGenerator[Result, None]"
"""What a handler returns that is a generator function."""


class ServiceStream:
    """One stream: the parts that were sent, and those that the caller has granted."""

    __slots__ = ("awaits_caller", "fault", "granted", "on_wake", "parts", "sent", "task")

    def __init__(self, task: Task, parts: Parts) -> None:
        self.task = task
        self.parts = parts
        self.sent = 0
        """The number of the last part."""
        self.granted = min(task.window, MAX_WINDOW)
        """The number of the last part that the caller accepts."""
        self.fault = ""
        """Why it cannot go on; empty if it can."""
        self.awaits_caller = False
        """Whether it waits for its caller."""
        self.on_wake: Callable[[], object] | None = None
        """Called when it need not wait any more."""

    def may_send(self) -> bool:
        """Return whether the caller accepts another part. Raises ServiceError if the stream cannot go on."""
        if self.fault:
            raise ServiceError(self.fault)
        return self.sent < self.granted

    def part(self, result: Result) -> bytes:
        """Return the packet of the next part. Raises TypeError if its type is wrong, ServiceError if the caller wants no response."""
        packet = self.task.answer(result, self.sent + 1)
        if not packet:
            raise ServiceError("the part is too long for a packet")
        self.sent += 1
        return packet

    def grant(self, window: int) -> None:
        """Note that the caller accepts the parts up to number *window*."""
        self.granted = max(self.granted, min(window, self.sent + MAX_WINDOW))
        if self.sent < self.granted:
            self.wake()

    def wake(self) -> None:
        """Let it go on, if it waits for its caller."""
        if self.awaits_caller and self.on_wake is not None:
            self.awaits_caller = False
            self.on_wake()


class ServiceStreams:
    """The open streams of a service, and those of them that can make a part."""

    def __init__(self) -> None:
        self._streams: dict[tuple[int, str], ServiceStream] = {}
        self._parties: Counter[tuple[int, int]] = Counter()
        self._ready: OrderedDict[tuple[int, int], deque[ServiceStream]] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of open streams."""
        return len(self._streams)

    @property
    def is_ready(self) -> bool:
        """Whether :meth:`next` has a stream."""
        return bool(self._ready)

    def open(self, task: Task, parts: Parts) -> ServiceStream:
        """Return the stream of *task*. Duty: :meth:`close` it.

        Raises:
            ServiceError: the caller does not accept parts, or its user has too many streams.
        """
        if not task.window:
            advice = "remote hosts cannot receive streams" if task.request.source else "call it with stream()"
            raise ServiceError(f"{task.command} streams its response: {advice}")
        if self._parties[task.party] >= STREAMS_PER_USER:
            raise ServiceError(f"busy: {STREAMS_PER_USER} streams of {'twin' if task.party[1] else 'user'} {max(task.party)} are open")
        stream = self._streams[task.place] = ServiceStream(task, parts)
        self._parties[task.party] += 1
        return stream

    def close(self, stream: ServiceStream) -> None:
        """Forget *stream*."""
        del self._streams[stream.task.place]
        self._parties[stream.task.party] -= 1
        self._parties += Counter()
        queue = self._ready.get(stream.task.party)
        if queue is not None and stream in queue:
            queue.remove(stream)
            if not queue:
                del self._ready[stream.task.party]

    def grant(self, place: tuple[int, str], command: str, window: int) -> bool:
        """Note that the caller at *place* accepts the parts up to number *window*; return False if it has no stream of *command*."""
        stream = self._streams.get(place)
        if stream is None or stream.task.command != command:
            return False
        stream.grant(window)
        return True

    def lost(self) -> None:
        """End all streams: the bus has discarded messages to this service, and a caller would wait if they were its grants."""
        for stream in tuple(self._streams.values()):
            stream.fault = "the bus discarded messages to the service"
            stream.wake()

    # Turns, for a server that runs one handler at a time

    def put(self, stream: ServiceStream) -> None:
        """Queue *stream* for its next turn, if it can make a part, or has to end."""
        if stream.sent < stream.granted or stream.fault or stream.task.cancelled.is_known:
            self._ready.setdefault(stream.task.party, deque()).append(stream)
        else:
            stream.awaits_caller = True

    def next(self) -> ServiceStream | None:
        """Return the first stream of the party that is next, None if all wait for their callers."""
        if not self._ready:
            return None
        party, queue = self._ready.popitem(last=False)
        stream = queue.popleft()
        if queue:
            self._ready[party] = queue
        return stream

    def all(self) -> tuple[ServiceStream, ...]:
        """Return the open streams."""
        return tuple(self._streams.values())


def is_stream(result: object) -> TypeGuard[Parts]:
    """Return whether the result of a handler is a stream."""
    return isinstance(result, GeneratorType | AsyncGeneratorType)
