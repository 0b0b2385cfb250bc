"""Names on the bus for completion: subscribed keys and patterns, services, addresses of connections, and streams and queues.

Other users choose these names, so only printable ones are used, and no user can displace those of another: if there are too many, the
users take turns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import zip_longest

from sbus import Bus
from sbus.bus_documents import JsonObject
from sbus.protocol import controls
from sbus.protocol.envelope import SERVICE_HEAD
from sbus.protocol.errors import SbusError
from sbusctl.responses import ask, ask_pages, integer, objects, text

MAX_NAMES = 100
"""Maximum number of names."""

MAX_READ = 100_000
"""Maximum number of subscriptions that are read: a second of work for a fast machine."""

_WILDCARD = "*"
_RESERVED = "!"

Names = dict[str, None]
"""An ordered set."""


@dataclass(slots=True)
class BusNames:
    """The names that begin with *begin*, by user. *name_of* returns the name for a pattern, or an empty string."""

    begin: str
    name_of: Callable[[str], str]
    by_user: dict[str, Names] = field(default_factory=dict)

    def read(self, bus: Bus) -> None:
        """Read the names from *bus*; those read before an error or an interruption remain."""
        if self.begin.startswith(_RESERVED):
            self._read_addresses(bus)
        try:
            self._read_subscriptions(bus)
        except SbusError:
            # Most users may not list the subscriptions of all.
            return

    def chosen(self) -> list[str]:
        """Return at most MAX_NAMES of the names, in alphabetical order; short ones are preferred."""
        turns = zip_longest(*(sorted(names, key=len) for names in self.by_user.values()))
        found = dict.fromkeys(name for turn in turns for name in turn if name is not None)
        return sorted(list(found)[:MAX_NAMES])

    def _read_addresses(self, bus: Bus) -> None:
        """Read the addresses of connections."""
        for each in ask_pages(bus, controls.CONNECTIONS, None, "connections").items["connections"]:
            number, uid = integer(each, "id"), integer(each, "uid")
            self._add(str(uid), f"!/conn/{number}/")

    def _read_subscriptions(self, bus: Bus) -> None:
        """Read the names of subscribed patterns."""
        for each in _subscriptions(bus):
            # A pattern that is not UTF-8 is in base64, and its text is not exact.
            pattern = None if "pattern_base64" in each else text(each, "pattern")
            if pattern and pattern.isprintable() and (name := self.name_of(pattern)):
                self._add((text(each, "cred") or "").rpartition("/")[0], name)

    def _add(self, user: str, name: str) -> None:
        """Add a name of *user*."""
        if name.startswith(self.begin) and (self.begin.startswith(_RESERVED) or not name.startswith(_RESERVED)):
            self.by_user.setdefault(user, {})[name] = None


@dataclass(slots=True)
class StoreNames:
    """The names that begin with *begin* in a *listing* of sbus-store: ``streams`` or ``queues``."""

    begin: str
    listing: str
    names: list[str] = field(default_factory=list)

    def read(self, bus: Bus) -> None:
        """Read the names from the store of *bus*. Raises SbusError if there is none."""
        self.names += [name for each in objects(bus.store.streams(), self.listing) if (name := text(each, "name"))]

    def chosen(self) -> list[str]:
        """Return at most MAX_NAMES of the names, in alphabetical order."""
        return fitting(self.names, self.begin)


def key_of(pattern: str) -> str:
    """Return the key that *pattern* matches, or the beginning of such keys up to a slash; empty if there is none."""
    before, wildcard, _ = pattern.partition(_WILDCARD)
    return f"{before.rpartition('/')[0]}/" if wildcard and "/" in before else "" if wildcard else pattern


def pattern_of(pattern: str) -> str:
    """Return *pattern*."""
    return pattern


def command_of(pattern: str) -> str:
    """Return the command that a service with *pattern* serves; empty if it is not the pattern of a service."""
    head = SERVICE_HEAD.decode("ascii")
    if not pattern.startswith(head) or _WILDCARD in pattern or pattern.endswith("/"):
        return ""
    return pattern.removeprefix(head)


def _subscriptions(bus: Bus) -> Iterator[JsonObject]:
    """Yield subscriptions, at most MAX_READ."""
    after: bytes | None = None
    count = 0
    while count < MAX_READ:
        page = ask(bus, controls.SUBSCRIPTIONS, after)
        found = objects(page, "subscriptions")
        yield from found
        count += len(found)
        following = text(page, "next")
        if following is None or following.encode("ascii", "replace") == after:
            return
        after = following.encode("ascii", "replace")


def fitting(names: Iterable[str], begin: str) -> list[str]:
    """Return those of *names* that begin with *begin* and are printable, at most MAX_NAMES, in alphabetical order."""
    return sorted(name for name in names if name.startswith(begin) and name.isprintable())[:MAX_NAMES]
