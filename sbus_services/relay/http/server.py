"""The HTTP server for remote hosts: ``POST /zbus-remote`` for requests, ``POST /zbus-reply`` for responses.

Spec: sbus-relay(8), "Between hosts". A 2xx status is sent only after the message is in Redis. An error that may pass is 503 with
``Retry-After``; every other error is final. Only a signed request gets a signed response, and a sender with a key trusts no other.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import json
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

from aiohttp import web

from sbus.protocol.printable import printable
from sbus_programs.config.hosts import AddressGroups
from sbus_programs.config.relay import RelaySettings
from sbus_programs.http_connection import PEER_ERRORS
from sbus_programs.systemd.log_records import LimitedLog, LogMessage
from sbus_services.relay.http.authentication import (
    Authentication,
    RejectedRequestError,
    SenderIdentity,
    UnverifiedRequest,
    replayed,
    response_headers,
    sent_at,
)
from sbus_services.relay.http.connections import HttpConnection
from sbus_services.relay.http.limits import UnverifiedBody, UnverifiedBytes
from sbus_services.relay.log_messages import FAULT, FORGED, FULL, REJECTED, SHARED_NUMBER, TOO_LARGE, TOO_SLOW
from sbus_services.relay.message_model import InvalidMessageError, RelayMessage
from sbus_services.relay.redis import names
from sbus_services.relay.redis.client import RedisUnavailableError
from sbus_services.relay.redis.store import MessageStore

SECONDS = 60.0
"""Time within which messages from two addresses must alternate."""

CHANGES = 4
"""Number of changes of the address within that time. A host that moves changes once, and back."""

MAX_HOSTS = 10_000


@dataclass(slots=True)
class _Seen:
    """The addresses of one host: the newest and the one before, and the changes since ``since``."""

    address: str
    before: str
    since: float
    changes: int = 0


class SharedNumbers:
    """The addresses from which verified messages of each host came."""

    def __init__(self) -> None:
        self._seen: OrderedDict[int, _Seen] = OrderedDict()

    def other_address(self, twin: int, address: str, now: float) -> str | None:
        """Note a verified message of *twin* from *address* at *now*, in monotonic seconds.

        Return the other address if messages come from both in turn, else None.
        """
        seen = self._seen.get(twin)
        if seen is None:
            self._seen[twin] = _Seen(address, "", now)
            if len(self._seen) > MAX_HOSTS:
                self._seen.popitem(last=False)
            return None
        if address == seen.address:
            return None
        is_return = address == seen.before and now - seen.since <= SECONDS
        seen.changes, seen.since = (seen.changes + 1, seen.since) if is_return else (1, now)
        seen.address, seen.before = address, seen.address
        if seen.changes < CHANGES:
            return None
        seen.changes, seen.since = 0, now
        return seen.before


REMOTE_PATH, REPLY_PATH = "/zbus-remote", "/zbus-reply"

_FULL = {
    "queue": "too many unfetched messages on this host; try again later",
    "open": "too many of your requests are waiting for responses here; try again later",
    "memory": "too many of your requests are remembered here; try again when some have expired",
}
"""Error texts for the limits that ``MessageStore.accept`` reports."""


class _Exchange:
    """One request and its response."""

    def __init__(self, unverified: UnverifiedRequest) -> None:
        self.unverified = unverified
        self.sender: SenderIdentity | None = None
        """The sender, after authentication."""


class HttpServer:
    """Authenticates messages of remote hosts and stores them."""

    def __init__(
        self,
        twin: int,
        settings: RelaySettings,
        store: MessageStore,
        authentication: Authentication,
        journal: LimitedLog,
        *,
        keys: Mapping[int, bytes],
    ) -> None:
        """*twin* is the number of this host; *keys* sign its responses."""
        self._keys = keys
        self._twin = twin
        self._settings = settings
        self._store = store
        self._authentication = authentication
        self._journal = journal
        self._clock = time.time
        self._shared = SharedNumbers()
        self.groups = AddressGroups(settings.peer_hosts)
        self._unverified_bytes = UnverifiedBytes(self.groups, settings.pending_bytes, settings.body_bytes)

    def server(self) -> web.Server:
        """Return the aiohttp server, which needs connections."""
        return web.Server(self._serve)

    def report_rejection(self, event: LogMessage, address: str, reason: str, counted: str) -> None:
        """Log and count a rejection."""
        facts = {"where": "HTTP"} if event is FAULT else {"address": address}
        self._journal.record_limited(event, f"{address} {counted}", reason=reason, **facts)
        task = asyncio.get_running_loop().create_task(self._count(counted))
        _COUNTING.add(task)
        task.add_done_callback(_COUNTING.discard)

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        """Respond to one request with one line of JSON, whatever happens."""
        connection = request.protocol
        if isinstance(connection, HttpConnection):
            connection.request_begins()
        unverified = _unverified_request(request)
        exchange = _Exchange(unverified)
        close = False
        try:
            status, result = 200, await self._handle(request, exchange)
        except RejectedRequestError as refusal:
            status, result = refusal.status, refusal.words
            close = True  # the rest of the body is not read
            facts = {"twin": request.headers.get("Sbus-Twin", "?")[:12]} if "{twin}" in refusal.event.template else {}
            self._journal.record_limited(
                refusal.event, f"{unverified.client[0]} {refusal.counted}", address=unverified.client[0], reason=refusal.words, **facts
            )
            await self._count(refusal.counted)
        except RedisUnavailableError:
            status, result = 503, "Redis is unavailable on this host; try again later"
        except Exception as mistake:  # the journal gets the error, the remote host does not
            self._journal.record_limited(FAULT, "http server", where="the HTTP server", reason=f"{type(mistake).__name__}: {mistake}")
            status, result = 500, "internal error in this relay; see its journal"
        body = json.dumps({"status" if status == 200 else "error": result}).encode()
        headers = response_headers(self._twin, self._keys, exchange.sender, status, body)
        if status == 503:
            headers["Retry-After"] = "5"
        response = web.Response(status=status, body=body, headers=headers, content_type="application/json")
        if close:
            response.force_close()
        if isinstance(connection, HttpConnection):
            connection.request_ends()
        return response

    async def _handle(self, request: web.BaseRequest, exchange: _Exchange) -> str:
        """Store the message and return the result, or raise RejectedRequestError."""
        unverified = exchange.unverified
        if unverified.path not in {REMOTE_PATH, REPLY_PATH}:
            raise _rejected(404, f"not found; the paths are {REMOTE_PATH} and {REPLY_PATH}")
        if request.method != "POST":
            raise _rejected(405, "method not allowed; use POST")
        self._authentication.precheck(unverified)
        if encoding := request.headers.get("Content-Encoding"):
            raise _rejected(415, f"Content-Encoding: {printable(encoding, 40)} is not accepted; send the message without encoding")
        with self._unverified_bytes.body(unverified.client[0]) as incoming:
            body = await self._read(request, incoming)
            unverified = dataclasses.replace(unverified, body=body)
            sender = exchange.sender = self._authentication.identify(unverified)
        if isinstance(request.protocol, HttpConnection):
            request.protocol.mark_verified()
        try:
            message = RelayMessage.parse(body)
        except InvalidMessageError as error:
            raise _rejected(400, str(error)) from None
        if sender.twin is not None and message.src != sender.twin:
            raise RejectedRequestError(403, f"host {sender.twin} sent a message with src {message.src}", FORGED, "messages-forged")
        # The store checks that this host sent the request, and to the sender of the response.
        is_redirected = unverified.path == REPLY_PATH and message.is_misaddressed_error
        if is_redirected:
            message = message.with_(dst=(self._twin,))
        self._notice_sharing(message.src, unverified.client[0])
        if message.dst != (self._twin,):
            raise _rejected(421, f"dst is {list(message.dst)}, but this is host {self._twin}")
        if not message.uid:
            raise _rejected(400, "uid: missing or empty")
        if unverified.path == REMOTE_PATH:
            return await self._accept(unverified, message, sender)
        result = await self._admit(message, sender)
        if is_redirected and result == "accepted":
            await self._store.count("answers-redirected")
        return result

    def _notice_sharing(self, twin: int, address: str) -> None:
        """Log that two hosts have the number of the verified host *twin*, if its messages come from two addresses in turn."""
        if (other := self._shared.other_address(twin, address, time.monotonic())) is not None:
            self._journal.record_limited(SHARED_NUMBER, str(twin), twin=twin, address=address, other=other)

    async def _read(self, request: web.BaseRequest, incoming: UnverifiedBody) -> bytes:
        """Return the body if it is within the size limit and the timeout, and *incoming* has room for it."""
        most = self._settings.body_bytes
        if request.content_length is not None and request.content_length > most:
            raise RejectedRequestError(
                413, f"the message has {request.content_length} bytes; the limit is {most}", TOO_LARGE, "bodies-too-large"
            )
        body = bytearray()
        try:
            async with asyncio.timeout(self._settings.body_timeout) as limit:
                incoming.end = functools.partial(_end, limit)
                async for chunk in request.content.iter_any():
                    if len(body) + len(chunk) > most:
                        raise RejectedRequestError(413, f"the message exceeds {most} bytes", TOO_LARGE, "bodies-too-large")
                    if not incoming.grow(len(chunk)):
                        raise _too_many(incoming)
                    body += chunk
        except TimeoutError:
            if incoming.is_evicted:
                raise _too_many(incoming) from None
            words = f"the message did not arrive within {self._settings.body_timeout:g} s"
            raise RejectedRequestError(408, words, TOO_SLOW, "bodies-too-slow") from None
        except PEER_ERRORS as error:
            words = f"the message ended early or is not valid HTTP: {printable(str(error) or type(error).__name__, 100)}"
            raise RejectedRequestError(400, words, REJECTED, "bodies-cut-off") from None
        finally:
            incoming.end = None
        return bytes(body)

    async def _accept(self, unverified: UnverifiedRequest, request: RelayMessage, sender: SenderIdentity) -> str:
        """Store a request."""
        if not request.cmd:
            raise _rejected(400, "cmd: missing or empty")
        if request.exp > self._settings.max_expiry:
            raise _rejected(400, f"exp: {request.exp} s exceeds the maximum of {self._settings.max_expiry:g} s")
        # Compute the age with the sender's clock if possible, so that different clocks do not matter.
        sent = sent_at(unverified)
        age = max(0.0, (self._clock() if sent is None else sent) - request.now) if request.now else 0.0
        left = request.expiry_seconds + 1 - age
        if left <= 0:
            raise _rejected(410, f"the request expired {-left:.0f} s ago")
        result = await self._store.accept(
            request.src, request.with_(ret=names.REPLY, ref=request.uid), request.digest(), left, sender.nonce
        )
        return self._room(result, names.REMOTE)

    async def _admit(self, reply: RelayMessage, sender: SenderIdentity) -> str:
        """Store a response, if it comes from the host that received the request."""
        result = await self._store.admit(reply, sender.nonce)
        if result == "forged":
            words = f"host {reply.src} responded to request {reply.uid}, which it did not receive"
            raise RejectedRequestError(403, words, FORGED, "answers-forged")
        if result == "unasked":
            raise RejectedRequestError(404, f"no request {reply.uid[:40]} is waiting for a response here", FORGED, "messages-unasked")
        return self._room(result, names.REPLY)

    def _room(self, result: str, queue: str) -> str:
        """Return *result* if the message is in Redis, else raise."""
        if result == "replayed":
            raise replayed()
        if result in _FULL:
            raise RejectedRequestError(
                503, _FULL[result], REJECTED if result != "queue" else _full_event(self._journal, queue), "messages-deferred"
            )
        return result

    async def _count(self, counted: str) -> None:
        """Count, unless Redis is unavailable."""
        try:
            await self._store.count(counted)
        except RedisUnavailableError:
            return


_COUNTING: set[asyncio.Task[None]] = set()
"""Tasks that count, because asyncio keeps only weak references."""


def _unverified_request(request: web.BaseRequest) -> UnverifiedRequest:
    """Return *request* with what is known about its sender."""
    transport = request.transport
    client, tls = (transport.get_extra_info(name) for name in ("peername", "ssl_object")) if transport else (None, None)
    certificate = tls.getpeercert() if tls is not None else None
    user = request.protocol.user if isinstance(request.protocol, HttpConnection) else None
    return UnverifiedRequest(request.path, request.headers, (client or ("0.0.0.0", 0))[:2], certificate, user)


def _end(limit: asyncio.Timeout) -> None:
    """End the reading of the body under *limit* now."""
    if not limit.expired():
        limit.reschedule(0.0)


def _too_many(incoming: UnverifiedBody) -> RejectedRequestError:
    """Return the rejection of a body that has no room, or whose room another body has taken."""
    counted = "bodies-evicted" if incoming.is_evicted else "bodies-deferred"
    return RejectedRequestError(503, "too many incoming messages; try again later", REJECTED, counted)


def _rejected(status: int, words: str) -> RejectedRequestError:
    """Return the rejection of an invalid message."""
    return RejectedRequestError(status, words, REJECTED, "messages-refused")


def _full_event(journal: LimitedLog, queue: str) -> LogMessage:
    """Log that *queue* is full; return the event for the rejection itself."""
    journal.record_limited(FULL, queue, queue=queue, reason="no application fetches its messages")
    return REJECTED
