"""Parts of a bus that most programs do not use: they are imported at the first use, see ``late_modules``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sbusd.client.arguments import AsyncWithBlock

if TYPE_CHECKING:
    from sbusd.client.asyncio.last_values import AsyncLastValues
    from sbusd.client.asyncio.link import AsyncLink
    from sbusd.client.asyncio.store import AsyncStore
    from sbusd.client.inbox import Inbox
    from sbusd.client.notices import OnGap
    from sbusd.client.rpc.service import Dispatcher


class AsyncBusParts(AsyncWithBlock):
    """The parts of a bus."""

    _link: AsyncLink
    _dispatcher: Dispatcher | None
    _store: AsyncStore | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._link.state}: {self._link.target.text}>"

    def _begin_services(self) -> Dispatcher:
        """Return the services of this connection."""
        if self._dispatcher is None:
            from sbusd.client.rpc.service import Dispatcher  # noqa: PLC0415

            self._dispatcher = Dispatcher()
        return self._dispatcher

    def _begin_store(self) -> AsyncStore:
        """Return the store of this connection."""
        if self._store is None:
            from sbusd.client.asyncio.store import AsyncStore  # noqa: PLC0415

            self._store = AsyncStore(self)  # type: ignore[arg-type]  # each is a bus
        return self._store

    def _with_last_values(self, inbox: Inbox, on_gap: OnGap | None) -> AsyncLastValues:
        """Return a subscription that begins with last values."""
        from sbusd.client.asyncio.last_values import AsyncLastValues  # noqa: PLC0415

        return AsyncLastValues(self._link, inbox, on_gap, self._begin_store())
