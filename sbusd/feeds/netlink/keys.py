"""The routing keys of the netlink feed, made from names that others choose. Spec: sbus-feed(8), KEYS.

A link's name can contain any bytes but NUL, ``/``, ``:`` and white space, for example ``*``, ``!`` or incomplete UTF-8. So each byte
except ASCII letters, digits and ``_.-~:@+,=`` is written ``%XX``, as in a URL. Names then cannot add segments, be confused with other
names, or begin a reserved key, and they are printable and reversible.
"""

from __future__ import annotations

from urllib.parse import quote_from_bytes

REQUEST = "net/request"
SNAPSHOT_BEGIN = "net/snapshot/begin"
SNAPSHOT_END = "net/snapshot/end"

_PLAIN = ":@+,="


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
