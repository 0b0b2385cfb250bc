"""The third connection of the link to its bus: serves ``link/blob``, by which the local sbus-blob pulls blobs of other hosts.

Spec: sbus-link(8), "ON THE BUS".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from sbusd.backoff import Attempts
from sbusd.client import SbusError
from sbusd.client.asyncio.look_ups import UNANSWERED
from sbusd.client.asyncio.named_user import NamedUser
from sbusd.client.asyncio.service_bus import ServiceBus
from sbusd.client.errors import ServiceError
from sbusd.client.rpc.requests import Request
from sbusd.config.link import is_name
from sbusd.link.blob_tickets import EVERY_HOST, BlobTickets, host_label
from sbusd.link.exchange import ExchangeError
from sbusd.protocol.blobs import CHUNK_BYTES, MAX_EXPIRE, is_media_type, is_ticket
from sbusd.protocol.errors import ProtocolError
from sbusd.protocol.framed_data import framed_data, parse_framed_data

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
