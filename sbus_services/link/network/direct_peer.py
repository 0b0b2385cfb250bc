"""One connection to another link, which is verified by its certificate: frames, heartbeats, and a bounded queue."""

from __future__ import annotations

import asyncio
from typing import Protocol

from sbus.protocol.printable import printable
from sbus_services.link.network import direct_frames
from sbus_services.link.network.direct_frames import Frame, FrameError, FrameKind, FrameReader
from sbus_services.link.network.streams import MAX_WORDS, Stall, Turn, error_words
from sbus_services.link.network.subject_tree import SubjectTree, TooManySubjectsError
from sbus_services.link.permissions import is_within, published_by, received_by
from sbus_services.link.shared_queue import Queued, SharedQueue

HELLO_SECONDS = 5.0
PING_SECONDS = 2.0
SILENCE_SECONDS = 6.0
"""A host that sends nothing for so long, not even the response to a ping, is gone."""
FRAME_SECONDS = 30.0
"""Longest time from the first byte of a frame to its last."""

READ_BYTES = 1 << 16
WRITE_BYTES = 1 << 18
"""How much is given to the socket at once."""
CONTROL_BYTES = 1 << 20
"""What may wait besides messages: subscriptions and responses. A host that lets more wait is disconnected."""

_HEARTBEAT = 0
"""The number of a ping that no barrier waits for."""


class PeerEvents(Protocol):
    """What a connection reports."""

    def peer_sent(self, peer: PeerConnection, subject: str, head: bytes, body: bytes) -> None:
        """A message came whose subject the host may publish to."""

    def peer_changed(self, peer: PeerConnection) -> None:
        """The subscriptions of the host have changed."""

    def peer_passed(self, peer: PeerConnection, number: int) -> None:
        """The host has processed everything before the ping *number*."""

    def peer_rejected(self, peer: PeerConnection, reason: str) -> None:
        """The host rejected something that was sent."""

    def peer_forged(self, peer: PeerConnection, reason: str) -> None:
        """The host sent what it may not send."""

    def peer_got(self, peer: PeerConnection, content: int) -> None:
        """A message, whose head and body have *content* bytes, was given to the socket."""

    def peer_has_room(self) -> None:
        """The host has taken bytes that waited for it."""


