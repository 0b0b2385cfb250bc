"""One request that waits for its answer, and all of a connection. No I/O. Spec: sbus-rpc(7) §4, §5.

Whose answer counts:

1. A request has a ``ret`` of its own, with 128 random bits, under the caller's address, where nobody else can subscribe. An answer that
   comes late, after its request was given up, finds nothing there and is dropped.
2. ``sender/on`` holds before the first request is sent, so every answer comes with its sender's credentials by the bus's word. It
   counts only if the sender is one of those who were called: who learns a ``ret`` somehow cannot answer in their place.
3. Who was called is learnt from the bus, by the time the answer comes or just after it: until then answers are held.
4. A callee's end is heard by an event that is subscribed to before the bus is asked whether the callee is there, so none is missed.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

from sbusd.client.bus_queries import PresenceCall
from sbusd.client.errors import NoRecipient, PeerDisconnected, RemoteError, RemoteRefusal
from sbusd.client.messages import Message
from sbusd.client.pending_replies import Call
from sbusd.protocol import controls
from sbusd.protocol.envelope import Envelope
from sbusd.protocol.errors import ProtocolError, SbusError
from sbusd.protocol.keys import EVENT_HEAD
from sbusd.protocol.packets import control_packet, unsubscribe_packet
from sbusd.protocol.peers import Peer, connection_address

DISCONNECT_HEAD = EVENT_HEAD + b"disconnect/"

ANSWERS = b"ret/"
"""Where under the own address answers go: ``!/conn/<id>/ret/<uid>``."""

_HELD_ANSWERS = 16
"""Answers held until it is known who was called; more than one is a rare race, more than these are an attack."""

_WATCHED_PEERS = 1_024
"""Callees whose end is watched when no request waits for them, so that the next call to them costs no subscription: far more than
a program calls, and a sixteenth of the subscriptions that a user may have."""


class Wire(Protocol):
    """What a table needs of its session."""

    address: bytes

    def send_call(self, call: Call, *packets: bytes) -> Call:
        """Put packets into ``outgoing``, with a call for what they are answered with."""

    def send_quietly(self, packet: bytes) -> None:
        """Put a packet into ``outgoing`` that draws no answer."""


class Outstanding:
    """A request, from before it is sent until its answer, or why there is none: ``is_done``, then ``error`` or else ``answer``.

    ``callees`` are those whose answer counts, None until that is known. ``on_done`` is called once, when it is done.
    """

    __slots__ = (
        "_gone",
        "_held",
        "answer",
        "answerer",
        "callees",
        "command",
        "error",
        "is_done",
        "is_doubtful",
        "key",
        "member",
        "on_done",
        "uid",
    )

    def __init__(self, command: str, key: bytes, uid: str, member: Peer | None = None) -> None:
        self.command = command
        self.key = key
        """Where those listen who serve it, without an address in front."""
        self.uid = uid
        self.member = member
        """The one member that is called, None for whoever serves the command."""
        self.callees: dict[int, Peer] | None = None if member is None else {member.connection: member}
        self.is_done = False
        self.is_doubtful = False
        """Whether packets were lost while it was not yet known who was called."""
        self.answer = Envelope(command, uid)
        self.answerer: Peer | None = None
        self.error: SbusError | None = None
        self.on_done: Callable[[], None] | None = None
        self._held: list[tuple[Peer, Envelope]] = []
        self._gone: set[int] = set()

    def answered(self, sender: Peer, envelope: Envelope) -> bool:
        """Take an answer; return whether it counts, or may do so once it is known who was called."""
        if self.is_done:
            return False
        if self.callees is None:
            if len(self._held) >= _HELD_ANSWERS:
                return False
            self._held.append((sender, envelope))
            return True
        if sender.connection not in self.callees:
            return False
        self.answer, self.answerer = envelope, sender
        self.finish(RemoteError(self.command, envelope.error, sender) if envelope.error else None)
        return True

    def called(self, serving: Iterable[Peer], departed: Iterable[Peer]) -> int:
        """Take note of who was called: those who are *serving*, and those *departed*, of whom only an answer that is here can come.

        Return how many of the answers that were held do not count.
        """
        self.callees = {peer.connection: peer for peer in (*serving, *departed)}
        was_empty = not self.callees
        refused = sum(not self.answered(sender, envelope) for sender, envelope in self._held)
        self._held.clear()
        if was_empty:
            self.finish(NoRecipient(self.command, self.member))
        for connection in (*self._gone, *(peer.connection for peer in departed)):
            self.left(connection)
        return refused

    def left(self, connection: int) -> None:
        """Take note that a connection has ended."""
        if self.callees is None:
            self._gone.add(connection)
            return
        peer = self.callees.get(connection)
        if peer is None or self.is_done:
            return
        if len(self.callees) == 1:
            self.finish(PeerDisconnected(self.command, (peer,)))
        else:
            del self.callees[connection]

    def undelivered(self) -> None:
        """Take note that nobody was handed it. That its member has ended was news of the same thing, and less exact."""
        if self.is_done and isinstance(self.error, PeerDisconnected):
            self.error = NoRecipient(self.command, self.member)
        else:
            self.finish(NoRecipient(self.command, self.member))

    def finish(self, error: SbusError | None = None) -> None:
        """Settle it, unless it is settled already."""
        if self.is_done:
            return
        self.is_done = True
        self.error = error
        if self.on_done is not None:
            self.on_done()


class Watch:
    """One peer whose end is watched: the call of the SUB, and the keys of its own at which it was seen to serve."""

    __slots__ = ("serves", "subscribing")

    def __init__(self, subscribing: Call) -> None:
        self.subscribing = subscribing
        self.serves: set[bytes] = set()

    @property
    def is_blind(self) -> bool:
        """Whether the bus does not let this client hear of the peer's end."""
        return isinstance(self.subscribing.error, RemoteRefusal)

    @property
    def has_failed(self) -> bool:
        """Whether it is not known if the bus took the subscription."""
        return self.subscribing.error is not None and not self.is_blind


