"""Blobs between hosts: those of this host, read in chunks, and `link/blob`, by which sbus-blob pulls others.

Spec: sbus-link(8), "BLOBS" and "ON THE BUS".
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from sbus import SbusError
from sbus.asyncio.look_ups import UNANSWERED
from sbus.asyncio.named_user import NamedUser
from sbus.asyncio.service_bus import ServiceBus
from sbus.blobs import Reply
from sbus.errors import BlobRefused, NoBlobService, ServiceError, TimedOut
from sbus.protocol.blobs import CHUNK_BYTES, F_GET_SEALS, MAX_EXPIRE, SEALS, is_media_type, is_ticket
from sbus.protocol.errors import ProtocolError
from sbus.protocol.framed_data import framed_data, parse_framed_data
from sbus.rpc.requests import Request
from sbus_programs.backoff import Attempts
from sbus_programs.config.link import is_name
from sbus_services.link.blob_tickets import EVERY_HOST, BlobTickets, host_label
from sbus_services.link.exchange import ExchangeError

COMMAND = "link/blob"

BLOB_USER = "sbus-blob"
"""The user of sbus-blob.service, which may call, besides root and the user of the link."""

ASKS = ("open", "read", "digest")


class Asking(Protocol):
    """Asks other hosts."""

    async def ask(self, host: str, question: dict[str, object]) -> tuple[dict[str, Any], list[bytes]]:
        """Return the answer of *host*. Raises ExchangeError."""


class BlobCalls:
    """Serves the bus at *address*, as far as *tickets* permit. *asking* asks other hosts; *charged* returns the user that is charged
    for a uid."""

    def __init__(self, address: str, tickets: BlobTickets, asking: Asking, charged: Callable[[int], int]) -> None:
        self.bytes_in = 0
        self._address = address
        self._tickets = tickets
        self._asking = asking
        self._charged = charged
        self._blob_user = NamedUser(BLOB_USER)

    async def run(self) -> None:
        """Serve, and connect again whenever the connection ends, until cancelled."""
        async for _ in Attempts():
            try:
                async with ServiceBus.connect(self._address or None, name="sbus-link blobs") as bus:
                    bus.service(COMMAND)(self._on_call)
                    await bus.serve_all(self._charged)
            except (SbusError, OSError):
                pass  # the other connections report it

    async def _on_call(self, request: Request) -> bytes:
        """Serve a call. Raises ServiceError: a code such as ENOENT, and words."""
        if not await self._may_call(request.caller.uid):
            raise ServiceError(f"EACCES only sbus-blob may call {COMMAND}; use its get")
        try:
            head, _ = parse_framed_data(request.data)
            return await self._pulled(head)
        except ProtocolError as error:
            raise ServiceError(f"EINVAL {error.words}") from None
        except ExchangeError as error:
            raise ServiceError(str(error)) from None

    async def _may_call(self, uid: int) -> bool:
        """Return whether the user *uid* may call: root, the user of the link, and that of sbus-blob.service. Raises ServiceError."""
        try:
            return await self._blob_user.is_trusted(uid, self._charged(uid))
        except UNANSWERED:
            raise ServiceError(f"EAGAIN the user {BLOB_USER} was not looked up in time") from None

    async def _pulled(self, head: dict[str, Any]) -> bytes:
        """Return the answer of the host that *head* names, checked. Raises ExchangeError."""
        host, ticket, ask = head.get("host"), head.get("ticket"), head.get("ask")
        if not isinstance(host, str) or not isinstance(ticket, str) or not is_ticket(ticket) or ask not in ASKS:
            raise ExchangeError("EINVAL", "host, ticket and ask are required")
        origin = host_label(host)
        max_bytes = self._tickets.max_bytes(origin, ticket, EVERY_HOST) if is_name(origin) else None
        if max_bytes is None:
            words = f"no message from host {origin} refers to the blob, or the link was restarted; see max_blob in link.toml(5)"
            raise ExchangeError("ENOENT", words)
        question: dict[str, object] = {"ask": ask, "ticket": ticket}
        if ask == "read":
            question["offset"] = head.get("offset")
        answer, frames = await self._asking.ask(origin, question)
        if ask == "open":
            return framed_data(_checked(origin, answer, max_bytes))
        if ask == "digest":
            return framed_data({"sha256": str(answer.get("sha256"))[:64]})
        if len(frames) != 1 or len(frames[0]) > CHUNK_BYTES or answer.get("offset") != question["offset"]:
            raise ExchangeError("EPROTO", f"host {origin} sent another chunk than the one that was asked for")
        self.bytes_in += len(frames[0])
        return framed_data({"offset": answer["offset"]}, frames)


def _checked(origin: str, answer: dict[str, Any], max_bytes: int) -> dict[str, object]:
    """Return what *origin* says about a blob. Raises ExchangeError."""
    size, kind, expire = answer.get("size"), answer.get("type"), answer.get("expire")
    is_time = isinstance(expire, int | float) and 0 <= expire <= MAX_EXPIRE
    if type(size) is not int or size < 0 or not is_media_type(kind) or not is_time:
        raise ExchangeError("EPROTO", f"the answer of host {origin} does not describe a blob")
    if size > max_bytes:
        raise ExchangeError("EFBIG", f"the blob has {size} bytes; max_blob for host {origin} is {max_bytes}")
    return {"size": size, "type": kind, "expire": expire}


MAX_OPEN = 32
"""Blobs that one host has open here. With more, the one is closed that was read least recently."""

MAX_OPEN_OF_ALL = 512
"""The same for all hosts together: each is a descriptor. With more, the host with most of them loses one."""

MAX_HASHES = 2
"""Blobs whose digest is computed at the same time."""

HASH_SECONDS = 0.1
"""How long an answer waits for a digest. Then the host asks again, and gets other answers in between."""

IDLE_SECONDS = 60.0
"""A blob that is not read for so long is closed. Until then a host that was away continues."""

_HASH_BYTES = 4 << 20


class BlobService(Protocol):
    """The local sbus-blob."""

    async def exchange(self, members: dict[str, object]) -> Reply:
        """Send a request, and return its response. Raises BlobRefused, NoBlobService, TimedOut."""


@dataclass(slots=True, eq=False)
class _Open:
    """A blob that a host pulls. ``used`` is when it was last read, ``until`` when it expires, by the clock of the loop."""

    fd: int
    size: int
    type: str
    until: float
    used: float
    users: int = 0
    """Threads that read it."""
    is_closed: bool = False
    digest: asyncio.Task[str] | None = None


class BlobSource:
    """Answers questions of other hosts about blobs of the host *name*, as far as *tickets* permit."""

    def __init__(self, name: str, tickets: BlobTickets, service: BlobService) -> None:
        self.bytes_out = 0
        self._name = name
        self._tickets = tickets
        self._service = service
        self._open: dict[str, OrderedDict[str, _Open]] = {}
        self._hashes = asyncio.Semaphore(MAX_HASHES)
        self._locks: dict[tuple[str, str], asyncio.Lock] = {}

    def __len__(self) -> int:
        return sum(map(len, self._open.values()))

    async def answer(self, host: str, question: dict[str, Any]) -> bytes:
        """Return the answer to a question of *host*. Raises ExchangeError."""
        ticket, name = question.get("ticket"), question.get("ask")
        if not isinstance(ticket, str) or not is_ticket(ticket):
            raise ExchangeError("EINVAL", "ticket must be the ticket of a blob")
        if name not in ("open", "read", "digest"):
            raise ExchangeError("EINVAL", "ask must be open, read or digest")
        blob = await self._opened(host, ticket)
        blob.used = asyncio.get_running_loop().time()
        if name == "open":
            return framed_data({"size": blob.size, "type": blob.type, "expire": round(max(0.0, blob.until - blob.used), 3)})
        if name == "digest":
            return framed_data({"sha256": await self._digest(blob)})
        return await self._read(blob, question.get("offset"))

    def close_idle(self) -> None:
        """Close the blobs that are not read any more."""
        now = asyncio.get_running_loop().time()
        for host, blobs in list(self._open.items()):
            for ticket, blob in list(blobs.items()):
                if now >= min(blob.used + IDLE_SECONDS, blob.until):
                    self._close(host, ticket)

    def close(self) -> None:
        """Close all blobs."""
        for host, blobs in list(self._open.items()):
            for ticket in list(blobs):
                self._close(host, ticket)

    async def _opened(self, host: str, ticket: str) -> _Open:
        """Return the blob with *ticket* for *host*. Raises ExchangeError."""
        blob = self._found(host, ticket)
        if blob is not None:
            self._open[host].move_to_end(ticket)
            return blob
        max_bytes = self._tickets.max_bytes(self._name, ticket, host)
        if max_bytes is None:
            words = "no message from this host to yours refers to the blob, or the link was restarted; see max_blob in link.toml(5)"
            raise ExchangeError("ENOENT", words)
        # Two questions must not be two uses of the blob.
        lock = self._locks.setdefault((host, ticket), asyncio.Lock())
        try:
            async with lock:
                return self._found(host, ticket) or await self._open_now(host, ticket, max_bytes)
        finally:
            if not lock.locked():
                self._locks.pop((host, ticket), None)

    def _found(self, host: str, ticket: str) -> _Open | None:
        """Return the blob with *ticket* if *host* has it open."""
        blobs = self._open.get(host)
        return None if blobs is None else blobs.get(ticket)

    async def _open_now(self, host: str, ticket: str, max_bytes: int) -> _Open:
        """Get the blob from sbus-blob. Raises ExchangeError."""
        try:
            reply = await self._service.exchange({"request": "get", "ticket": ticket})
        except BlobRefused as refused:
            raise ExchangeError("EAGAIN" if refused.code in ("EAGAIN", "EMFILE") else refused.code, refused.reason) from None
        except (NoBlobService, TimedOut) as error:
            raise ExchangeError("EAGAIN", str(error)) from None
        fd = reply.fd
        size, kind, expire = (reply.members.get(name) for name in ("size", "type", "expire"))
        is_blob = fd is not None and fcntl.fcntl(fd, F_GET_SEALS) & SEALS == SEALS and os.fstat(fd).st_size == size
        if fd is None or not is_blob or not isinstance(size, int) or not isinstance(kind, str):
            reply.close()
            raise ExchangeError("EIO", "the response of sbus-blob is not a blob")
        if size > max_bytes:
            reply.close()
            raise ExchangeError("EFBIG", f"the blob has {size} bytes; max_blob is {max_bytes}")
        now = asyncio.get_running_loop().time()
        seconds = float(expire) if isinstance(expire, int | float) else MAX_EXPIRE
        blob = _Open(fd, size, kind, now + seconds, now)
        blobs = self._open.setdefault(host, OrderedDict())
        blobs[ticket] = blob
        blob.digest = asyncio.get_running_loop().create_task(self._hashed(blob))
        if len(blobs) > MAX_OPEN:
            self._close(host, next(iter(blobs)))
        if len(self) > MAX_OPEN_OF_ALL:
            most = max(self._open, key=lambda each: len(self._open[each]))
            self._close(most, next(iter(self._open[most])))
        return blob

    async def _read(self, blob: _Open, offset: object) -> bytes:
        """Return a chunk. Raises ExchangeError."""
        if type(offset) is not int or offset % CHUNK_BYTES or not 0 <= offset < blob.size:
            raise ExchangeError("EINVAL", f"offset must be a multiple of {CHUNK_BYTES}, less than the size of the blob")
        chunk = await self._in_thread(blob, offset)
        if len(chunk) != min(CHUNK_BYTES, blob.size - offset):
            raise ExchangeError("EIO", "the blob cannot be read")
        self.bytes_out += len(chunk)
        return framed_data({"offset": offset}, [chunk])

    async def _in_thread(self, blob: _Open, offset: int) -> bytes:
        """Return the bytes at *offset*, which a thread reads: pages can be in the swap space."""
        blob.users += 1
        reading = asyncio.get_running_loop().run_in_executor(None, os.pread, blob.fd, CHUNK_BYTES, offset)
        reading.add_done_callback(lambda _: self._left(blob))
        try:
            return await asyncio.shield(reading)
        except OSError as error:
            raise ExchangeError("EIO", f"the blob cannot be read: {error.strerror}") from None

    async def _digest(self, blob: _Open) -> str:
        """Return the SHA-256 of a blob. Raises ExchangeError: EAGAIN while it is computed."""
        if blob.digest is not None:
            await asyncio.wait([blob.digest], timeout=HASH_SECONDS)
            if blob.digest.done() and not blob.digest.cancelled():
                return blob.digest.result()
        raise ExchangeError("EAGAIN", "the digest is being computed")

    async def _hashed(self, blob: _Open) -> str:
        """Compute the digest in a thread."""
        async with self._hashes:
            if blob.is_closed:
                return ""
            blob.users += 1
            hashing = asyncio.get_running_loop().run_in_executor(None, _sha256, blob)
            hashing.add_done_callback(lambda _: self._left(blob))
            return await asyncio.shield(hashing)

    def _left(self, blob: _Open) -> None:
        """Note that a thread does not use *blob* any more."""
        blob.users -= 1
        if blob.is_closed and not blob.users:
            os.close(blob.fd)

    def _close(self, host: str, ticket: str) -> None:
        """Close a blob, when no thread uses it."""
        blob = self._open[host].pop(ticket)
        if not self._open[host]:
            del self._open[host]
        blob.is_closed = True
        if not blob.users:
            os.close(blob.fd)


def _sha256(blob: _Open) -> str:
    """Return the SHA-256 of a blob, or of its part if it was closed meanwhile."""
    digest = hashlib.sha256()
    for offset in range(0, blob.size, _HASH_BYTES):
        if blob.is_closed:
            break
        digest.update(os.pread(blob.fd, _HASH_BYTES, offset))
    return digest.hexdigest()
