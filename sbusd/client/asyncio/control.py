"""Control messages of a program to the bus: a part of :class:`~sbusd.client.asyncio.bus.AsyncBus`. Spec: sbus-protocol(7) §6."""

from __future__ import annotations

from collections.abc import Iterable

from sbusd.client import operations
from sbusd.client.asyncio import documented_by
from sbusd.client.asyncio.link import AsyncLink
from sbusd.client.encoding import Data
from sbusd.client.session import Session
from sbusd.client.sync.control import ControlMethods


@documented_by(ControlMethods)
class AsyncControlMethods:
    """Control messages, a part of ``AsyncBus``."""

    _link: AsyncLink
    _session: Session

    async def control(self, key: str | bytes, payload: Data | None = None) -> bytes:
        return await self._link.run(operations.control(self._session, key, payload, self._link.timeout))

    async def tell(self, key: str | bytes, payload: Data | None = None) -> None:
        await self._link.run(operations.tell(self._session, key, payload))

    async def report_lost(self, patterns: Iterable[str | bytes], count: int) -> None:
        await self._link.run(operations.report_lost(patterns, count))
