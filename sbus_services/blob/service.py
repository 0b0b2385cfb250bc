"""Serves all connections on one thread, which never waits for a client. Spec: sbus-blob(8).

A foreign descriptor is a trap for the thread that closes it. So the thread that serves receives every descriptor that a packet can have
(:mod:`sbus_services.blob.connection`), looks only whether it is a sealed memfd, and gives all others to
:mod:`sbus_services.blob.descriptors`, which also closes connections: their unread packets can have descriptors.

A request is received only from a client that has read the response before it. So each connection has at most one descriptor on its way, and
none after its end. The kernel limits the descriptors on their way by user, and for it all of them are those of this service.

A connection must be accepted to be refused, and by then it can have descriptors. So while many of them wait to be closed, the kernel
refuses descriptors on connections that are not accepted yet, and those in the queue of the listening socket have room.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable

from sbus.protocol.blobs import MAX_DESCRIPTORS, encode_object
from sbus.protocol.credentials import Credentials
from sbus_programs.config.blob import BlobSettings
from sbus_programs.config.users import ChargedUsers
from sbus_programs.exhaustion import exhausted
from sbus_programs.passed_descriptors import let_send_descriptors, unread_descriptors
from sbus_programs.systemd.log_records import LimitedLog
from sbus_services.blob import connection as wire
from sbus_services.blob import log_messages
from sbus_services.blob.descriptors import HANG_SECONDS, UNKNOWN, Closer, DescriptorKind, hang_up, is_sealed_memory
from sbus_services.blob.handlers import Handlers, Response
from sbus_services.blob.registry import End, User
from sbus_services.blob.requests import FATAL, Cause, Refusal, parse_request

ACCEPTS = 16
"""Connections that are accepted before others are served."""

SPARE_DESCRIPTORS = 3 * MAX_DESCRIPTORS
"""Descriptors that stay free: a packet must always find room for all of its own."""

REFUSING_PART, BACKLOG_PART, PAUSING_PART = 8, 4, 2
"""Parts of the room for descriptors. With an eighth waiting to be closed, the kernel refuses those of new clients; connections that are not
accepted yet, which can have some, are a quarter at most; with half of it, none is accepted. Linux before 6.16 cannot refuse them."""

LEAST_DESCRIPTORS = SPARE_DESCRIPTORS + max(REFUSING_PART, BACKLOG_PART, PAUSING_PART)
"""With fewer descriptors, a part of the room is empty, and the service accepts no connection."""

PAUSE_SECONDS = 0.02
"""Pause before connections are accepted again if descriptors are scarce."""

UNREAD_SECONDS = 0.02
"""Interval at which the service looks whether a client has read its response."""

PACE_SECONDS = 0.01
"""Pause of a connection after a question to the bus, which limits the control messages of this service."""

TICK_SECONDS = 5.0
"""Interval of the sign of life, and of forgetting what is over."""


class Client:
    """One connection."""

    def __init__(self, sock: socket.socket, credentials: Credentials, user: User) -> None:
        self.socket = sock
        self.credentials = credentials
        self.user = user
        self.is_reading = False
        self.task: asyncio.Task[None] | None = None
        """The request that waits for the bus."""


class BlobService:
    """The service on the listening socket *listener*, for the bus at *bus*. *max_descriptors* is RLIMIT_NOFILE, at least
    LEAST_DESCRIPTORS; *charged* says whose quotas a client takes."""

    def __init__(
        self, listener: socket.socket, settings: BlobSettings, bus: str, log: LimitedLog, max_descriptors: int, *, charged: ChargedUsers
    ) -> None:
        self._listener = listener
        self._log = log
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._closer = Closer(self._closed)
        self._clients: set[Client] = set()
        self._suspended: dict[int, set[Client]] = {}
        """Clients of users with too many descriptors to close, by uid."""
        self._room = max_descriptors - SPARE_DESCRIPTORS
        self._is_refusing = False
        """Whether the kernel refuses descriptors on connections that are not accepted yet."""
        self._handlers = Handlers(
            settings, bus, closer=self._closer, log=log, has_room=self._has_room, clock=time.monotonic, charged=charged
        )
        self._users = self._handlers.users
        self.dropped = 0
        """Blobs that ended with the service."""

    async def run(self, alive: Callable[[str], None]) -> None:
        """Serve until cancelled; *alive* is called with a status again and again."""
        self._listener.setblocking(False)
        self._listener.listen(self._room // BACKLOG_PART)
        let_send_descriptors(self._listener, is_allowed=True)  # a process before may have refused them
        self._loop.add_reader(self._listener, self._accept)
        try:
            while True:
                alive(f"blobs: {len(self._handlers.registry)}, connections: {len(self._clients)}")
                await asyncio.sleep(TICK_SECONDS)
                self._users.forget_idle()
                self._handlers.registry.forget_ended()
        finally:
            self._loop.remove_reader(self._listener)
            self.dropped = len(self._handlers.registry)
            for client in list(self._clients):
                self._end(client)
            await self._handlers.close()

    @property
    def _descriptors(self) -> int:
        """The number of descriptors that clients have caused."""
        return len(self._clients) + len(self._handlers.registry) + 2 * len(self._handlers.remote) + self._closer.total

    def _has_room(self) -> bool:
        """Return whether the service may have one more descriptor."""
        return self._descriptors < self._room

    @property
    def _is_full(self) -> bool:
        """Whether nothing may be accepted or received, because there may be no room for its descriptors."""
        return self._descriptors >= self._room + MAX_DESCRIPTORS

    @property
    def _has_many_closes(self) -> bool:
        """Whether descriptors that can block take half of the room. A refused connection can add some, so that blobs had no room."""
        return self._closer.foreign >= self._room // PAUSING_PART

    def _choose_refusing(self) -> None:
        """Let the kernel refuse descriptors on connections that are not accepted yet if many wait to be closed, or stop that."""
        is_refusing = self._closer.foreign >= self._room // REFUSING_PART
        if is_refusing != self._is_refusing:
            self._is_refusing = is_refusing
            let_send_descriptors(self._listener, is_allowed=not is_refusing)

    def _accept(self) -> None:
        """Accept connections that wait."""
        for _ in range(ACCEPTS):
            self._choose_refusing()
            if self._is_full or self._has_many_closes:
                self._pause_accepting(self._closing_reason() if self._has_many_closes else "")
                return
            try:
                sock, _ = self._listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                self._pause_accepting(exhausted(error) or f"accept: {error.strerror}")  # the socket stays readable
                return
            self._admit(sock)

    def _pause_accepting(self, reason: str) -> None:
        """Accept no connections for a moment, and log the *reason*, if there is one."""
        if reason:
            self._log.record_limited(log_messages.PAUSED, "", reason=reason)
        self._loop.remove_reader(self._listener)
        self._loop.call_later(PAUSE_SECONDS, self._loop.add_reader, self._listener, self._accept)

    def _closing_reason(self) -> str:
        """Return why no connection is accepted, and because of whom most of all."""
        with contextlib.suppress(ValueError):  # the last one has just been closed
            user, most = self._closer.largest()
            return f"{self._closer.foreign} descriptors of clients wait to be closed, {most} of them of user {user}"
        return ""

    def _admit(self, sock: socket.socket) -> None:
        """Serve a new connection, or refuse it."""
        try:
            credentials = wire.credentials_of(sock)
        except OSError as error:
            self._log.record_limited(log_messages.FAULT, "credentials", reason=f"peer credentials: {error.strerror}")
            hang_up(sock, UNKNOWN, self._closer)
            return
        user = self._users.of(credentials.uid)
        client = Client(sock, credentials, user)
        try:
            self._handlers.check_descriptors()
            self._check_closes(user)
            self._users.check_connection(user)
        except Refusal as refusal:
            self._count(client, refusal)
            self._send(client, _refused(refusal))
            hang_up(sock, user.uid, self._closer)
            return
        sock.setblocking(False)
        let_send_descriptors(sock, is_allowed=True)
        user.connections += 1
        self._clients.add(client)
        self._read_on(client)

    def _read_on(self, client: Client) -> None:
        """Read requests of *client*, unless its user has too many descriptors to close."""
        if client not in self._clients or client.is_reading or client.task is not None:
            return
        uid = client.user.uid
        if self._must_wait(uid):
            self._suspended.setdefault(uid, set()).add(client)
            self._log.record_limited(log_messages.CLOSES, str(uid), user=uid, pending=self._closer.pending(uid))
            # The last descriptor may have been closed before the client was in the set.
            if not self._must_wait(uid):
                self._loop.call_soon(self._resume, uid)
            return
        client.is_reading = True
        self._loop.add_reader(client.socket, self._serve, client)

    def _must_wait(self, uid: int) -> bool:
        """Return whether no descriptor is taken from the user *uid*, because those from before are not closed yet."""
        return self._closer.pending(uid) >= self._users.quotas.closes or self._closer.is_hanging(uid)

    def _check_closes(self, user: User) -> None:
        """Raise Refusal if a close of *user* hangs, or if many of all users wait, and *user* has too many of them."""
        if self._closer.is_hanging(user.uid):
            reason = f"a descriptor that user {user.uid} has sent has not been closed for {HANG_SECONDS:g} s"
            raise Refusal(Cause.HANGING, f"{reason}; end the file server that it waits for")
        if self._is_refusing and (pending := self._closer.pending(user.uid)) >= self._users.quotas.closes:
            reason = f"{pending} descriptors of user {user.uid}, or connections with unread ones, wait to be closed"
            raise Refusal(Cause.HANGING, f"{reason}; try again later")

    def _check_share(self, client: Client) -> None:
        """Raise Refusal if *client* has sent several descriptors while those of hanging users take half of the room."""
        if self._has_many_closes and unread_descriptors(client.socket) not in (0, 1):
            raise Refusal(Cause.FULL, "the service has no room for several descriptors; send one request at a time")

    def _pause(self, client: Client) -> None:
        """Read no requests of *client*."""
        if client.is_reading:
            client.is_reading = False
            self._loop.remove_reader(client.socket)

    def _closed(self, uid: int) -> None:
        """Continue with requests of the user *uid*; called by a thread when a descriptor is closed."""
        try:
            self._loop.call_soon_threadsafe(self._resume, uid)
        except RuntimeError:  # the loop has been closed
            return

    def _resume(self, uid: int) -> None:
        """Read from the suspended clients of the user *uid* again, if there is room."""
        if uid in self._suspended and not self._must_wait(uid):
            for client in self._suspended.pop(uid):
                self._read_on(client)

    def _serve(self, client: Client) -> None:
        """Receive one request, and respond to it."""
        if self._must_wait(client.user.uid):
            self._pause(client)
            self._read_on(client)
            return
        if self._is_full or wire.has_unread(client.socket):
            self._pause(client)
            self._loop.call_later(UNREAD_SECONDS, self._read_on, client)
            return
        try:
            self._check_share(client)
            packet = wire.receive(client.socket)
        except Refusal as refusal:
            # What it has sent is not received, so it must end.
            self._refuse(client, refusal)
            self._end(client)
            return
        except BlockingIOError:
            return
        except OSError:
            packet = None
        if packet is None:
            self._end(client)
        else:
            self._handle(client, packet)

    def _handle(self, client: Client, packet: wire.Packet) -> None:
        """Respond to the request in *packet*."""
        try:
            request = parse_request(packet.data, self._settings.max_expire)
            response = self._handlers.handle(client, client.credentials, request, packet.one_descriptor())
        except Refusal as refusal:
            self._discard(client.user, packet.fds)
            self._refuse(client, refusal)
            return
        except Exception as error:  # a defect ends one connection, not the service
            self._discard(client.user, packet.fds)
            self._log.record_limited(log_messages.FAULT, type(error).__name__, reason=f"{type(error).__name__}: {error}")
            self._end(client)
            return
        if isinstance(response, Response):
            self._respond(client, response)
        else:
            self._pause(client)
            client.user.requests += 1
            client.task = self._loop.create_task(self._respond_later(client, response))
            client.task.add_done_callback(lambda _: self._finish(client))

    def _discard(self, user: User, fds: tuple[int, ...]) -> None:
        """Close *fds* that *user* has sent."""
        for fd in fds:
            self._closer.add(user.uid, DescriptorKind.MEMORY if is_sealed_memory(fd) else DescriptorKind.FOREIGN, fd)

    async def _respond_later(self, client: Client, waiting: Handlers.Waiting) -> None:
        """Respond when the bus has answered."""
        try:
            self._respond(client, await waiting())
        except Refusal as refusal:
            self._refuse(client, refusal)
        except Exception as error:  # as above
            self._log.record_limited(log_messages.FAULT, type(error).__name__, reason=f"{type(error).__name__}: {error}")
            self._end(client)

    def _finish(self, client: Client) -> None:
        """Continue with the next request of *client*."""
        client.user.requests -= 1
        self._loop.call_later(PACE_SECONDS, self._continue, client)

    def _continue(self, client: Client) -> None:
        """Read requests of *client* again."""
        client.task = None
        self._read_on(client)

    def _respond(self, client: Client, response: Response) -> None:
        """Send *response*, and close what it was sent with."""
        is_sent = client in self._clients and self._send(client, encode_object(response.members), response.fd)
        response.done(is_sent)
        if not is_sent:
            self._end(client)

    def _refuse(self, client: Client, refusal: Refusal) -> None:
        """Send *refusal*, and end the connection if the client violates the protocol."""
        self._count(client, refusal)
        if not (client in self._clients and self._send(client, _refused(refusal))) or refusal.cause in FATAL:
            self._end(client)

    def _count(self, client: Client, refusal: Refusal) -> None:
        """Count and log *refusal*."""
        uid, cause = client.user.uid, refusal.cause
        self._users.count_refusal(client.user, cause)
        who = f"{uid} {cause.counter}"
        if cause in (Cause.QUOTA_BLOBS, Cause.QUOTA_BYTES, Cause.QUOTA_CONNECTIONS, Cause.QUOTA_REQUESTS):
            self._log.record_limited(log_messages.QUOTA, who, reason=refusal.reason)
        elif cause in (Cause.NOT_SEALED, Cause.HUGE_PAGES, Cause.SPARSE, Cause.SIZE, Cause.UNREADABLE):
            self._log.record_limited(log_messages.REJECTED, who, user=uid, reason=refusal.reason)
        elif cause is Cause.GUESSING:
            self._log.record_limited(log_messages.GUESSING, who, user=uid)
        elif cause is Cause.FULL:
            self._log.record_limited(log_messages.FULL, "")
        elif cause is Cause.NO_BUS:
            self._log.record_limited(log_messages.NO_BUS, "", reason=refusal.reason)
        elif cause in FATAL:
            self._log.record_limited(log_messages.MALFORMED, who, user=uid, reason=refusal.reason)

    def _send(self, client: Client, data: bytes, fd: int | None = None) -> bool:
        """Send a packet to *client*; return whether that succeeded."""
        try:
            wire.send(client.socket, data, fd)
        except OSError:
            return False
        return True

    def _end(self, client: Client) -> None:
        """End the connection of *client*, and its blobs."""
        if client not in self._clients:
            return
        self._pause(client)
        self._clients.discard(client)
        uid = client.user.uid
        self._suspended.get(uid, set()).discard(client)
        if not self._suspended.get(uid, True):
            del self._suspended[uid]
        if client.task is not None and client.task is not asyncio.current_task(self._loop):
            client.task.cancel()
        client.user.connections -= 1
        for blob in self._handlers.registry.of_connection(client.credentials.uid, client):
            self._handlers.end(blob, End.DISCONNECTED)
        hang_up(client.socket, uid, self._closer)


def _refused(refusal: Refusal) -> bytes:
    """Return the response for *refusal*."""
    return encode_object({"error": refusal.cause.code, "cause": refusal.cause.counter, "reason": refusal.reason})
