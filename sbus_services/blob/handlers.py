"""What each request does. Nothing here waits for a client; only a question to the bus takes time. Spec: sbus-blob(8), "Requests"."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from sbus.protocol.credentials import UNKNOWN_ID, Credentials
from sbus_programs.config.blob import BlobSettings
from sbus_programs.config.users import ChargedUsers
from sbus_programs.systemd.log_records import LimitedLog
from sbus_services.blob import log_messages
from sbus_services.blob.bus_calls import BusConnections, LinkCalls
from sbus_services.blob.descriptors import Closer, DescriptorKind, check_blob, open_again
from sbus_services.blob.registry import Blob, End, Registry, User, Users
from sbus_services.blob.remote import Pulled, RemoteBlobs
from sbus_services.blob.requests import Cause, Drop, Get, List, Put, Refusal, Request, Stats

PAGE = 100
"""Blobs in a response to ``list``."""


@dataclass(frozen=True, slots=True)
class Response:
    """A response with its descriptor. ``done`` is called with whether it was sent; it closes the descriptor."""

    members: dict[str, object]
    fd: int | None = None
    done: Callable[[bool], object] = bool


class Handlers:
    """The requests of all clients. *has_room* returns whether the service may have one more descriptor; *clock* counts seconds."""

    Waiting = Callable[[], Awaitable[Response]]
    """Makes the response when the bus has answered."""

    def __init__(
        self,
        settings: BlobSettings,
        bus: str,
        *,
        closer: Closer,
        log: LimitedLog,
        has_room: Callable[[], bool],
        clock: Callable[[], float],
        charged: ChargedUsers,
    ) -> None:
        self.users = Users(settings.quotas, clock, charged)
        self.registry = Registry(clock)
        self._settings = settings
        self._bus = BusConnections(bus)
        self._host = settings.host or os.uname().nodename
        # Programs in C write the name of the system into their messages.
        self._own_names = {"", self._host, os.uname().nodename}
        self.remote = RemoteBlobs(
            LinkCalls(bus),
            self.users,
            max_bytes=settings.max_pulled,
            drop=lambda user, fd: closer.add(user.uid, DescriptorKind.MEMORY, fd),
            has_room=has_room,
        )
        self._closer = closer
        self._log = log
        self._has_room = has_room
        self._clock = clock
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def handle(self, connection: object, peer: Credentials, request: Request, fd: int | None) -> Response | Waiting:
        """Return the response to *request* of *peer*, or what makes it. Raises Refusal; then the caller closes *fd*."""
        if fd is not None and not isinstance(request, Put):
            raise Refusal(Cause.DESCRIPTORS, "only put has a descriptor")
        match request:
            case Put():
                if fd is None:
                    raise Refusal(Cause.INVALID, "put requires a descriptor in the packet")
                return self._put(connection, peer, request, fd)
            case Get():
                return self._get(peer, request)
            case Drop():
                self.end(self.registry.own(request.ticket, peer.uid), End.DROPPED)
                return Response({"dropped": request.ticket})
            case List():
                return self._list(peer.uid, request.after)
            case Stats():
                return Response(self._stats(peer.uid))

    def end(self, blob: Blob, why: End) -> None:
        """End *blob*; a thread closes its descriptor, because that frees its memory."""
        if not self.registry.end(blob, why):
            return
        self._timers.pop(blob.ticket).cancel()
        user = blob.user
        user.blobs -= 1
        user.bytes -= blob.size
        self.users.count(user, why.name.lower())
        self._closer.add(user.uid, DescriptorKind.FOREIGN if blob.is_any else DescriptorKind.MEMORY, blob.fd)

    def check_descriptors(self) -> None:
        """Raise Refusal unless the service may have one more descriptor."""
        if not self._has_room():
            raise Refusal(Cause.FULL, "the service has no descriptor left; try again later")

    async def close(self) -> None:
        """End all blobs, and the connection to the bus."""
        for blob in list(self.registry):
            self.end(blob, End.DROPPED)
        await self.remote.close()
        await self._bus.close()

    def _put(self, connection: object, peer: Credentials, request: Put, fd: int) -> Response:
        """Keep *fd*."""
        user = self.users.of(peer.uid)
        if request.is_any:
            self._check_right(peer)
            self._check_room(user, 0)
            kept = fd
        else:
            check_blob(fd, request.size, allow_sparse=self._settings.allow_sparse)
            self._check_room(user, request.size)
            kept = open_again(fd)
        until = self._clock() + request.expire
        owned_by = None if request.keep else connection
        blob = Blob(kept, request.size, request.type, peer, user, request.recipient, request.uses, until, request.is_any, owned_by)
        self.registry.add(blob)
        user.blobs += 1
        user.bytes += blob.size
        self.users.count(user, "put")
        self._timers[blob.ticket] = asyncio.get_running_loop().call_later(request.expire, self.end, blob, End.EXPIRED)
        if kept != fd:
            # A memfd, and not the last descriptor of it: this does not block.
            os.close(fd)
        return Response({"ticket": blob.ticket, "size": blob.size, "expire": request.expire, "host": self._host})

    def _check_room(self, user: User, size: int) -> None:
        """Raise Refusal if *user* may have no further blob of *size* bytes, or the service no further descriptor."""
        self.users.check_blob(user, size)
        self.check_descriptors()

    def _check_right(self, peer: Credentials) -> None:
        """Raise Refusal unless *peer* may pass descriptors of any kind, and take them."""
        passing = self._settings.rights.passing
        if peer.uid not in passing.users and not {peer.gid, *peer.groups}.intersection(passing.groups):
            raise Refusal(Cause.NO_RIGHT, f"user {peer.uid} does not have the right pass; see blob.toml(5)")

    def _get(self, peer: Credentials, request: Get) -> Response | Waiting:
        """Return the descriptor of a ticket."""
        if request.host not in self._own_names:
            return self._get_remote(peer, request)
        blob = self._find(peer, request)
        if blob.recipient.kind != "conn":
            if not _may_get(blob, peer):
                raise Refusal(Cause.NOT_FOR_USER, f"the blob is for another user: {blob.recipient}")
            return self._given(blob, peer)
        user = self.users.of(peer.uid)
        self.users.check_request(user)

        async def ask() -> Response:
            if not await self._bus.has(blob.recipient.number, peer.uid, peer.pid):
                raise Refusal(Cause.NOT_FOR_USER, f"the blob is for connection {blob.recipient.number}, which this process does not have")
            # It may have ended meanwhile.
            return self._given(self._find(peer, request), peer)

        return ask

    def _get_remote(self, peer: Credentials, request: Get) -> Waiting:
        """Return the descriptor of a blob of another host, when it is here. Raises Refusal."""
        user = self.users.of(peer.uid)
        self.users.check_request(user)

        async def pull() -> Response:
            # An unknown ticket is not counted as a guess: messages of another host can refer to what it does not have.
            return self._pulled(await self.remote.get(user, request.host.partition(".")[0], request.ticket), user)

        return pull

    def _pulled(self, blob: Pulled, user: User) -> Response:
        """Return the response with a blob of another host, whose owner is not a user of this one."""
        fd = open_again(blob.fd)

        def done(is_sent: bool) -> None:
            os.close(fd)  # not the last descriptor of the memfd: this does not block
            if is_sent:
                self.users.count(user, "get")

        unknown = {"uid": UNKNOWN_ID, "gid": UNKNOWN_ID, "pid": UNKNOWN_ID}
        return Response({"size": blob.size, "type": blob.type, "from": unknown, "host": blob.host}, fd, done)

    def _find(self, peer: Credentials, request: Get) -> Blob:
        """Return the blob that *request* names. Raises Refusal."""
        user = self.users.of(peer.uid)
        self.users.check_guesses(user)
        try:
            blob = self.registry.find(request.ticket)
        except Refusal as refusal:
            if refusal.cause is Cause.UNKNOWN_TICKET:
                self.users.count_guess(user)
            raise
        if blob.is_any != request.is_any:
            raise Refusal(Cause.OTHER_KIND, f'the ticket is for a descriptor of kind "{"any" if blob.is_any else "blob"}"')
        if blob.is_any:
            self._check_right(peer)
        return blob

    def _given(self, blob: Blob, peer: Credentials) -> Response:
        """Return the response with the descriptor of *blob*; sending it is a use."""
        if blob.is_any:
            fd = blob.fd
        else:
            try:
                fd = open_again(blob.fd)
            except Refusal:
                self.end(blob, End.UNREADABLE)
                raise

        def done(is_sent: bool) -> None:
            if not blob.is_any:
                # Not the last descriptor of the memfd: this does not block.
                os.close(fd)
            if is_sent:
                self._count_use(blob, peer)

        origin = {"uid": blob.owner.uid, "gid": blob.owner.gid, "pid": blob.owner.pid}
        left = round(max(0.0, blob.until - self._clock()), 3)
        return Response({"size": blob.size, "type": blob.type, "from": origin, "expire": left}, fd, done)

    def _count_use(self, blob: Blob, peer: Credentials) -> None:
        """Count a use of *blob* by *peer*, and end it with the last one."""
        self.users.count(self.users.of(peer.uid), "get")
        if blob.is_any:
            self._log.record_limited(
                log_messages.PASSED, f"{blob.user.uid} {self.users.of(peer.uid).uid}", user=peer.uid, owner=blob.owner.uid
            )
        if blob.uses is not None:
            blob.uses -= 1
            if blob.uses <= 0:
                self.end(blob, End.USED)

    def _list(self, uid: int, after: str) -> Response:
        """Return a page of the blobs of the user *uid*."""
        blobs = self.registry.of_user(uid, after)
        now = self._clock()
        listed = [
            {
                "ticket": blob.ticket,
                "kind": "any" if blob.is_any else "blob",
                "size": blob.size,
                "type": blob.type,
                "for": str(blob.recipient),
                "uses": blob.uses,
                "expire": round(max(0.0, blob.until - now), 3),
                "keep": blob.connection is None,
            }
            for blob in blobs[:PAGE]
        ]
        return Response({"blobs": listed, "next": blobs[PAGE - 1].ticket if len(blobs) > PAGE else None})

    def _stats(self, uid: int) -> dict[str, object]:
        """Return what the user that is charged for *uid* has and has done; for root and the user of the service also of all users."""
        user, quotas = self.users.of(uid), self._settings.quotas
        stats: dict[str, object] = {
            "user": uid,
            "usage": {
                "blobs": user.blobs,
                "bytes": user.bytes,
                "connections": user.connections,
                "requests": user.requests,
                "closes": self._closer.pending(user.uid),
            },
            "limits": {
                "blobs": quotas.blobs,
                "bytes": quotas.bytes,
                "connections": quotas.connections,
                "requests": quotas.requests,
                "closes": quotas.closes,
            },
            "counters": dict(user.counters),
        }
        if uid in (0, os.geteuid()):
            blobs, size = (sum(getattr(each, name) for each in self.users) for name in ("blobs", "bytes"))
            connections = sum(each.connections for each in self.users)
            refused = {f"refused-{name}": count for name, count in self.users.refused.items()}
            pulled = {"pulled": len(self.remote), "pulled-bytes": self.remote.bytes}
            stats["total"] = {"blobs": blobs, "bytes": size, **pulled, "connections": connections, "closes": self._closer.total, **refused}
        return stats


def _may_get(blob: Blob, peer: Credentials) -> bool:
    """Return whether *peer* is the recipient of *blob*, which is not a connection."""
    number = blob.recipient.number
    match blob.recipient.kind:
        case "uid":
            return peer.uid == number
        case "gid":
            return number == peer.gid or number in peer.groups
        case _:
            return True
