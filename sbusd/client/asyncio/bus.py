"""The bus for asyncio: :class:`AsyncBus`. Its methods are those of :class:`~sbusd.client.sync.bus.Bus`, and are documented there.

An ``AsyncBus`` belongs to one event loop; any number of its tasks may use it. It reads whenever the loop runs and no subscription is
full. With ``Overflow.BLOCK``, the default, a full subscription stops the reading, for responses and other subscriptions too, until its
task has received some messages. A task that waits for a response while only it could empty the full subscription waits until its timeout.

Any call can be cancelled safely: a publication was then either sent whole or not at all, an item that was not returned is still
queued, a late response is dropped, and a subscription that was not returned is undone.

The logger ``sbusd.client`` has records with level INFO: a connection and its end, a reconnection with its attempts and seconds, and the
numbers of lost packets. Those with level WARNING are: a connection that is lost and made again, messages that are missing without
``on_gap``, and refusals without ``on_refused``. Of the last two and of losses, the 1st, 2nd, 4th, 8th and so on is logged. No record has a
payload. Without a handler, only the warnings about messages and refusals go to standard error. A ``logging.Handler`` may use the bus
that a record is about. A ``Bus`` writes the same records.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Coroutine, Generator
from contextlib import asynccontextmanager
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self, overload

from sbusd.client import operations
from sbusd.client.arguments import check_callable, check_connection, made_link
from sbusd.client.asyncio import documented_by
from sbusd.client.asyncio.blobs import AsyncBlobMethods, AsyncBlobSubscription
from sbusd.client.asyncio.calls import AsyncCallMethods
from sbusd.client.asyncio.control import AsyncControlMethods
from sbusd.client.asyncio.link import AsyncLink, make_link
from sbusd.client.asyncio.streams import AsyncPresence, AsyncSubscription, AsyncTap
from sbusd.client.bus_socket import Scope, State, bus_address, parse_target
from sbusd.client.direct_messages import direct_publication
from sbusd.client.encoding import Data, Patterns, group_name, pattern_list, publication, to_bytes
from sbusd.client.features import Paced
from sbusd.client.inbox import QUEUE_BYTES, QUEUE_PACKETS, Bounds, Overflow
from sbusd.client.items import PRESENCE_PATTERN
from sbusd.client.notices import OnGap, OnRefused
from sbusd.client.operations import Deadline
from sbusd.client.session import Session
from sbusd.client.statistics import Statistics
from sbusd.client.sync.bus import Bus
from sbusd.protocol import controls
from sbusd.protocol.credentials import Peer
from sbusd.protocol.keys import text_of
from sbusd.protocol.memberships import stored_pattern

if TYPE_CHECKING:
    from sbusd.client.asyncio.store import AsyncStore
    from sbusd.client.rpc.service import Dispatcher


@documented_by(Bus)
class AsyncBus(AsyncControlMethods, AsyncBlobMethods, AsyncCallMethods):
    """A connection to a bus, from :meth:`AsyncBus.connect`. ``async with`` opens and closes it; if you ``await`` it instead, close it.

    A call that takes longer than the bus's ``timeout`` raises TimedOut, and its ``reason`` says so if nothing was sent. A reply that
    arrives after that is dropped: it never reaches another call. Every call raises Closed after ``close``, Disconnected, also while
    it is not connected, and TypeError, ValueError or ProtocolError for a wrong argument, before anything is sent.
    """

    def __init__(self, link: AsyncLink | None = None, *, pace: bool = False) -> None:
        self._link = made_link(link, AsyncLink, "AsyncBus")
        self._session = self._link.session
        self._is_to_pace = pace
        self._dispatcher: Dispatcher | None = None

    @classmethod
    def connect(
        cls,
        address: str | os.PathLike[str] | None = None,
        *,
        scope: Scope | None = None,
        timeout: float | None = 30.0,
        reconnect: bool = False,
        queue_packets: int = QUEUE_PACKETS,
        queue_bytes: int = QUEUE_BYTES,
        overflow: Overflow = Overflow.BLOCK,
        separator: bytes = b"/",
        batching: bool = True,
        pace: bool = False,
        background: bool = False,
        gather: bool = False,
        name: str = "",
    ) -> Self:
        limit = check_connection(timeout, separator)
        target = parse_target(bus_address(address, scope=scope), reconnect=reconnect)
        session = Session(separator, Bounds(queue_packets, queue_bytes, overflow), batching=batching)
        operations.set_name(session, name)
        return cls(make_link(target, session, limit, reconnect=reconnect, background=background, gather=gather), pace=pace)

    @overload
    async def publish(
        self, key: str | bytes, payload: Data = ..., *, receipt: Literal[False] = ..., wait: bool = ..., to: int | None = ...
    ) -> None: ...

    @overload
    async def publish(
        self, key: str | bytes, payload: Data = ..., *, receipt: Literal[True], wait: bool = ..., to: int | None = ...
    ) -> int | None: ...

    async def publish(
        self, key: str | bytes, payload: Data = b"", *, receipt: bool = False, wait: bool = False, to: int | None = None
    ) -> int | None:
        packet = publication(key, payload) if to is None else direct_publication(to, publication(key, payload))
        if wait:
            if not self._session.pacing.is_known:
                await self._link.run(operations.check_pacing(self._session, self._link.timeout))
            packet = Paced(packet)
        if receipt:
            return await self._link.run(operations.publish(self._session, packet, key, self._link.timeout))
        if not self._link.send_now(packet):  # nearly always sent now, which needs no second call
            await self._link.send_later(packet)
        return None

    @asynccontextmanager
    async def coalesce(self) -> AsyncIterator[None]:
        self._link.begin_gathering()
        try:
            yield
        finally:
            await self._link.end_gathering()

    async def flush(self) -> None:
        await self._link.flush()

    def subscribe(
        self,
        *patterns: Patterns,
        group: str | bytes | None = None,
        last: bool = False,
        on_gap: OnGap | None = None,
        blobs: bool = False,
    ) -> AsyncSubscription:
        check_callable(on_gap, "on_gap")
        if blobs and last:
            raise ValueError("last and blobs cannot be combined: subscribe twice")
        inbox = self._session.new_inbox(pattern_list(patterns, self._session.separator, group))
        if blobs:
            return AsyncBlobSubscription(self._link, inbox, on_gap, self._blob_socket())
        return self._with_last_values(inbox, on_gap) if last else AsyncSubscription(self._link, inbox, on_gap)

    async def unsubscribe(self, pattern: str | bytes, *, group: str | bytes | None = None) -> None:
        with self._link.entered():
            self._session.unsubscribe(stored_pattern(to_bytes(pattern, "pattern"), group_name(group)))
        self._link.push()

    async def whoami(self) -> str:
        return text_of(await self.control(controls.WHOAMI))

    async def ping(self) -> float:
        return await self._link.run(operations.ping(self._session, self._link.timeout))

    @property
    def address(self) -> Coroutine[None, None, str]:
        return self._link.run(operations.address(self._session, Deadline("requesting the address", self._link.timeout)))

    async def members(self, key: str | bytes) -> tuple[Peer, ...]:
        deadline = Deadline(f"listing the members of {key!r}", self._link.timeout)
        return await self._link.run(operations.members(self._session, to_bytes(key), deadline))

    def presence(self) -> AsyncPresence:
        return AsyncPresence(self.subscribe(PRESENCE_PATTERN))

    async def tap(self, pattern: str | bytes = b"") -> AsyncTap:
        return AsyncTap(self._link, await self._link.run(operations.tap(self._session, to_bytes(pattern, "pattern"), self._link.timeout)))

    @property
    def store(self) -> AsyncStore:
        return self._begin_store()

    @property
    def state(self) -> State:
        return self._link.state

    @property
    def on_refused(self) -> OnRefused | None:
        return self._session.refusals.handler

    @on_refused.setter
    def on_refused(self, handler: OnRefused | None) -> None:
        check_callable(handler, "on_refused")
        self._session.refusals.handler = handler

    @property
    def statistics(self) -> Statistics:
        statistics = self._session.statistics()
        if (caller := self._caller) is not None:
            statistics = replace(statistics, stray_answers=caller.requests.strays, unwatched_callees=caller.requests.unwatched)
        return replace(statistics, requests=dict(self._dispatcher.counts)) if self._dispatcher is not None else statistics

    def fileno(self) -> int:
        return self._link.fileno()

    async def close(self) -> None:
        self._close_blobs()
        await self._link.close()

    def __await__(self) -> Generator[None, None, Self]:
        return self._begun().__await__()

    async def __aenter__(self) -> Self:
        return await self._begun()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def _begun(self) -> Self:
        """Connect, unless that has been done."""
        is_new = not self._link.is_open and not self._link.target.is_connected
        await self._link.open()
        self._link.push()
        try:
            if is_new:
                await self._link.run(operations.admission(self._session, self._link.target.text, self._link.timeout))
            if self._is_to_pace:
                await self._link.run(operations.pace_all(self._session, self._link.timeout))
        except BaseException:
            await self._link.close()
            raise
        self._is_to_pace = False
        return self
