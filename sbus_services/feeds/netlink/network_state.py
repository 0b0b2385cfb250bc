"""The feed's copy of the network state, and the events that follow from its changes; without I/O and clock.

Subscribers know an entry by its key and attributes, its *view*. The feed keeps the published views. An event is the difference between
these and the views of the current entries. So nothing is published twice, the addresses of a renamed link move to new keys, and a read
of the kernel's tables yields events in the same way as a message.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from sbus_services.feeds.netlink.entries import Address, Attributes, Entry, Identity, Link, Neighbour, Route
from sbus_services.feeds.netlink.notices import Notice

_ORDER = (Link, Address, Route, Neighbour)
"""The order of a snapshot: links first, because the others contain their names."""


class EventKind(enum.Enum):
    """The kind of an event; the value is the payload's ``event``."""

    SNAPSHOT = "snapshot"
    NEW = "new"
    CHANGE = "change"
    REMOVE = "remove"


@dataclass(frozen=True, slots=True)
class NetworkEvent:
    """One message to publish."""

    kind: EventKind
    key: str
    attributes: Attributes


@dataclass(frozen=True, slots=True)
class _View:
    """The published key and attributes of an entry."""

    key: str
    attributes: Attributes


class NetworkState:
    """The entries, and their published views.

    ``is_uncertain`` is set when the entries may differ from the kernel's. Then :meth:`reconcile` is due, and clears it.
    """

    def __init__(self) -> None:
        self._entries: dict[Identity, Entry] = {}
        self._views: dict[Identity, _View] = {}
        self.is_uncertain = False

    def __len__(self) -> int:
        """Return the number of entries in a snapshot."""
        return len(self._views)

    def apply(self, notice: Notice) -> list[NetworkEvent]:
        """Apply one notice and return the events to publish."""
        if notice.is_partial:
            # Published as is, a replaced default route would be "new", and the old one "remove" only later, with the same key.
            self.is_uncertain = True
            return []
        if notice.gone:
            return self._remove(notice.entry)
        return self._put(notice.entry)

    def reconcile(self, entries: Iterable[Entry]) -> list[NetworkEvent]:
        """Replace the state with *entries*, all that the kernel has, and return the events to publish: first removals."""
        self._entries = {entry.identity: entry for entry in entries}
        # An entry of a link created after the links were read arrives again in a message, after that of the link.
        for identity in [identity for identity, entry in self._entries.items() if entry.key(self._name) is None]:
            del self._entries[identity]
        self.is_uncertain = False
        return self._difference()

    def snapshot(self) -> list[NetworkEvent]:
        """Return all entries as events: links, addresses, routes, neighbours."""
        views = (self._views[identity] for identity in sorted(self._views, key=_rank))
        return [NetworkEvent(EventKind.SNAPSHOT, view.key, view.attributes) for view in views]

    def _put(self, entry: Entry) -> list[NetworkEvent]:
        """Add or change one entry."""
        before = self._entries.get(entry.identity)
        self._entries[entry.identity] = entry
        if isinstance(entry, Link):
            return self._put_link(before if isinstance(before, Link) else None, entry)
        if entry.key(self._name) is None:
            # Its link is unknown: a message was lost, or the link was removed meanwhile.
            del self._entries[entry.identity]
            self.is_uncertain = True
            return []
        return list(self._changes(entry.identity))

    def _put_link(self, before: Link | None, link: Link) -> list[NetworkEvent]:
        """Add or change a link."""
        if before is not None and before.flags != link.flags:
            # When a link goes down, the kernel removes its IPv4 routes and marks others, without a message for each.
            self.is_uncertain = True
        if before is None or before.name == link.name:
            return list(self._changes(link.identity))
        return self._difference()

    def _remove(self, entry: Entry) -> list[NetworkEvent]:
        """Remove one entry, and with a link all entries that depend on it."""
        if self._entries.pop(entry.identity, None) is None:
            # Never published, or known in another form: one hop of a multipath route is removed by a separate message.
            self.is_uncertain = self.is_uncertain or isinstance(entry, Route)
            return []
        if isinstance(entry, Link):
            for identity in [identity for identity, other in self._entries.items() if _needs(other, entry.index)]:
                del self._entries[identity]
            self.is_uncertain = True
            return self._difference()
        if isinstance(entry, Address):
            # The kernel removes routes with this preferred source address, without a message.
            self.is_uncertain = True
        return list(self._changes(entry.identity))

    def _difference(self) -> list[NetworkEvent]:
        """Return the events for all entries: removals first, children before their links, so that no key is used twice."""
        removed: list[NetworkEvent] = []
        added: list[NetworkEvent] = []
        for identity in sorted({**self._views, **self._entries}, key=_rank):
            for event in self._changes(identity):
                (removed if event.kind is EventKind.REMOVE else added).append(event)
        return removed[::-1] + added

    def _changes(self, identity: Identity) -> Iterator[NetworkEvent]:
        """Yield the events for one entry, and record its view as published."""
        published = self._views.pop(identity, None)
        view = self._view(identity)
        if view is not None:
            self._views[identity] = view
        if published is not None and (view is None or view.key != published.key):
            yield NetworkEvent(EventKind.REMOVE, published.key, published.attributes)
            published = None
        if view is not None and published is None:
            yield NetworkEvent(EventKind.NEW, view.key, view.attributes)
        elif view is not None and view != published:
            yield NetworkEvent(EventKind.CHANGE, view.key, view.attributes)

    def _view(self, identity: Identity) -> _View | None:
        """Return the current view of an entry; None if it was removed or its link is unknown."""
        entry = self._entries.get(identity)
        key = entry.key(self._name) if entry is not None else None
        return _View(key, entry.attributes(self._name)) if entry is not None and key is not None else None

    def _name(self, index: int) -> bytes | None:
        """Return the name of a link."""
        link = self._entries.get((Link, index))
        return link.name if isinstance(link, Link) else None


def _needs(entry: Entry, index: int) -> bool:
    """Return whether *entry* depends on the link *index*. A multipath route may lose one hop and stay."""
    return not isinstance(entry, Link) and entry.index == index


def _rank(identity: Identity) -> int:
    """Return the position of an entry in the order of links, addresses, routes, neighbours."""
    return next(rank for rank, kind in enumerate(_ORDER) if identity[0] is kind)
