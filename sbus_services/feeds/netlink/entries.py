"""The entries of the kernel's network tables as plain values: links, addresses, routes and neighbours, and their keys.

Entries refer to links by index, because a link can be renamed. ``identity`` is what the kernel distinguishes entries by;
``attributes`` are published. Both omit values that change without meaning (counters, ages, remaining lifetimes), so that equal entries
need no event.

A link's name can contain any bytes but NUL, ``/``, ``:`` and white space, for example ``*``, ``!`` or incomplete UTF-8. So in keys each
byte except ASCII letters, digits and ``_.-~:@+,=`` is written ``%XX``, as in a URL. Names then cannot add segments, be confused with
other names, or begin a reserved key, and they are printable and reversible. Spec of keys: sbus-feed(8), KEYS.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import quote_from_bytes

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]
Attributes = dict[str, Json]
Identity = tuple[object, ...]
Names = Callable[[int], bytes | None]
"""Returns the name of the link with an index, None if it does not exist."""

_PLAIN = ":@+,="


@dataclass(frozen=True, slots=True)
class Link:
    """A network interface."""

    index: int
    name: bytes
    state: str
    flags: tuple[str, ...]
    mtu: int | None
    mac: str | None
    kind: str | None
    master: int | None

    @property
    def identity(self) -> Identity:
        """The index, because a link can be renamed."""
        return (Link, self.index)

    def key(self, _names: Names) -> str | None:
        """Return the routing key."""
        return link_key(self.name)

    def attributes(self, names: Names) -> Attributes:
        """Return the published attributes."""
        return {
            "index": self.index,
            "name": text(self.name),
            "state": self.state,
            "flags": list(self.flags),
            "mtu": self.mtu,
            "mac": self.mac,
            "kind": self.kind,
            "master": _name_text(names, self.master),
            "master_index": self.master,
        }


@dataclass(frozen=True, slots=True)
class Address:
    """An address of a link. ``peer`` is the other end of a point-to-point address, None for others."""

    index: int
    family: str
    local: str
    peer: str | None
    prefix_length: int
    scope: str
    flags: tuple[str, ...]
    broadcast: str | None
    label: str | None

    @property
    def identity(self) -> Identity:
        """What the kernel compares: link, address, peer, prefix length."""
        return (Address, self.index, self.local, self.peer, self.prefix_length)

    def key(self, names: Names) -> str | None:
        """Return the routing key, None while its link is unknown."""
        name = names(self.index)
        return None if name is None else address_key(name, self.local, self.peer, self.prefix_length)

    def attributes(self, names: Names) -> Attributes:
        """Return the published attributes."""
        return {
            "index": self.index,
            "name": _name_text(names, self.index),
            "family": self.family,
            "address": self.local,
            "peer": self.peer,
            "prefix_length": self.prefix_length,
            "scope": self.scope,
            "flags": list(self.flags),
            "broadcast": self.broadcast,
            "label": self.label,
        }


@dataclass(frozen=True, slots=True)
class Hop:
    """One path of a multipath route."""

    index: int | None
    gateway: str | None
    weight: int


@dataclass(frozen=True, slots=True)
class Route:
    """A route. ``index`` is its outgoing link, None if it has none (a blackhole) or several (``hops``)."""

    family: str
    table: str
    destination: str
    source: str | None
    tos: int
    metric: int
    type: str
    scope: str
    protocol: str
    index: int | None
    gateway: str | None
    preferred_source: str | None
    hops: tuple[Hop, ...]
    flags: tuple[str, ...]

    @property
    def identity(self) -> Identity:
        """All but the flags: routes that differ in any other member can coexist."""
        place = (self.family, self.table, self.destination, self.source, self.tos, self.metric)
        way = (self.type, self.scope, self.protocol, self.index, self.gateway, self.preferred_source, self.hops)
        return (Route, *place, *way)

    def key(self, _names: Names) -> str | None:
        """Return the routing key; several routes can share one."""
        return route_key(self.table, self.destination)

    def attributes(self, names: Names) -> Attributes:
        """Return the published attributes."""
        hops: list[Json] = [
            {"oif": hop.index, "name": _name_text(names, hop.index), "gateway": hop.gateway, "weight": hop.weight} for hop in self.hops
        ]
        return {
            "index": self.index,
            "name": _name_text(names, self.index),
            "family": self.family,
            "table": self.table,
            "destination": self.destination,
            "source": self.source,
            "tos": self.tos,
            "metric": self.metric,
            "type": self.type,
            "scope": self.scope,
            "protocol": self.protocol,
            "oif": self.index,
            "gateway": self.gateway,
            "preferred_source": self.preferred_source,
            "hops": hops,
            "flags": list(self.flags),
        }


@dataclass(frozen=True, slots=True)
class Neighbour:
    """An entry of the ARP or neighbour discovery cache."""

    index: int
    family: str
    address: str
    mac: str | None
    state: str
    flags: tuple[str, ...]

    @property
    def identity(self) -> Identity:
        """Link and address."""
        return (Neighbour, self.index, self.address)

    def key(self, names: Names) -> str | None:
        """Return the routing key, None while its link is unknown."""
        name = names(self.index)
        return None if name is None else neighbour_key(name, self.address)

    def attributes(self, names: Names) -> Attributes:
        """Return the published attributes."""
        return {
            "index": self.index,
            "name": _name_text(names, self.index),
            "family": self.family,
            "address": self.address,
            "mac": self.mac,
            "state": self.state,
            "flags": list(self.flags),
        }


Entry = Link | Address | Route | Neighbour


def text(name: bytes) -> str:
    """Return *name* as text. Bytes that are not UTF-8 become U+FFFD, because JSON has no bytes; the key has the exact name."""
    return name.decode("utf-8", "replace")


def _name_text(names: Names, index: int | None) -> str | None:
    """Return the name of a link for a payload, None without a link."""
    name = None if index is None else names(index)
    return None if name is None else text(name)


def escape(segment: bytes | str) -> str:
    """Return *segment* as one segment of a key; urllib.parse.unquote_to_bytes() reverses it."""
    return quote_from_bytes(segment.encode() if isinstance(segment, str) else segment, safe=_PLAIN)


def link_key(name: bytes) -> str:
    """Return ``net/link/<name>``."""
    return f"net/link/{escape(name)}"


def address_key(name: bytes, local: str, peer: str | None, prefix_length: int) -> str:
    """Return ``net/address/<name>/<local>%2F<prefix length>``; for a point-to-point address ``<local>,<peer>%2F…``.

    The key contains all that distinguishes two addresses of a link: the kernel accepts both 10.0.0.1/24 and 10.0.0.1/16.
    """
    ends = f"{local},{peer}" if peer else local
    return f"net/address/{escape(name)}/{escape(f'{ends}/{prefix_length}')}"


def route_key(table: str, destination: str) -> str:
    """Return ``net/route/<table>/<destination>``, the destination ``default`` or a prefix such as ``10.0.0.0%2F8``."""
    return f"net/route/{escape(table)}/{escape(destination)}"


def neighbour_key(name: bytes, address: str) -> str:
    """Return ``net/neighbour/<name>/<address>``."""
    return f"net/neighbour/{escape(name)}/{escape(address)}"