class PeerConnection:
    """Use :meth:`greet`, then :meth:`run`; at the end :meth:`abort`."""

    def __init__(self, name: str, dialler: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, max_pending_bytes: int) -> None:
        """*name* is the host in the certificate of the other end, *dialler* the host that made the connection."""
        self.name = name
        self.dialler = dialler
        self.subjects = SubjectTree()
        """What the host has subscribed to."""
        self.pending_bytes = 0
        self.own_address = str((writer.get_extra_info("sockname") or ("",))[0])
        self._reader = reader
        self._writer = writer
        self._max_pending_bytes = max_pending_bytes
        self._out = SharedQueue[Queued]()
        self._has_output = asyncio.Event()
        self._frames = FrameReader()
        self._early: list[Frame] = []
        self._failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._last_received = self._frame_begin = asyncio.get_running_loop().time()

    async def greet(self, realm: str) -> None:
        """Exchange the first frames. Raises FrameError, OSError; TimeoutError after some seconds."""
        self._writer.write(direct_frames.hello(realm))
        async with asyncio.timeout(HELLO_SECONDS):
            await self._writer.drain()
            while not self._early:
                chunk = await self._reader.read(READ_BYTES)
                if not chunk:
                    raise FrameError("nothing, and closed the connection")
                self._early = list(self._frames.feed(chunk))
        first = self._early.pop(0)
        if first.kind is not FrameKind.HELLO:
            raise FrameError(f"a frame of kind {first.kind.name} before HELLO")
        direct_frames.read_hello(first.content, realm)

    async def run(self, realm: str, events: PeerEvents, stall: Stall) -> str:
        """Return why the connection has ended. An exception of *events* is raised."""
        rights = published_by(realm, self.name), received_by(realm, self.name)
        tasks = [asyncio.create_task(each) for each in (self._read(rights, events, stall), self._write(events), self._pulse(stall))]
        try:
            done, _ = await asyncio.wait([*tasks, self._failed], return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.abort()
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):
                raise result
        return next(iter(done)).result()

    def abort(self, reason: str = "closed") -> None:
        """Close the connection at once."""
        self._fail(reason)
        self._writer.transport.abort()

    def send_message(self, frame: bytes, content: int, owner: int) -> int:
        """Queue the frame of a message, whose head and body have *content* bytes. Return how many are dropped for it.

        These are the newest of the owner with the most, which can be the frame itself.
        """
        self._queue(Queued(frame, content), owner)
        dropped = 0
        while self.pending_bytes > self._max_pending_bytes and (lost := self._out.drop_newest()) is not None:
            self.pending_bytes -= len(lost.data)
            dropped += 1
        return dropped

    def send(self, frame: bytes) -> None:
        """Queue any other frame."""
        if self.pending_bytes + len(frame) > self._max_pending_bytes + CONTROL_BYTES:
            self._fail(f"it does not read: {self.pending_bytes} bytes wait")
            return
        self._queue(Queued(frame), None)

    def _queue(self, queued: Queued, owner: int | None) -> None:
        """Queue a frame; None: it cannot be dropped."""
        self._out.add(queued, len(queued.data), owner)
        self.pending_bytes += len(queued.data)
        self._has_output.set()

    def _fail(self, reason: str) -> None:
        """End the connection because of *reason*."""
        if not self._failed.done():
            self._failed.set_result(reason)

    async def _read(self, rights: tuple[tuple[str, ...], tuple[str, ...]], events: PeerEvents, stall: Stall) -> str:
        """Handle what arrives. Return why nothing more does."""
        loop = asyncio.get_running_loop()
        turn = Turn(stall)
        try:
            frames, self._early = self._early, []
            for frame in frames:
                self._handle(frame, rights, events)
            while chunk := await self._reader.read(READ_BYTES):
                self._last_received = loop.time()
                count = 0
                for count, frame in enumerate(self._frames.feed(chunk), 1):  # noqa: B007 - used after the loop
                    self._handle(frame, rights, events)
                    if turn.is_over():
                        await turn.next()
                        self._last_received = self._frame_begin = loop.time()
                await turn.next()
                self._last_received = loop.time()
                if count or not self._frames.is_within_frame:
                    self._frame_begin = self._last_received
        except FrameError as error:
            return f"it sent {error}"
        except OSError as error:
            return error_words(error)
        return "it closed the connection"

    def _handle(self, frame: Frame, rights: tuple[tuple[str, ...], tuple[str, ...]], events: PeerEvents) -> None:
        """Handle one frame. Raises FrameError if its content is invalid."""
        may_publish, may_subscribe = rights
        if frame.kind is FrameKind.MESSAGE:
            subject, head, body = direct_frames.read_message(frame.content)
            if is_within(subject, may_publish):
                events.peer_sent(self, subject, head, body)
            else:
                self._refuse(f"host {self.name} may not publish to {subject}", events)
        elif frame.kind is FrameKind.SUBSCRIBE:
            self._subscribe(direct_frames.read_subject(frame.content), may_subscribe, events)
        elif frame.kind is FrameKind.UNSUBSCRIBE:
            self.subjects.remove(direct_frames.read_subject(frame.content))
            events.peer_changed(self)
        elif frame.kind is FrameKind.PING:
            self.send(direct_frames.pong(direct_frames.read_number(frame.content)))
        elif frame.kind is FrameKind.PONG:
            number = direct_frames.read_number(frame.content)
            if number != _HEARTBEAT:
                events.peer_passed(self, number)
        elif frame.kind is FrameKind.REJECTED:
            events.peer_rejected(self, printable(frame.content, MAX_WORDS))
        else:
            raise FrameError("a second HELLO")

    def _subscribe(self, subject: str, may_subscribe: tuple[str, ...], events: PeerEvents) -> None:
        """Add a subscription of the host, if it may have it."""
        if not is_within(subject, may_subscribe):
            self._refuse(f"host {self.name} may not subscribe to {subject}", events)
            return
        try:
            self.subjects.add(subject)
        except TooManySubjectsError as error:
            self._refuse(f"subscription refused: {error}", events)
            return
        events.peer_changed(self)

    def _refuse(self, reason: str, events: PeerEvents) -> None:
        """Report to both ends that the host may not do what it tried."""
        reason = printable(reason, MAX_WORDS)
        events.peer_forged(self, reason)
        self.send(direct_frames.rejected(reason))

    async def _write(self, events: PeerEvents) -> str:
        """Write what is queued. Return why it cannot be written."""
        try:
            while True:
                await self._has_output.wait()
                while self._out:
                    chunk: list[bytes] = []
                    size = 0
                    while self._out and size < WRITE_BYTES:
                        data, content = self._out.pop()
                        chunk.append(data)
                        size += len(data)
                        if content is not None:
                            events.peer_got(self, content)
                    self._writer.write(b"".join(chunk))
                    await self._writer.drain()
                    self.pending_bytes -= size
                    events.peer_has_room()
                self._has_output.clear()
        except OSError as error:
            return error_words(error)

    async def _pulse(self, stall: Stall) -> str:
        """Send heartbeats. Return when the host is silent."""
        loop = asyncio.get_running_loop()
        while True:
            begin = loop.time()
            await asyncio.sleep(PING_SECONDS)
            now = loop.time()
            self._last_received += max(
                0.0, now - begin - 2 * PING_SECONDS
            )  # while this process does not run, the silence is not that of the host
            if not stall.is_active and now - self._last_received > SILENCE_SECONDS:
                return f"it has sent nothing for {SILENCE_SECONDS:g} s"
            if self._frames.is_within_frame and not stall.is_active and now - self._frame_begin > FRAME_SECONDS:
                return f"it has not completed a frame within {FRAME_SECONDS:g} s"
            self.send(direct_frames.ping(_HEARTBEAT))
