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
import os
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sbus.errors import RemoteRefusal, ServiceError
from sbus.inbox import Inbox
from sbus.items import Gap, Item, Message, Reconnected, Replaced
from sbus.protocol.credentials import Peer, remote_peer
from sbus.protocol.envelope import (
    Envelope,
    command_of,
    command_problem,
    is_relayed,
    parse_envelope,
    relayed_key,
    service_key,
)
from sbus.protocol.errors import ProtocolError
from sbus.protocol.memberships import SERVICE_GROUP, stored_pattern
from sbus.protocol.printable import printable
from sbus.rpc.caller_access import UNCHECKED, Allow, Twins, calling_problem, name_of, relaying_problem
from sbus.rpc.handlers import InvalidResultError, check_handler
from sbus.rpc.live_requests import CallerWatch, LiveRequests
from sbus.rpc.request_queue import WAITING_PER_USER, PendingTasks, RequestQueue
from sbus.rpc.requests import Handler, Request, Task
from sbus.rpc.streaming import ServiceStreams

LOG = logging.getLogger("sbus.rpc.service")

MAX_CONCURRENT_HANDLERS = 64
"""Handlers that an ``AsyncBus`` runs concurrently: the number of requests of a group call that wait at the same time."""

QUEUED_REQUESTS = 256
"""Requests that are queued before the next one is run, so that the users of all of them take turns."""

_REMEMBERED_UIDS = 256
"""Uids remembered for each connection: as many as a user may have queued requests."""

_REMEMBERED_CONNECTIONS = 1_024
"""Connections whose uids are remembered; the least recent is forgotten. A user has fewer connections, so it cannot displace others."""

_REMEMBERED_CAUSES = 1_024
"""Causes of log records that are counted, a few for each of some hundred users; then counting starts again."""


@dataclass(frozen=True, slots=True)
class Service:
    """The handler of a command, and its permitted callers."""

    handler: Handler
    allow: Allow | None = None
    twins: Twins | None = None
    group: bytes = SERVICE_GROUP.encode()
    """Its queue group; empty if it runs every request."""