class CallTable:
    """All requests of one connection that wait, and the peers that are watched for them."""

    def __init__(self, wire: Wire, read_envelope: Callable[[bytes], Envelope]) -> None:
        self.strays = 0
        """Answers that did not count: late ones, and those of strangers."""
        self.unwatched = 0
        """Callees whose end would not have been heard, for the bus's rules hide it."""
        self.answers = b""
        """Where answers go, ``!/conn/<id>/ret/``, once that is subscribed to on this connection."""
        self._wire = wire
        self._read_envelope = read_envelope
        self._waiting: dict[bytes, Outstanding] = {}
        self._watches: OrderedDict[int, Watch] = OrderedDict()

    # Requests

    def open(self, command: str, key: bytes, member: Peer | None = None) -> Outstanding:
        """Return a new request, whose answer is waited for from now on. Duty: :meth:`close` it."""
        outstanding = Outstanding(command, key, os.urandom(16).hex(), member)
        self._waiting[self.reply_key(outstanding)] = outstanding
        return outstanding

    def reply_key(self, outstanding: Outstanding) -> bytes:
        """Return the key that the answer goes to."""
        return self.answers + outstanding.uid.encode("ascii")

    def close(self, outstanding: Outstanding) -> None:
        """Wait for its answer no more. Harmless when done already."""
        self._waiting.pop(self.reply_key(outstanding), None)

    def resolve(self, outstanding: Outstanding, serving: Iterable[Peer], departed: Iterable[Peer]) -> None:
        """Say who was called."""
        self.strays += outstanding.called(serving, departed)
        if outstanding.is_doubtful:
            self._ask_again([outstanding])

    # Peers

    def watch(self, connection: int, start: Callable[[], Call]) -> Watch:
        """Return the watch of a peer; *start* subscribes to its end if nobody has."""
        watch = self._watches.get(connection)
        if watch is None or watch.has_failed:
            watch = self._watches[connection] = Watch(start())
            self._forget_oldest()
        self._watches.move_to_end(connection)
        return watch

    def serves(self, connection: int, key: bytes) -> bool:
        """Return whether a peer is watched, and was seen to serve *key*, at its own address."""
        watch = self._watches.get(connection)
        if watch is None or key not in watch.serves:
            return False
        self._watches.move_to_end(connection)
        return True

    def doubt(self, connection: int, key: bytes) -> None:
        """Take note that a peer may serve *key* no more."""
        if watch := self._watches.get(connection):
            watch.serves.discard(key)

    # What the session tells

    def take(self, message: Message) -> bool:
        """Look at *message*; return whether it was an answer, which is nobody else's."""
        key = message.key
        if key.startswith(DISCONNECT_HEAD):
            digits = key[len(DISCONNECT_HEAD) :]
            if digits.isdigit() and len(digits) <= 20:
                self._left(int(digits))
            return False
        if not self.answers or not key.startswith(self.answers):
            return False
        if not self._answered(message):
            self.strays += 1
        return True

    def watches(self, key: bytes) -> bool:
        """Return whether a message with *key* is an event that peers are watched by."""
        return key.startswith(DISCONNECT_HEAD)

    def lost(self) -> None:
        """Ask again whether those are there who are to answer: the word of their end may be among what was lost."""
        for outstanding in self._waiting.values():
            outstanding.is_doubtful = outstanding.callees is None
        self._ask_again(self._waiting.values())

    def disconnected(self, make_error: Callable[[], SbusError]) -> None:
        """Fail every request, and forget all that belonged to the connection."""
        waiting, self._waiting = self._waiting, {}
        self._watches.clear()
        self.answers = b""
        for outstanding in waiting.values():
            outstanding.finish(make_error())

    # Private

    def _answered(self, message: Message) -> bool:
        """Give an answer to the request that it is for; return whether it counts there."""
        outstanding = self._waiting.get(message.key)
        if outstanding is None or message.sender is None:
            return False
        try:
            envelope = self._read_envelope(message.payload)
        except ProtocolError as error:
            # From one who was called it is the answer, and there will be no better one.
            envelope = Envelope(outstanding.command, outstanding.uid, error=f"invalid response: {error.words}")
        return envelope.uid == outstanding.uid and outstanding.answered(message.sender, envelope)

    def _ask_again(self, doubtful: Iterable[Outstanding]) -> None:
        """Ask the bus whether those are there who are to answer. Who is there and serves no more is taken for gone: that is rare."""
        for connection, key in {(each, waiting.key) for waiting in doubtful if not waiting.is_done for each in waiting.callees or ()}:
            question = control_packet(controls.MEMBERS, connection_address(connection) + key)
            self._wire.send_call(PresenceCall(partial(self._left, connection)), question)

    def _left(self, connection: int) -> None:
        """Take note that a connection has ended."""
        if self._watches.pop(connection, None) is not None:
            self._wire.send_quietly(unsubscribe_packet(b"%b%d" % (DISCONNECT_HEAD, connection)))
        for outstanding in tuple(self._waiting.values()):
            outstanding.left(connection)

    def _forget_oldest(self) -> None:
        """Stop watching the peer that was called least recently, if there are too many and no request waits for it."""
        if len(self._watches) <= _WATCHED_PEERS:
            return
        needed = {each for waiting in self._waiting.values() for each in waiting.callees or ()}
        for connection in self._watches:
            if connection not in needed:
                del self._watches[connection]
                self._wire.send_quietly(unsubscribe_packet(b"%b%d" % (DISCONNECT_HEAD, connection)))
                return
