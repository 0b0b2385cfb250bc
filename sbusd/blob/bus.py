"""Questions to the bus: which process has a connection. Spec: sbus-protocol(7) §6, ``!/bus/connections``."""

from __future__ import annotations

import asyncio
import contextlib
import json

from sbusd.blob.refusals import Cause, Refusal
from sbusd.client import AsyncBus, SbusError
from sbusd.protocol import controls

ANSWER_SECONDS = 5.0
"""How long the bus may take for an answer."""


def _why(error: Exception) -> str:
    """Return *error* in words."""
    return "it did not answer in time" if isinstance(error, TimeoutError) and not isinstance(error, SbusError) else str(error)


class BusConnections:
    """The connections of the bus at *address*; connected when the first question comes."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._bus: AsyncBus | None = None
        self._connecting = asyncio.Lock()

    async def has(self, number: int, uid: int, pid: int) -> bool:
        """Return whether the connection *number* belongs to the process *pid* of the user *uid*. Raises Refusal: NO_BUS."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                bus = await self._connected()
                answer = json.loads(await bus.control(controls.CONNECTIONS, b"%d" % max(0, number - 1)))
        except (SbusError, TimeoutError, ValueError) as error:
            await self.close()
            raise Refusal(Cause.NO_BUS, f"cannot ask the bus about connection {number}: {_why(error)}") from None
        listed = answer.get("connections") if isinstance(answer, dict) else None
        return any(
            isinstance(each, dict) and (each.get("id"), each.get("uid"), each.get("pid")) == (number, uid, pid)
            for each in (listed if isinstance(listed, list) else [])
        )

    async def close(self) -> None:
        """Close the connection to the bus. Harmless without one."""
        bus, self._bus = self._bus, None
        if bus is not None:
            with contextlib.suppress(SbusError):
                await bus.close()

    async def _connected(self) -> AsyncBus:
        """Return the connection to the bus, a new one if there is none."""
        async with self._connecting:
            if self._bus is None:
                self._bus = await AsyncBus.connect(self._address, timeout=ANSWER_SECONDS, name="sbus-blob")
            return self._bus
