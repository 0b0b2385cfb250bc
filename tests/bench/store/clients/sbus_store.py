"""The client of sbus-store(8), AsyncBus."""

from __future__ import annotations

from collections.abc import Sequence

from sbus import AsyncBus, Message
from sbus.errors import SbusError
from sbus.store.items import Put, StoredMessage
from sbus.store.requests import NewMessage
from tests.bench.store.clients.contract import JOBS, LOG, STATE


class SbusStore:
    """See ``contract.Client``."""

    async def connect(self, address: str) -> None:
        """Connect."""
        self._bus = AsyncBus.connect(address, timeout=60)
        await self._bus.__aenter__()
        self._store = self._bus.store

    async def prepare(self) -> None:
        """The configuration of the store has the streams."""

    async def close(self) -> None:
        """Close the connection."""
        await self._bus.__aexit__(None, None, None)

    async def put(self, payload: bytes) -> None:
        """Put one."""
        await self._store.put(f"{LOG}/a", payload)

    async def put_many(self, payloads: Sequence[bytes], stream: str) -> None:
        """Put many in one call, if they fit."""
        for outcome in await self._store.put_many(NewMessage(f"{stream}/a", payload) for payload in payloads):
            if not isinstance(outcome, Put):
                raise outcome

    async def set_value(self, payload: bytes) -> None:
        """Put it: the stream keeps the last one."""
        await self._store.put(f"{STATE}/a", payload)

    async def late_value(self) -> bytes:
        """Subscribe: the store sends the last value, because the stream has ``on_subscribe``."""
        return await self._first_value()

    async def _first_value(self, *, last: bool = False) -> bytes:
        """Subscribe, and return the first message."""
        values = self._bus.subscribe(f"{STATE}/a", last=last)
        await values.__aenter__()
        item = await values.receive()
        if not isinstance(item, Message):
            raise SbusError(f"received {item}, and not the last value")
        return item.payload

    async def finish_jobs(self, count: int) -> int:
        """One call takes, and one acknowledges."""
        jobs = await self._store.take_many(JOBS, count, timeout=0)
        if any(await self._store.ack_many(jobs)):
            raise SbusError("a job was not acknowledged")
        return len(jobs)

    async def take_job(self) -> bytes:
        """Take one."""
        (job,) = await self._store.take_many(JOBS, 1)
        return job.payload

    async def stored(self) -> list[bytes]:
        """Read the stream to its end."""
        return [item.payload async for item in self._store.read(LOG, follow=False) if isinstance(item, StoredMessage)]


class LoadingSbusStore(SbusStore):
    """The same, but a subscriber loads the last values, for which the store needs no right."""

    async def late_value(self) -> bytes:
        """Subscribe with ``last=True``."""
        return await self._first_value(last=True)
