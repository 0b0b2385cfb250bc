"""The door for other hosts: ``POST /zbus-remote`` brings requests, ``POST /zbus-reply`` answers. Spec: sbus-relay(8), "Between hosts".

2xx is said only when the message is in Redis. What may go better later is 503, with ``Retry-After``; all else is refused for good.
Only who has signed a request gets a signed response, and without that a sender with a key believes none.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import json
import time
from collections.abc import Mapping

from aiohttp import web

from sbusd.config.relay import RelaySettings
from sbusd.protocol.printable import printable
from sbusd.relay.addresses import Parties
from sbusd.relay.http.authentication import Caller, Gate, RefusedError, Speaker, replayed, response_headers, sent_at
from sbusd.relay.http.connections import PEER_ERRORS, Connection
from sbusd.relay.http.unverified_bytes import Pending, PendingBody
from sbusd.relay.log_messages import FAULT, FORGED, FULL, TOO_LARGE, TOO_SLOW, UNWELCOME, RelayLog
from sbusd.relay.message_model import Message, MessageError
from sbusd.relay.redis import names
from sbusd.relay.redis.link import RedisAwayError
from sbusd.relay.redis.store import Store
from sbusd.systemd.log_record import LogMessage

REMOTE_PATH, REPLY_PATH = "/zbus-remote", "/zbus-reply"

_FULL = {
    "queue": "too many unfetched messages on this host; try again later",
    "open": "too many of your requests are waiting for responses here; try again later",
    "memory": "too many of your requests are remembered here; try again when some have expired",
}
"""What there may be no room for, ``Store.accept``."""


class _Exchange:
    """One request and its response."""

    def __init__(self, caller: Caller) -> None:
        self.caller = caller
        self.speaker: Speaker | None = None
        """Who sent it, once that is known."""


class Door:
    """Takes messages of other hosts, whom the gate names, into the store."""

    def __init__(
        self, twin: int, settings: RelaySettings, store: Store, gate: Gate, journal: RelayLog, *, keys: Mapping[int, bytes]
    ) -> None:
        """*twin* is this host's; *keys* sign what it answers."""
        self._keys = keys
        self._twin = twin
        self._settings = settings
        self._store = store
        self._gate = gate
        self._journal = journal
        self._clock = time.time
        self.parties = Parties(settings.peer_hosts)
        self._pending = Pending(self.parties, settings.pending_bytes, settings.body_bytes)

    def server(self) -> web.Server:
        """Return the server of HTTP, to be given connections."""
        return web.Server(self._serve)

    def refused(self, event: LogMessage, address: str, reason: str, counted: str) -> None:
        """Tell that something was refused, and count it."""
        facts = {"where": "HTTP"} if event is FAULT else {"address": address}
        self._journal.record_limited(event, f"{address} {counted}", reason=reason, **facts)
        task = asyncio.get_running_loop().create_task(self._count(counted))
        _COUNTING.add(task)
        task.add_done_callback(_COUNTING.discard)

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request; whatever happens, with one line of JSON."""
        connection = request.protocol
        if isinstance(connection, Connection):
            connection.request_begins()
        caller = _caller(request)
        exchange = _Exchange(caller)
        close = False
        try:
            status, said = 200, await self._handle(request, exchange)
        except RefusedError as refusal:
            status, said = refusal.status, refusal.words
            close = True  # what is left of the body is not read
            facts = {"twin": request.headers.get("Sbus-Twin", "?")[:12]} if "{twin}" in refusal.event.template else {}
            self._journal.record_limited(
                refusal.event, f"{caller.client[0]} {refusal.counted}", address=caller.client[0], reason=refusal.words, **facts
            )
            await self._count(refusal.counted)
        except RedisAwayError:
            status, said = 503, "Redis is unavailable on this host; try again later"
        except Exception as mistake:  # a peer gets no traceback, and the journal knows
            self._journal.record_limited(FAULT, "door", where="the HTTP server", reason=f"{type(mistake).__name__}: {mistake}")
            status, said = 500, "internal error in this relay; see its journal"
        body = json.dumps({"status" if status == 200 else "error": said}).encode()
        headers = response_headers(self._twin, self._keys, exchange.speaker, status, body)
        if status == 503:
            headers["Retry-After"] = "5"
        response = web.Response(status=status, body=body, headers=headers, content_type="application/json")
        if close:
            response.force_close()
        if isinstance(connection, Connection):
            connection.request_ends()
        return response

    async def _handle(self, request: web.BaseRequest, exchange: _Exchange) -> str:
        """Return what became of the message, or raise RefusedError."""
        caller = exchange.caller
        if caller.path not in {REMOTE_PATH, REPLY_PATH}:
            raise _unwelcome(404, f"not found; the paths are {REMOTE_PATH} and {REPLY_PATH}")
        if request.method != "POST":
            raise _unwelcome(405, "method not allowed; use POST")
        self._gate.precheck(caller)
        if encoding := request.headers.get("Content-Encoding"):
            raise _unwelcome(415, f"Content-Encoding: {printable(encoding, 40)} is not accepted; send the message without encoding")
        with self._pending.body(caller.client[0]) as place:
            body = await self._read(request, place)
            caller = dataclasses.replace(caller, body=body)
            speaker = exchange.speaker = self._gate.identify(caller)
        if isinstance(request.protocol, Connection):
            request.protocol.verified()
        try:
            message = Message.parse(body)
        except MessageError as error:
            raise _unwelcome(400, str(error)) from None
        if speaker.twin is not None and message.src != speaker.twin:
            raise RefusedError(403, f"host {speaker.twin} sent a message with src {message.src}", FORGED, "messages-forged")
        # Whether this is the one who asked, and that the other one was asked, the store decides.
        is_redirected = caller.path == REPLY_PATH and message.is_misaddressed_error
        if is_redirected:
            message = message.with_(dst=(self._twin,))
        if message.dst != (self._twin,):
            raise _unwelcome(421, f"dst is {list(message.dst)}, but this is host {self._twin}")
        if not message.uid:
            raise _unwelcome(400, "uid: missing or empty")
        if caller.path == REMOTE_PATH:
            return await self._accept(caller, message, speaker)
        said = await self._admit(message, speaker)
        if is_redirected and said == "accepted":
            await self._store.count("answers-redirected")
        return said

    async def _read(self, request: web.BaseRequest, place: PendingBody) -> bytes:
        """Return the body, if it is small and comes soon, and *place* has room for it."""
        most = self._settings.body_bytes
        if request.content_length is not None and request.content_length > most:
            raise RefusedError(413, f"the message has {request.content_length} bytes; the limit is {most}", TOO_LARGE, "bodies-too-large")
        body = bytearray()
        try:
            async with asyncio.timeout(self._settings.body_timeout) as limit:
                place.end = functools.partial(_end, limit)
                async for chunk in request.content.iter_any():
                    if len(body) + len(chunk) > most:
                        raise RefusedError(413, f"the message exceeds {most} bytes", TOO_LARGE, "bodies-too-large")
                    if not place.grow(len(chunk)):
                        raise _crowded(place)
                    body += chunk
        except TimeoutError:
            if place.is_evicted:
                raise _crowded(place) from None
            words = f"the message did not arrive within {self._settings.body_timeout:g} s"
            raise RefusedError(408, words, TOO_SLOW, "bodies-too-slow") from None
        except PEER_ERRORS as error:
            words = f"the message ended early or is not valid HTTP: {printable(str(error) or type(error).__name__, 100)}"
            raise RefusedError(400, words, UNWELCOME, "bodies-cut-off") from None
        finally:
            place.end = None
        return bytes(body)

    async def _accept(self, caller: Caller, request: Message, speaker: Speaker) -> str:
        """Take a request."""
        if not request.cmd:
            raise _unwelcome(400, "cmd: missing or empty")
        if request.exp > self._settings.max_expiry:
            raise _unwelcome(400, f"exp: {request.exp} s exceeds the maximum of {self._settings.max_expiry:g} s")
        # Its age by its sender's own clock, where that is known: then it does not matter that clocks differ.
        sent = sent_at(caller)
        age = max(0.0, (self._clock() if sent is None else sent) - request.now) if request.now else 0.0
        left = request.expiry_seconds + 1 - age
        if left <= 0:
            raise _unwelcome(410, f"the request expired {-left:.0f} s ago")
        said = await self._store.accept(request.src, request.with_(ret=names.REPLY), request.digest(), left, speaker.once)
        return self._room(said, names.REMOTE)

    async def _admit(self, reply: Message, speaker: Speaker) -> str:
        """Take an answer, if it is from the twin that was asked."""
        said = await self._store.admit(reply, speaker.once)
        if said == "forged":
            words = f"host {reply.src} responded to request {reply.uid}, which it did not receive"
            raise RefusedError(403, words, FORGED, "answers-forged")
        if said == "unasked":
            raise RefusedError(404, f"no request {reply.uid[:40]} is waiting for a response here", FORGED, "messages-unasked")
        return self._room(said, names.REPLY)

    def _room(self, said: str, queue: str) -> str:
        """Return *said* if the message is in Redis."""
        if said == "replayed":
            raise replayed()
        if said in _FULL:
            raise RefusedError(503, _FULL[said], UNWELCOME if said != "queue" else _full_event(self._journal, queue), "messages-deferred")
        return said

    async def _count(self, counted: str) -> None:
        """Count, if Redis is there: nobody waits for it."""
        try:
            await self._store.count(counted)
        except RedisAwayError:
            return


_COUNTING: set[asyncio.Task[None]] = set()
"""Tasks that count; asyncio itself would forget them."""


def _caller(request: web.BaseRequest) -> Caller:
    """Return who sent *request*, as far as is known yet."""
    transport = request.transport
    client, tls = (transport.get_extra_info(name) for name in ("peername", "ssl_object")) if transport else (None, None)
    certificate = tls.getpeercert() if tls is not None else None
    user = request.protocol.user if isinstance(request.protocol, Connection) else None
    return Caller(request.path, request.headers, (client or ("0.0.0.0", 0))[:2], certificate, user)


def _end(limit: asyncio.Timeout) -> None:
    """Have the body that is read under *limit* end now."""
    if not limit.expired():
        limit.reschedule(0.0)


def _crowded(place: PendingBody) -> RefusedError:
    """Return the refusal of a body that has found no room, or whose room is another's."""
    counted = "bodies-evicted" if place.is_evicted else "bodies-deferred"
    return RefusedError(503, "too many incoming messages; try again later", UNWELCOME, counted)


def _unwelcome(status: int, words: str) -> RefusedError:
    """Return the refusal of what is no message for this relay."""
    return RefusedError(status, words, UNWELCOME, "messages-refused")


def _full_event(journal: RelayLog, queue: str) -> LogMessage:
    """Tell that *queue* is full; return what the refusal itself is told as."""
    journal.record_limited(FULL, queue, queue=queue, reason="no application fetches its messages")
    return UNWELCOME
