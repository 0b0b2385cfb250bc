"""The connection of a service of the system, which all users of the host share. User programs have ``AsyncBus.serve``."""

from __future__ import annotations

from collections.abc import Callable

from sbus.asyncio.bus import AsyncBus
from sbus.asyncio.server import AsyncServer
from sbus.rpc.service import Dispatcher


class ServiceBus(AsyncBus):
    """A connection that serves all users of the host; make one with ``ServiceBus.connect``."""

    async def serve_all(
        self, charged: Callable[[int], int], ready: Callable[[], None] | None = None, *, max_concurrent: int | None = None
    ) -> None:
        """Serve until the bus is closed, at most *max_concurrent* requests concurrently; None means that the services limit them.

        A request counts for the user that *charged* returns for the uid of its caller: the ids of one user share one limit, and one turn.
        Raises what ``serve`` raises.
        """
        dispatcher = self._begin_services()
        dispatcher.charged = charged
        await self.dispatch(dispatcher, ready, max_concurrent=max_concurrent)

    async def dispatch(self, dispatcher: Dispatcher, ready: Callable[[], None] | None = None, *, max_concurrent: int | None = None) -> None:
        """Serve the requests that *dispatcher* accepts. Responses to calls of this connection count for the users that it charges."""
        self._begin_calls().requests.charged = dispatcher.charged
        await AsyncServer(self._link, dispatcher, max_concurrent=max_concurrent).run(ready)
