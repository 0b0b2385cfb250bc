"""The services of a connection: which requests are run, in which order, and the responses. No I/O. Spec: sbus-rpc(7) §3, §7.

Attacks of other users that a service prevents:

1. *Impersonate a user.* The caller is the sender that the bus reports, with ``sender/on``; a request without its sender is not run.
2. *Redirect a response.* A response goes only to a key under the address of the connection that sent the request. Otherwise any user
   could make the service send messages to another user.
3. *Replay a request.* A ``uid`` that this connection has used is not run again.
4. *Starve others.* Each user has a queue, and the queues take turns; if the queue of a user is full, the user gets an error.
5. *Impersonate a host.* Only a request that a relay sends, to a key for relays, counts as a call of a remote host, and only for a
   service that has named the hosts it serves. Its caller is then not a user of this host.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from sbusd.client.errors import RemoteRefusal
from sbusd.client.inbox import Inbox
from sbusd.client.items import Gap, Item, Message, Replaced
from sbusd.client.rpc.caller_access import Allow, Twins
from sbusd.protocol.credentials import UNKNOWN_ID, Peer, remote_peer
from sbusd.protocol.envelope import TEXT_LIMITS, Envelope, command_of, command_problem, is_relayed, parse_envelope, relayed_key, service_key
from sbusd.protocol.errors import ProtocolError, SbusError
from sbusd.protocol.packets import MAX_PACKET_BYTES, publish_packet
from sbusd.protocol.printable import printable

LOG = logging.getLogger("sbusd.client.rpc.service")

MAX_CONCURRENT_HANDLERS = 64
"""Handlers that an ``AsyncBus`` runs concurrently: the number of requests of a group call that wait at the same time."""

QUEUED_REQUESTS = 256
"""Requests that are queued before the next one is run, so that the users of all of them take turns."""

WAITING_PER_USER = 256
"""Maximum number of queued requests of a user: more than a caller sends concurrently by default, and for a thousand users at most some
hundred megabytes, because few requests are large."""

_REMEMBERED_UIDS = 256
"""Uids remembered for each connection: as many as a user may have queued requests."""

_REMEMBERED_CONNECTIONS = 1_024
"""Connections whose uids are remembered; the least recent is forgotten. A user has fewer connections, so it cannot displace others."""

_REMEMBERED_CAUSES = 1_024
"""Causes of log records that are counted, a few for each of some hundred users; then counting starts again."""

Result = bytes | str | None
"""The result of a handler: bytes, text to encode in UTF-8, or None for no bytes."""


class ServiceError(SbusError, RuntimeError):
    """Raise it in a handler: the caller gets its words, and nothing else."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request as a handler gets it: ``data`` from ``caller``, whose credentials the bus has verified.

    If a remote host calls, ``source`` is its number, and ``caller`` is not a user of this host: uid, gid and pid are -1, and ``key``
    begins with ``!/twin/<number>/``.
    """

    command: str
    data: bytes
    caller: Peer
    uid: str
    expires_at: float | None
    """Time in seconds since 1970 when the caller stops waiting; None for never."""
    source: int = 0
    """The number of the remote host that calls, as reported by the relay; 0 is this host."""

    @property
    def party(self) -> tuple[int, int]:
        """The party that takes turns with others: a user of this host, or a remote host."""
        return self.caller.uid, self.source


Handler = Callable[[Request], Result | Awaitable[Result]]

H = TypeVar("H", bound=Handler)


@dataclass(frozen=True, slots=True)
class Task:
    """A request to run, its handler, and the key for its response: empty if none is wanted."""

    request: Request
    handler: Handler
    envelope: Envelope
    reply_key: bytes
    key: bytes
    """Where the request was sent."""

    def answer(self, result: Result) -> bytes:
        """Return the packet of the response *result*, or of the error that it is too long, or no bytes if none is wanted.

        Raises:
            TypeError: *result* is neither bytes nor text nor None.
        """
        data = b"" if result is None else result.encode() if isinstance(result, str) else result
        if not isinstance(data, bytes | bytearray | memoryview):
            raise TypeError(f"invalid result: must be bytes, str or None, not {type(result).__name__}")
        packet = self._packet(bytes(data), "")
        return packet or self.error(f"response too long: {len(data)} bytes do not fit into a packet of {MAX_PACKET_BYTES}")

    def error(self, words: str) -> bytes:
        """Return the packet of the error response, or no bytes if none is wanted."""
        return self._packet(b"", _cut(words) or "failed")

    def _packet(self, data: bytes, error: str) -> bytes:
        """Return the packet of the response, or no bytes if none is wanted or it is too long."""
        if not self.reply_key:
            return b""
        asked = self.envelope
        source = asked.destinations[0] if asked.destinations else 0
        reply = Envelope(
            command=asked.command,
            uid=asked.uid,
            data=data,
            reply_to=asked.reply_to,
            expires_seconds=asked.expires_seconds,
            sent_at=int(time.time()),
            error=error,
            source=source,
            destinations=(asked.source,) if asked.source else (),
            tries=asked.tries,
        )
        try:
            return publish_packet(self.reply_key, reply.encode())
        except ProtocolError:
            return b""


@dataclass(frozen=True, slots=True)
class Service:
    """The handler of a command, and its permitted callers."""

    handler: Handler
    allow: Allow | None = None
    twins: Twins | None = None


class RequestQueue:
    """Queued requests: a queue for each user, and for each remote host, which take turns."""

    def __init__(self) -> None:
        self._queues: OrderedDict[tuple[int, int], deque[Task]] = OrderedDict()
        self._size = 0

    def __len__(self) -> int:
        """Return the number of queued requests."""
        return self._size

    def put(self, task: Task) -> bool:
        """Queue *task*; return False if too many of the same party are queued."""
        queue = self._queues.setdefault(task.request.party, deque())
        if len(queue) >= WAITING_PER_USER:
            return False
        queue.append(task)
        self._size += 1
        return True

    def take(self) -> Task | None:
        """Return the first request of the party that is next; None if the queue is empty."""
        if not self._queues:
            return None
        party, queue = self._queues.popitem(last=False)
        task = queue.popleft()
        self._size -= 1
        if queue:
            self._queues[party] = queue
        return task


class Dispatcher:
    """The services of one connection: checks requests, and puts permitted ones into its ``queue``.

    ``counts`` are the numbers of requests by outcome; the names are those of sbus-rpc(7) §8.
    """

    def __init__(self) -> None:
        self.queue = RequestQueue()
        self.inbox: Inbox | None = None
        """The subscription that is served now."""
        self.counts: Counter[str] = Counter()
        self._services: dict[str, Service] = {}
        self._seen: OrderedDict[int, OrderedDict[str, None]] = OrderedDict()
        self._logged: Counter[tuple[str, int]] = Counter()

    def add(self, command: str, handler: Handler, allow: Allow | None, twins: Twins | None = None) -> None:
        """Serve *command* from the next ``serve`` on. Raises ValueError if it is invalid, or is already served."""
        if problem := command_problem(command):
            raise ValueError(f"the command {command!r} {problem}")
        if command in self._services:
            raise ValueError(f"cannot serve {command!r}: this bus object already serves it")
        self._services[command] = Service(handler, allow, twins)

    def patterns(self, address: bytes) -> list[bytes]:
        """Return the patterns to subscribe to: the keys of each command, and the same under *address*, the connection's own."""
        if not self._services:
            raise ValueError("nothing to serve: decorate a function with service() first")
        keys = [service_key(command) for command in self._services]
        keys += [relayed_key(command) for command, service in self._services.items() if service.twins is not None]
        return [each for key in keys for each in (key, address + key)]

    def handle(self, item: Item, now: float) -> bytes:
        """Handle an item of the services' subscription; return the packet to send at once, or no bytes. *now* is as for :meth:`receive`."""
        if isinstance(item, Message):
            return self.receive(item, now)
        self.note_missing(item.count if isinstance(item, Replaced) else item.lost if isinstance(item, Gap) else 0)
        return b""

    def receive(self, message: Message, now: float) -> bytes:
        """Check *message*, and queue it if it is a permitted request. Return the packet to send if it is not, or no bytes.

        *now* is in seconds since 1970.
        """
        self.counts["requests"] += 1
        caller = message.sender
        command, service = self.find(message.key)
        if caller is None:
            return self._drop("without_sender", message, "the bus named no sender")
        if service is None:
            return self._drop("unknown", message, "no service for its command")
        try:
            envelope = parse_envelope(message.payload)
        except ProtocolError as error:
            return self._drop("malformed", message, error.words)
        reply_key = envelope.reply_to.encode()
        if reply_key and not reply_key.startswith(caller.address):
            return self._drop("foreign_ret", message, f"ret is {printable(reply_key, 64)}, which is not at the address of the caller")
        if envelope.command != command:
            return self._drop("malformed", message, f"cmd is {printable(envelope.command, 64)}, which is not the command of the key")
        if is_relayed(message.key):
            request = _request(envelope, remote_peer(caller, envelope.source), envelope.source)
            problem = _relaying_problem(request, service.twins or Twins(), caller)
        else:
            request = _request(envelope, caller)
            problem = "" if service.allow is None or service.allow.admits(caller) else f"{_author(caller)} may not call {command}"
        return self.judge(Task(request, service.handler, envelope, reply_key, message.key), problem, now)

    def find(self, key: bytes) -> tuple[str, Service | None]:
        """Return the command that a request with *key* must name, and its service, None if there is none."""
        command = command_of(key) or ""
        service = self._services.get(command)
        return command, None if service is not None and service.twins is None and is_relayed(key) else service

    def failed(self, task: Task, error: Exception) -> bytes:
        """Return the response with the words of a ServiceError, or only the type of another *error*, whose text is for the log."""
        self.counts["failed"] += 1
        if isinstance(error, ServiceError):
            return task.error(str(error))
        if self._is_due(f"{task.request.command} {type(error).__name__}", task.request.caller):
            LOG.error("%s failed for %s", task.request.command, _name(task.request.caller), exc_info=error)
        return task.error(f"the handler raised {type(error).__name__}")

    def answered(self, task: Task, result: Result) -> bytes:
        """Return the response of a handler that has returned *result*."""
        try:
            packet = task.answer(result)
        except TypeError as error:
            return self.failed(task, error)
        self.counts["answered"] += 1
        return packet

    def next(self, now: float) -> tuple[Task | None, list[bytes]]:
        """Return the next request to run at *now*, or None, and the responses to requests that have expired."""
        packets: list[bytes] = []
        while (task := self.queue.take()) is not None:
            if not task.envelope.is_expired(now):
                return task, packets
            self.counts["expired"] += 1
            packets.append(task.error("the request expired while it was queued, and was not run"))
        return None, [packet for packet in packets if packet]

    def note_refusal(self, refusal: RemoteRefusal) -> None:
        """Note that the bus refused a response: its rules do not permit this client to publish it."""
        self.counts["refused"] += 1
        if self._is_due("refused", None):
            LOG.warning("the bus refused a response: %s", refusal.said)

    def note_missing(self, lost: int) -> None:
        """Note that *lost* packets are missing, perhaps requests among them; their callers will time out."""
        self.counts["lost"] += lost
        if lost and self._is_due("lost", None):
            LOG.warning("the bus discarded %d packets, requests perhaps among them: this service reads too slowly", lost)

    def stop(self) -> Iterable[bytes]:
        """Yield the error responses to all queued requests, which will not be run."""
        while (task := self.queue.take()) is not None:
            self.counts["stopped"] += 1
            if packet := task.error("the service stopped before it ran the request"):
                yield packet

    def judge(self, task: Task, problem: str, now: float) -> bytes:
        """Queue a well-formed request, unless it is rejected; *problem* says why this caller is not permitted, if so."""
        request = task.request
        if not self._is_new(request.caller.connection, request.uid):
            # The first request is answered; the caller does not expect a second response.
            self.counts["duplicate"] += 1
            return b""
        if problem:
            self.counts["denied"] += 1
            if self._is_due("denied", request.caller):
                LOG.warning("rejected a call of %s by %s: %s", request.command, _name(request.caller), problem)
            return task.error(problem)
        if task.envelope.is_expired(now):
            self.counts["expired"] += 1
            return task.error("the request expired before it arrived, and was not run")
        if not self.queue.put(task):
            self.counts["busy"] += 1
            party = f"twin {request.source}" if request.source else f"user {request.caller.uid}"
            return task.error(f"busy: {WAITING_PER_USER} requests of {party} are already queued")
        return b""

    def _is_new(self, connection: int, uid: str) -> bool:
        """Return whether a connection has not used *uid* before, and remember it."""
        seen = self._seen.setdefault(connection, OrderedDict())
        self._seen.move_to_end(connection)
        if len(self._seen) > _REMEMBERED_CONNECTIONS:
            self._seen.popitem(last=False)
        if uid in seen:
            return False
        seen[uid] = None
        if len(seen) > _REMEMBERED_UIDS:
            seen.popitem(last=False)
        return True

    def _drop(self, reason: str, message: Message, words: str) -> bytes:
        """Count and log a message that is not a request, or cannot be answered."""
        self.counts[reason] += 1
        sender = "an unknown sender" if message.sender is None else _name(message.sender)
        if self._is_due(reason, message.sender):
            LOG.warning("discarded a request to %s from %s: %s", printable(message.key, 128), sender, words)
        return b""

    def _is_due(self, reason: str, peer: Peer | None) -> bool:
        """Return whether to log *reason* again: for each user the 1st, 2nd, 4th, 8th… time, so that no user can fill the log."""
        cause = (reason, -1 if peer is None else peer.uid)
        if len(self._logged) >= _REMEMBERED_CAUSES and cause not in self._logged:
            self._logged.clear()
        self._logged[cause] += 1
        return self._logged[cause].bit_count() == 1


