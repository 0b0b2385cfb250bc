"""A call whose response arrives in parts. No I/O. Spec: sbus-rpc(7) §3, "A stream".

The first request grants one part, because each service of the command sends one. The caller then continues with the service whose part
arrives first, and cancels the request at the others. It grants further parts while the program takes them, so at most *window* of them are
on the way or in memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

from sbus.arguments import check_count
from sbus.errors import AnswerLost, RemoteError, TimedOut
from sbus.operations import Operation, Send, Settle
from sbus.protocol.credentials import Peer
from sbus.protocol.envelope import Envelope
from sbus.protocol.errors import SbusError
from sbus.protocol.packets import publish_packet
from sbus.rpc.calls import Answer, Caller, Invocation, check_member
from sbus.rpc.cancellation import PAST, cancel_packets
from sbus.rpc.pending_requests import PendingRequest
from sbus.rpc.streaming import MAX_WINDOW

STREAM_WINDOW = 16
"""Default number of parts on the way: of the largest parts, not quite what the bus queues for a client by default."""


class Arrival:
    """What a link waits for: a part, or the end."""

    __slots__ = ("_stream", "on_done")

    def __init__(self, stream: StreamRequest) -> None:
        self._stream = stream
        self.on_done: Callable[[], None] | None = None

    @property
    def is_done(self) -> bool:
        """Whether there is a part, or the stream has ended."""
        return bool(self._stream.parts) or self._stream.is_done


class StreamRequest(PendingRequest):
    """A request that gets several responses: ``parts`` are those that the program has not taken yet. It is done at its end."""

    __slots__ = ("arrival", "expected", "granted", "is_broken", "others", "parts")

    def __init__(self, command: str, key: bytes, uid: str, member: Peer | None = None) -> None:
        super().__init__(command, key, uid, member)
        self.arrival = Arrival(self)
        self.parts: deque[Envelope] = deque()
        self.expected = 1
        """The number of the next part."""
        self.granted = 1
        """The number of the last part that the service may send."""
        self.is_broken = False
        """Whether the service may still send, although the stream has failed here."""
        self.others: tuple[int, ...] = ()
        """The other callees, where the request has to be cancelled."""

    def accept(self, sender: Peer, envelope: Envelope) -> None:
        """Handle a response of a callee."""
        if self.answerer is None:
            self.answerer = sender
            self.others = tuple(each for each in self.callees or () if each != sender.connection)
            self.callees = {sender.connection: sender}
        if envelope.error:
            self.finish(RemoteError(self.command, envelope.error, sender))
        elif not envelope.part and self.expected == 1:
            self.parts.append(envelope)  # of a service that does not stream
            self.finish()
        elif envelope.part != self.expected:
            self._break(AnswerLost(f"part {self.expected} of the response to {self.command!r}"))
        elif not envelope.more:
            self.finish()
        elif envelope.part > self.granted:
            self._break(RemoteError(self.command, f"invalid response: part {envelope.part} was not requested yet", sender))
        else:
            self.expected += 1
            self.parts.append(envelope)
            self._notify()

    def lost(self) -> None:
        """Fail: the bus has discarded messages for this connection, and the last part or the end may be among them."""
        self._break(AnswerLost(f"a part of the response to {self.command!r}"))

    def finish(self, error: SbusError | None = None) -> None:
        """Finish it, unless it is done. Parts that have arrived can still be taken."""
        super().finish(error)
        self._notify()

    def _break(self, error: SbusError) -> None:
        """Fail with *error*, though the service may go on."""
        if not self.is_done:
            self.is_broken = True
            self.finish(error)

    def _notify(self) -> None:
        """Wake the link that waits."""
        if self.arrival.on_done is not None:
            self.arrival.on_done()


@dataclass(frozen=True, slots=True)
class StreamInvocation(Invocation):
    """A call whose response may have parts, at most ``window`` of them ahead of the program.

    Raises ValueError if the window is not 1 to 1024.
    """

    window: int = STREAM_WINDOW
    kind: ClassVar[type[PendingRequest]] = StreamRequest

    def __post_init__(self) -> None:
        Invocation.__post_init__(self)
        check_count(self.window, "window", 1, MAX_WINDOW)

    def routed(self, envelope: Envelope) -> Envelope:
        """Return *envelope* with the grant of the first part."""
        return replace(envelope, window=1)


class StreamCall:
    """A call with parts: call :meth:`next` until it returns None, and :meth:`close` in any case."""

    def __init__(self, caller: Caller, request: StreamInvocation, member: Peer | None = None) -> None:
        check_member(member)
        self._caller = caller
        self._request = request
        self._member = member
        self._stream: StreamRequest | None = None
        self._taken = 0

    def next(self) -> Operation[Answer | None]:
        """Return the next part, None after the last one. Raises the error of the call."""
        deadline = self._request.deadline()
        stream = self._stream
        if stream is None:
            opened = yield from self._caller.open_started(self._request, deadline, self._member)
            if not isinstance(opened, StreamRequest):
                raise TypeError("the call has no stream")
            stream = self._stream = opened
        try:
            while not stream.arrival.is_done:
                yield Settle([stream.arrival], deadline)
        except TimedOut as error:
            raise self._caller.late(self._request, stream) from error
        if not stream.parts:
            if stream.error is not None:
                raise stream.error
            return None
        yield from self._grant(stream)
        answer = Answer(stream.parts.popleft().data)
        answer.callee = stream.answerer
        self._taken += 1
        return answer

    def close(self) -> None:
        """Cancel the stream if it has not ended, and forget it. Harmless when already closed."""
        stream, self._stream = self._stream, None
        if stream is None:
            return
        for packet in cancel_packets(stream, stream.others):
            self._caller.post(packet)
        if not stream.is_done or stream.is_broken:
            for packet in cancel_packets(stream, stream.callees):
                self._caller.post(packet)
        self._caller.requests.close(stream)

    def _grant(self, stream: StreamRequest) -> Operation[None]:
        """Cancel the request at other services, and grant more parts if half of the window has been taken."""
        while stream.others:
            yield Send(next(iter(cancel_packets(stream, stream.others[:1]))))
            stream.others = stream.others[1:]
        window = self._taken + 1 + self._request.window
        if stream.is_done or stream.answerer is None or 2 * (window - stream.granted) < self._request.window:
            return
        envelope = Envelope(stream.command, stream.uid, expires_seconds=PAST, sent_at=PAST, more=1, window=window)
        before, stream.granted = stream.granted, window
        try:
            yield Send(publish_packet(stream.answerer.address_bytes + stream.key, envelope.encode()))
        except BaseException:
            stream.granted = before
            raise