class Dispatcher:
    """The services of one connection: checks requests, and puts permitted ones into its ``queue``.

    ``counts`` are the numbers of requests by outcome; the names are those of sbus-rpc(7) §8. A request counts for the user that *charged*
    returns for the uid of its caller. Its right stays that of the uid.
    """

    is_cancellable = True
    """Whether callers can cancel their requests."""

    def __init__(self, charged: Callable[[int], int] = int) -> None:
        self.charged = charged
        self.queue = RequestQueue()
        self.live = LiveRequests()
        self.streams = ServiceStreams()
        self.watch: CallerWatch | None = None
        """Watches the callers of ``live`` while they are served."""
        self.pending: PendingTasks | None = None
        """The requests that wait for the groups of their callers, if they can wait."""
        self.inbox: Inbox | None = None
        """The subscription that is served now."""
        self._serving_process = 0
        self.counts: Counter[str] = Counter()
        self._services: dict[str, Service] = {}
        self._seen: OrderedDict[int, OrderedDict[str, None]] = OrderedDict()
        self._logged: Counter[tuple[str, int]] = Counter()

    def add(
        self, command: str, handler: Handler, allow: Allow | None, twins: Twins | None = None, group: bytes = SERVICE_GROUP.encode()
    ) -> None:
        """Serve *command* from the next ``serve`` on.

        Raises:
            TypeError: *handler* cannot be called with a request.
            ValueError: *command* is invalid, or is already served.
            RuntimeError: the services have subscribed to their keys already.
        """
        check_handler(command, handler)
        if self._is_served:
            raise RuntimeError(f"cannot add the service {command!r} while serve() runs: add it before, or on another connection")
        if problem := command_problem(command):
            raise ValueError(f"the command {command!r} {problem}")
        if command in self._services:
            raise ValueError(f"cannot serve {command!r}: this bus object already serves it")
        self._services[command] = Service(handler, allow, twins, group)

    @property
    def _is_served(self) -> bool:
        """Whether the services are served in this process: a child of fork(2) does not inherit that."""
        return self._serving_process == os.getpid()

    def begin_serving(self) -> None:
        """Note that the services are served from now on. Raises RuntimeError if they are already served."""
        if self._is_served:
            raise RuntimeError("cannot serve: serve() already runs on this bus; use a connection for each thread, or one AsyncBus")
        self._serving_process = os.getpid()

    def end_serving(self) -> None:
        """Note that the services are not served any more."""
        self._serving_process = 0

    def patterns(self, address: bytes) -> list[bytes]:
        """Return the patterns to store: the keys of each command, in its group, and the same under *address*, the connection's own."""
        if not self._services:
            raise ValueError("nothing to serve: decorate a function with service() first")
        keys = [(service_key(command), service.group) for command, service in self._services.items()]
        keys += [(relayed_key(command), service.group) for command, service in self._services.items() if service.twins is not None]
        return [each for key, group in keys for each in (stored_pattern(key, group), address + key)]

    def handle(self, item: Item, now: float) -> bytes:
        """Handle an item of the services' subscription; return the packet to send at once, or no bytes. *now* is as for :meth:`receive`."""
        if isinstance(item, Message):
            is_event = self.watch is not None and self.watch.left(item.key_bytes)
            return b"" if is_event else self.receive(item, now)
        if self.watch is not None and isinstance(item, Reconnected):
            self.watch.reconnected()
        if self.watch is not None and isinstance(item, Gap):
            self.streams.lost()
            self.watch.lost()
        self.note_missing(item.count if isinstance(item, Replaced) else item.lost if isinstance(item, Gap) else 0)
        return b""

    def receive(self, message: Message, now: float) -> bytes:
        """Check *message*, and queue it if it is a permitted request. Return the packet to send if it is not, or no bytes.

        *now* is in seconds since 1970.
        """
        caller = message.sender
        command, service = self.find(message.key_bytes)
        if caller is None:
            return self._drop("without_sender", message, lambda: "the bus named no sender")
        if service is None:
            return self._drop("unknown", message, lambda: "no service for its command")
        envelope = self._read(message, command, caller)
        if envelope is None:
            return b""
        if envelope.cancel or envelope.more:
            self._follow(envelope, (caller.connection, envelope.uid))
            return b""
        self.counts["requests"] += 1
        is_remote = is_relayed(message.key_bytes)
        source = envelope.source if is_remote else 0
        request = self._request(envelope, remote_peer(caller, source) if is_remote else caller, source)
        task = Task(request, service.handler, envelope, envelope.reply_to.encode(), message.key_bytes)
        problem: str | None = None
        if is_remote:
            problem = relaying_problem(command, source, service.twins or Twins(), caller)
        elif not self._is_pending(caller, service.allow):
            problem = calling_problem(command, caller, service.allow)
        return self.judge(task, problem, now)

    def _is_pending(self, caller: Peer, allow: Allow | None) -> bool:
        """Return whether a request waits for the groups of *caller*, or behind one that does."""
        return self.pending is not None and (caller.uid in self.pending or (allow is not None and allow.needs_groups(caller)))

    def decide(self, task: Task, groups: frozenset[int] | None, now: float) -> bytes:
        """Decide about *task*, which was ``pending``, of a member of *groups*, as :meth:`receive` does; None: they cannot be looked up."""
        if self.ended(task):
            return b""
        allow = self._services[task.command].allow
        problem = UNCHECKED if groups is None else calling_problem(task.command, task.request.caller, allow, groups)
        return self._enqueue(task, problem, now)

    def _request(self, envelope: Envelope, caller: Peer, source: int) -> Request:
        """Return the request for a handler."""
        has_end = envelope.expires_seconds > 0 and envelope.sent_at > 0
        expires_at = float(envelope.sent_at + envelope.expires_seconds + 1) if has_end else None
        charged = self.charged(caller.uid)
        return Request(envelope.command, envelope.data, caller, envelope.uid, expires_at, source, envelope.context, _charged=charged)

    def _follow(self, envelope: Envelope, place: tuple[int, str]) -> None:
        """Handle a message about the request at *place*: it is cancelled, or the caller accepts more parts of its response."""
        if not envelope.cancel:
            if not self.streams.grant(place, envelope.command, envelope.window):
                self.counts["stray_grants"] += 1
        elif not (self.is_cancellable and self.live.cancel(place, envelope.command)):
            self.counts["stray_cancels"] += 1

    def _read(self, message: Message, command: str, caller: Peer) -> Envelope | None:
        """Return the envelope in *message* of *caller*, None if it is not a valid message for the service of *command*."""
        try:
            envelope = parse_envelope(message.payload)
        except ProtocolError as error:
            self._drop("malformed", message, error.words.__str__)
            return None
        reply_key = envelope.reply_to.encode()
        if reply_key and not reply_key.startswith(caller.address_bytes):
            self._drop("foreign_ret", message, lambda: f"ret is {printable(reply_key, 64)}, which is not at the address of the caller")
            return None
        if envelope.command != command:
            self._drop("malformed", message, lambda: f"cmd is {printable(envelope.command, 64)}, which is not the command of the key")
            return None
        return envelope

    def find(self, key: bytes) -> tuple[str, Service | None]:
        """Return the command that a request with *key* must name, and its service, None if there is none."""
        command = command_of(key) or ""
        service = self._services.get(command)
        return command, None if service is not None and service.twins is None and is_relayed(key) else service

    def ended(self, task: Task) -> bool:
        """Note that a request has ended; return whether its caller has cancelled it, and therefore gets no response."""
        self.live.remove(task)
        if task.cancelled.is_known:
            self.counts["cancelled"] += 1
        return task.cancelled.is_known

    def failed(self, task: Task, error: Exception) -> bytes:
        """Return the response with the words of a ServiceError, or only the type of another *error*, whose text is for the log."""
        if self.ended(task):
            return b""
        self.counts["failed"] += 1
        if isinstance(error, ServiceError):
            return task.error(str(error))
        if self._is_due(f"{task.request.command} {type(error).__name__}", task.request.caller):
            LOG.error("%s failed for %s", task.request.command, name_of(task.request.caller), exc_info=error)
        return task.error(str(error) if isinstance(error, InvalidResultError) else f"the handler raised {type(error).__name__}")

    def answered(self, task: Task, result: object) -> bytes:
        """Return the response of a handler that has returned *result*."""
        try:
            packet = task.answer(result)
        except TypeError as error:
            return self.failed(task, error)
        if self.ended(task):
            return b""
        self.counts["answered"] += 1
        return packet

    def streamed(self, task: Task, parts: int) -> bytes:
        """Return the packet of the end of a stream, after the last of *parts* parts."""
        if self.ended(task):
            return b""
        self.counts["answered"] += 1
        return task.end(parts + 1)

    def next(self, now: float) -> tuple[Task | None, list[bytes]]:
        """Return the next request to run at *now*, or None, and the responses to requests that have expired."""
        packets: list[bytes] = []
        while (task := self.queue.take()) is not None:
            if task.cancelled.is_known:
                self.ended(task)
                continue
            if not task.envelope.is_expired(now):
                return task, packets
            self.live.remove(task)
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

    def stop(self, taken: Iterable[Task] = ()) -> Iterable[bytes]:
        """Yield the error responses to those *taken* from the queue and to all queued requests, which will not be run."""
        for task in (*taken, *iter(self.queue.take, None), *(() if self.pending is None else self.pending.take_all())):
            if self.ended(task):
                continue
            self.counts["stopped"] += 1
            if packet := task.error("the service stopped before it ran the request"):
                yield packet

    def judge(self, task: Task, problem: str | None, now: float) -> bytes:
        """Queue a well-formed request, unless it is rejected; *problem* says why this caller is not permitted, if so. None: not known."""
        if task.place in self.live or not self._is_new(*task.place):
            # The first request is answered; the caller does not expect a second response.
            self.counts["duplicate"] += 1
            return b""
        if problem is not None:
            return self._enqueue(task, problem, now)
        if self.pending is None or not self.pending.put(task):
            return self._busy(task)
        self.live.add(task)
        return b""

    def _enqueue(self, task: Task, problem: str, now: float) -> bytes:
        """Queue a request, unless *problem* says why it is denied. Return the packet of the error, or no bytes."""
        request = task.request
        if problem:
            self.counts["denied"] += 1
            if self._is_due("denied", request.caller):
                LOG.warning("rejected a call of %s by %s: %s", request.command, name_of(request.caller), problem)
            return task.error(problem)
        if task.envelope.is_expired(now):
            self.counts["expired"] += 1
            return task.error("the request expired before it arrived, and was not run")
        if not self.queue.put(task):
            return self._busy(task)
        self.live.add(task)
        return b""

    def _busy(self, task: Task) -> bytes:
        self.counts["busy"] += 1
        user, twin = task.party
        return task.error(f"busy: {WAITING_PER_USER} requests of {f'twin {twin}' if twin else f'user {user}'} are already queued")

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

    def _drop(self, reason: str, message: Message, words: Callable[[], str]) -> bytes:
        """Count a message that is not a request, or cannot be answered; make *words* and log it only if that is due."""
        self.counts["requests"] += 1
        self.counts[reason] += 1
        if self._is_due(reason, message.sender):
            sender = "an unknown sender" if message.sender is None else name_of(message.sender)
            LOG.warning("discarded a request to %s from %s: %s", printable(message.key_bytes, 128), sender, words())
        return b""

    def _is_due(self, reason: str, peer: Peer | None) -> bool:
        """Return whether to log *reason* again: for each user the 1st, 2nd, 4th, 8th time and so on, so that no user can fill the log."""
        cause = (reason, -1 if peer is None else self.charged(peer.uid))
        if len(self._logged) >= _REMEMBERED_CAUSES and cause not in self._logged:
            self._logged.clear()
        self._logged[cause] += 1
        return self._logged[cause].bit_count() == 1
