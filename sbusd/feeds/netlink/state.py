"""What the feed knows of the network, and what there is to tell when that changes: pure, no socket and no clock.

A subscriber is told an entry's key and attributes, its *view*. The views that were told are kept, and every change is the
difference between them and the views that follow from the entries now: so nothing is told twice, a renamed link takes its
addresses along to their new keys, and a look at the kernel's tables becomes events in the same way as a message does.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from sbusd.feeds.netlink.entries import Address, Attributes, Entry, Identity, Link, Neighbour, Route
from sbusd.feeds.netlink.notices import Notice

_ORDER = (Link, Address, Route, Neighbour)
"""The order of a snapshot: links first, since the others name them."""


class EventKind(enum.Enum):
    """What an event says about its entry; the value is the payload's ``event``."""

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
    """What subscribers have been told of an entry."""

    key: str
    attributes: Attributes


class NetworkState:
    """The entries, and the views that were told of them.

    ``is_doubtful`` is set when the entries may differ from the kernel's: then :meth:`reconcile` is due, and clears it.
    """

    def __init__(self) -> None:
        self._entries: dict[Identity, Entry] = {}
        self._views: dict[Identity, _View] = {}
        self.is_uncertain = False

    def __len__(self) -> int:
        """Return how many entries a snapshot would tell."""
        return len(self._views)

    def apply(self, notice: Notice) -> list[NetworkEvent]:
        """Take in one notice and return what there is to tell."""
        if notice.is_partial:
            # Told as it stands, a replaced default route would be "new", and the old one "remove" only later, on the same key.
            self.is_uncertain = True
            return []
        if notice.gone:
            return self._remove(notice.entry)
        return self._put(notice.entry)

    def reconcile(self, entries: Iterable[Entry]) -> list[NetworkEvent]:
        """Make *entries*, all that the kernel has, the state, and return what there is to tell: first what is gone."""
        self._entries = {entry.identity: entry for entry in entries}
        # What names a link made after the links were read comes once more, as messages behind that of the link.
        for identity in [identity for identity, entry in self._entries.items() if entry.key(self._name) is None]:
            del self._entries[identity]
        self.is_uncertain = False
        return self._difference()

    def snapshot(self) -> list[NetworkEvent]:
        """Return all that is known: links, addresses, routes, neighbours."""
        views = (self._views[identity] for identity in sorted(self._views, key=_rank))
        return [NetworkEvent(EventKind.SNAPSHOT, view.key, view.attributes) for view in views]

    def _put(self, entry: Entry) -> list[NetworkEvent]:
        """Add or change one entry."""
        before = self._entries.get(entry.identity)
        self._entries[entry.identity] = entry
        if isinstance(entry, Link):
            return self._put_link(before if isinstance(before, Link) else None, entry)
        if entry.key(self._name) is None:
            # Its link is not known: a message was missed, or the link went while this one was on its way.
            del self._entries[entry.identity]
            self.is_uncertain = True
            return []
        return list(self._changes(entry.identity))

    def _put_link(self, before: Link | None, link: Link) -> list[NetworkEvent]:
        """Add or change a link."""
        if before is not None and before.flags != link.flags:
            # The kernel drops the IPv4 routes of a link that goes down, and marks others, without a message for each.
            self.is_uncertain = True
        if before is None or before.name == link.name:
            return list(self._changes(link.identity))
        return self._difference()

    def _remove(self, entry: Entry) -> list[NetworkEvent]:
        """Take one entry out, and with a link all that cannot be without it."""
        if self._entries.pop(entry.identity, None) is None:
            # Never told, or known in another form: one hop of a route with several is removed by a message of its own.
            self.is_uncertain = self.is_uncertain or isinstance(entry, Route)
            return []
        if isinstance(entry, Link):
            for identity in [identity for identity, other in self._entries.items() if _needs(other, entry.index)]:
                del self._entries[identity]
            self.is_uncertain = True
            return self._difference()
        if isinstance(entry, Address):
            # Routes that prefer this address as their source go with it, without a message.
            self.is_uncertain = True
        return list(self._changes(entry.identity))

    def _difference(self) -> list[NetworkEvent]:
        """Return what there is to tell about all entries: removals first, children before their links, so no key is taken twice."""
        removed: list[NetworkEvent] = []
        added: list[NetworkEvent] = []
        for identity in sorted({**self._views, **self._entries}, key=_rank):
            for event in self._changes(identity):
                (removed if event.kind is EventKind.REMOVE else added).append(event)
        return removed[::-1] + added

    def _changes(self, identity: Identity) -> Iterator[NetworkEvent]:
        """Yield what there is to tell about one entry, and note it as told."""
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
        """Return what there is to be told of an entry now; None if it is gone, or its link is unknown."""
        entry = self._entries.get(identity)
        key = entry.key(self._name) if entry is not None else None
        return _View(key, entry.attributes(self._name)) if entry is not None and key is not None else None

    def _name(self, index: int) -> bytes | None:
        """Return the name of a link."""
        link = self._entries.get((Link, index))
        return link.name if isinstance(link, Link) else None


def _needs(entry: Entry, index: int) -> bool:
    """Return whether *entry* cannot be without the link *index*. A route with several hops may lose one and stay."""
    return not isinstance(entry, Link) and entry.index == index


def _rank(identity: Identity) -> int:
    """Return where an entry of this identity stands in the order of links, addresses, routes, neighbours."""
    return next(rank for rank, kind in enumerate(_ORDER) if identity[0] is kind)