def _request(envelope: Envelope, caller: Peer, source: int = 0) -> Request:
    """Return the request for a handler."""
    has_end = envelope.expires_seconds > 0 and envelope.sent_at > 0
    expires_at = float(envelope.sent_at + envelope.expires_seconds + 1) if has_end else None
    return Request(envelope.command, envelope.data, caller, envelope.uid, expires_at, source)


def _relaying_problem(request: Request, twins: Twins, sender: Peer) -> str:
    """Return why a request in the name of a remote host is not permitted, or no words."""
    if not twins.believes(sender):
        return f"{_author(sender)} is not a relay and cannot call for a remote host"
    return "" if twins.admits(request.source) else f"twin {request.source} may not call {request.command}"


def _author(peer: Peer) -> str:
    """Return a description of the user of *peer* for its error."""
    return peer.origin.decode("ascii", "backslashreplace") if peer.origin else f"user {peer.uid}"


def _name(peer: Peer) -> str:
    """Return a description of *peer* for the log."""
    if peer.uid == UNKNOWN_ID:
        return f"{printable(peer.key, 64)} by connection {peer.connection}"
    return f"connection {peer.connection} (uid {peer.uid}, pid {peer.pid})"


def _cut(words: str) -> str:
    """Return *words* as one printable line that fits into ``err``."""
    line = printable(words, TEXT_LIMITS["err"] // 4 - 1)
    return line.encode("utf-8")[: TEXT_LIMITS["err"]].decode("utf-8", "ignore")
