"""The requests of a connection that wait for their responses. No I/O. Spec: sbus-rpc(7) §4, §5.

Which responses count:

1. Each request has a unique ``ret``, with 128 random bits, under the caller's address, where no other client can subscribe. A response
   that arrives after its request was abandoned matches no request, and is dropped.
2. ``sender/on`` is set before the first request is sent, so every response arrives with its sender's credentials, as verified by the
   bus. It counts only if the sender is one of the callees: a client that learns a ``ret`` cannot respond in their place.
3. The bus reports the callees at about the time when the response arrives; until then responses are held.
4. The client subscribes to the event of a callee's disconnection before it asks the bus whether the callee is connected, so no
   disconnection is missed.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

from sbus.bus_calls import Call, PresenceCall
from sbus.errors import AnswerLost, NoRecipient, PeerDisconnected, RemoteError, RemoteRefusal
from sbus.items import Message
from sbus.protocol import controls
from sbus.protocol.credentials import Peer
from sbus.protocol.envelope import Envelope, parse_envelope
from sbus.protocol.errors import ProtocolError, SbusError
from sbus.protocol.keys import EVENT_HEAD, connection_address
from sbus.protocol.packets import control_packet, unsubscribe_packet

DISCONNECT_HEAD = EVENT_HEAD + b"disconnect/"

ANSWERS = b"ret/"
"""The key for responses under the own address: ``!/conn/<id>/ret/<uid>``."""

_HELD_ANSWERS = 16
"""Responses of one user held until the callees are known; more than one is a rare race, more than these are an attack."""

_WATCHED_PEERS = 1_024
"""Callees that are watched when no request waits for them, so that the next call to them needs no subscription: far more than a program
calls, and a sixteenth of the subscriptions that a user may have."""


class CallSender(Protocol):
    """The session, as its pending requests use it."""

    address: bytes

    def send_call(self, call: Call, *packets: bytes) -> Call:
        """Put packets into ``outgoing``, with a call for the reply."""

    def send_quietly(self, packet: bytes) -> None:
        """Put a packet into ``outgoing`` that has no response."""


class PendingRequest:
    """A request, from before it is sent until its outcome: ``is_done``, then ``error`` or else ``answer``.

    ``callees`` are the connections whose response counts, None until they are known. ``on_done`` is called once, when it is done.
    """

    __slots__ = (
        "_gone",
        "_held",
        "answer",
        "answerer",
        "callees",
        "charged",
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
        """The key that services of the command subscribe to, without an address before it."""
        self.uid = uid
        self.member = member
        """The only member that is called, None for every service of the command."""
        self.callees: dict[int, Peer] | None = None if member is None else {member.connection: member}
        self.is_done = False
        self.is_doubtful = False
        """Whether packets were lost while the callees were not yet known."""
        self.answer = Envelope(command, uid)
        self.answerer: Peer | None = None
        self.error: SbusError | None = None
        self.on_done: Callable[[], None] | None = None
        self.charged: Callable[[int], int] = int
        """Returns the user that a response of a uid counts for."""
        self._held: list[tuple[Peer, Envelope]] = []
        self._gone: set[int] = set()

    def answered(self, sender: Peer, envelope: Envelope) -> bool:
        """Handle a response; return whether it counts, or may count once the callees are known."""
        if self.is_done:
            return False
        if self.callees is None:
            # For each user, so that listeners of other users cannot displace the response.
            user = self.charged(sender.uid)
            if sum(self.charged(peer.uid) == user for peer, _ in self._held) >= _HELD_ANSWERS:
                return False
            self._held.append((sender, envelope))
            return True
        if sender.connection not in self.callees:
            return False
        self.accept(sender, envelope)
        return True

    def accept(self, sender: Peer, envelope: Envelope) -> None:
        """Handle a response of a callee."""
        self.answer, self.answerer = envelope, sender
        self.finish(RemoteError(self.command, envelope.error, sender) if envelope.error else None)

    def lost(self) -> None:
        """Note that packets for this connection were lost: a callee is asked for again, and a response is waited for."""

    def called(self, serving: Iterable[Peer], departed: Iterable[Peer]) -> int:
        """Note the callees: those *serving*, and those *departed*, of which only a response that is already held can count.

        Return the number of held responses that do not count.
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
        """Note that a connection has ended."""
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
        """Note that it was not delivered. If its member has disconnected, that was the reason, but this is more exact."""
        if self.is_done and isinstance(self.error, PeerDisconnected):
            self.error = NoRecipient(self.command, self.member)
        else:
            self.finish(NoRecipient(self.command, self.member))

    def finish(self, error: SbusError | None = None) -> None:
        """Finish it, unless it is done."""
        if self.is_done:
            return
        self.is_done = True
        self.error = error
        if self.on_done is not None:
            self.on_done()


class PeerWatch:
    """A peer whose disconnection is watched: the call of the SUB, and the keys at its address that it was found to serve."""

    __slots__ = ("peer", "serves", "subscribing")

    def __init__(self, peer: Peer, subscribing: Call) -> None:
        self.peer = peer
        self.subscribing = subscribing
        self.serves: set[bytes] = set()

    @property
    def is_blind(self) -> bool:
        """Whether the bus's rules hide the peer's disconnection from this client."""
        return isinstance(self.subscribing.error, RemoteRefusal)

    @property
    def has_failed(self) -> bool:
        """Whether it is unknown if the bus accepted the subscription."""
        return self.subscribing.error is not None and not self.is_blind


