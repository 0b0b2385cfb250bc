# Made from sbusd/client/asyncio/parts.py by "make faces": edit that.
"""Parts of a bus that most programs do not use: they are imported at the first use, see ``late_modules``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sbusd.client.arguments import WithBlock

if TYPE_CHECKING:
    from sbusd.client.inbox import Inbox
    from sbusd.client.notices import OnGap
    from sbusd.client.rpc.service import Dispatcher
    from sbusd.client.sync.last_values import LastValues
    from sbusd.client.sync.link import SyncLink
    from sbusd.client.sync.store import Store


class BusParts(WithBlock):
    """The parts of a bus."""

    _link: SyncLink
    _dispatcher: Dispatcher | None
    _store: Store | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._link.state}: {self._link.target.text}>"

    def _begin_services(self) -> Dispatcher:
        """Return the services of this connection."""
        if self._dispatcher is None:
            from sbusd.client.rpc.service import Dispatcher  # noqa: PLC0415

            self._dispatcher = Dispatcher()
        return self._dispatcher

    def _begin_store(self) -> Store:
        """Return the store of this connection."""
        if self._store is None:
            from sbusd.client.sync.store import Store  # noqa: PLC0415

            self._store = Store(self)  # type: ignore[arg-type]  # each is a bus
        return self._store

    def _with_last_values(self, inbox: Inbox, on_gap: OnGap | None) -> LastValues:
        """Return a subscription that begins with last values."""
        from sbusd.client.sync.last_values import LastValues  # noqa: PLC0415

        return LastValues(self._link, inbox, on_gap, self._begin_store())