class PendingRequests:
    """All requests of one connection that wait, and the peers that are watched for them."""

    def __init__(self, session: CallSender) -> None:
        self.strays = 0
        """Responses that did not count: late, or from connections that were not called."""
        self.unwatched = 0
        """Callees whose disconnection the bus's rules hide."""
        self.answers = b""
        """The prefix of keys for responses, ``!/conn/<id>/ret/``, once this connection has subscribed to it."""
        self.charged: Callable[[int], int] = int
        """Returns the user that a response of a uid counts for, before the callees are known."""
        self._session = session
        self._waiting: dict[bytes, PendingRequest] = {}
        self._watches: OrderedDict[int, PeerWatch] = OrderedDict()
        self._asked: dict[tuple[int, bytes], Call] = {}

    # Requests

    def open(self, command: str, key: bytes, member: Peer | None = None, kind: type[PendingRequest] = PendingRequest) -> PendingRequest:
        """Return a new request of *kind* that waits for its response from now on. Duty: :meth:`close` it."""
        pending = kind(command, key, os.urandom(16).hex(), member)
        pending.charged = self.charged
        self._waiting[self.reply_key(pending)] = pending
        return pending

    def reply_key(self, pending: PendingRequest) -> bytes:
        """Return the key for the response."""
        return self.answers + pending.uid.encode("ascii")

    def close(self, pending: PendingRequest) -> None:
        """Stop waiting for the response. Harmless when already closed."""
        self._waiting.pop(self.reply_key(pending), None)

    def resolve(self, pending: PendingRequest, serving: Iterable[Peer], departed: Iterable[Peer]) -> None:
        """Set the callees of a request."""
        self.strays += pending.called(serving, departed)
        if pending.is_doubtful:
            self._ask_again([pending])

    # Peers

    def watch(self, peer: Peer, start: Callable[[], Call]) -> PeerWatch:
        """Return the watch of a peer; if there is none, *start* subscribes to its disconnection."""
        watch = self._watches.get(peer.connection)
        if watch is None or watch.has_failed:
            watch = self._watches[peer.connection] = PeerWatch(peer, start())
            self._forget_oldest()
        self._watches.move_to_end(peer.connection)
        return watch

    def service(self, connection: int, key: bytes) -> Peer | None:
        """Return a peer that is watched, and was found to serve *key* at its own address; None if this one was not."""
        watch = self._watches.get(connection)
        if watch is None or key not in watch.serves:
            return None
        self._watches.move_to_end(connection)
        return watch.peer

    def knows(self, key: bytes) -> bool:
        """Return whether a service of *key* is known."""
        return any(key in watch.serves for watch in reversed(self._watches.values()))  # the most recent one first

    def doubt(self, connection: int, key: bytes) -> None:
        """Note that a peer may no longer serve *key*."""
        if watch := self._watches.get(connection):
            watch.serves.discard(key)

    # For the session

    def take(self, message: Message) -> bool:
        """Handle *message*; return whether it was a response, which is not for inboxes."""
        key = message.key_bytes
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
        """Return whether a message with *key* is the event of a disconnection."""
        return key.startswith(DISCONNECT_HEAD)

    def lost(self) -> None:
        """Ask again whether the callees are connected: the events of their disconnection may be lost."""
        for pending in tuple(self._waiting.values()):
            pending.is_doubtful = pending.callees is None
            pending.lost()
        self._ask_again(self._waiting.values())

    def disconnected(self, make_error: Callable[[], SbusError]) -> None:
        """Fail every request, and forget the state of the connection."""
        waiting, self._waiting = self._waiting, {}
        self._watches.clear()
        self.answers = b""
        for pending in waiting.values():
            pending.finish(make_error())

    # Private

    def _answered(self, message: Message) -> bool:
        """Give a response to its request; return whether it counts."""
        pending = self._waiting.get(message.key_bytes)
        if pending is None or message.sender is None:
            return False
        try:
            envelope = parse_envelope(message.payload)
        except ProtocolError as error:
            # If a callee sent it, it is the response, and there will be no other.
            envelope = Envelope(pending.command, pending.uid, error=f"invalid response: {error.words}")
        return envelope.uid == pending.uid and pending.answered(message.sender, envelope)

    def _ask_again(self, doubtful: Iterable[PendingRequest]) -> None:
        """Ask the bus whether the callees are connected. One that no longer serves counts as disconnected, which is rare.

        What is lost so far precedes the answer to an open question, so none is asked a second time.
        """
        self._asked = {place: call for place, call in self._asked.items() if not call.is_done}
        places = {(each, waiting.key) for waiting in doubtful if not waiting.is_done for each in waiting.callees or ()}
        for connection, key in places - self._asked.keys():
            question = control_packet(controls.MEMBERS, connection_address(connection) + key)
            call = self._session.send_call(PresenceCall(partial(self._left, connection)), question)
            call.on_done.append(partial(self._question_answered, call))
            self._asked[connection, key] = call

    def _question_answered(self, call: Call) -> None:
        """Ask again if the answer to a question is lost."""
        if isinstance(call.error, AnswerLost):
            self._ask_again(self._waiting.values())

    def _left(self, connection: int) -> None:
        """Note that a connection has ended."""
        if self._watches.pop(connection, None) is not None:
            self._session.send_quietly(unsubscribe_packet(b"%b%d" % (DISCONNECT_HEAD, connection)))
        for pending in tuple(self._waiting.values()):
            pending.left(connection)

    def _forget_oldest(self) -> None:
        """If too many peers are watched, stop watching the one that was called least recently and that no request waits for."""
        if len(self._watches) <= _WATCHED_PEERS:
            return
        needed = {each for waiting in self._waiting.values() for each in waiting.callees or ()}
        for connection in self._watches:
            if connection not in needed:
                del self._watches[connection]
                self._session.send_quietly(unsubscribe_packet(b"%b%d" % (DISCONNECT_HEAD, connection)))
                return
