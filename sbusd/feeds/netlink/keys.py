"""The routing keys of the netlink feed, from names that the feed does not choose. Spec: sbus-feed(8), KEYS.

A link's name is any bytes but NUL, ``/``, ``:`` and white space, so it can hold a ``*``, a ``!`` or half a UTF-8 character.
One rule keeps every segment a segment, printable and readable back: each byte but ASCII letters, digits and ``_.-~:@+,=`` is
written ``%XX``, as in a URL. So no name can add a segment, look like another name, or begin a reserved key.
"""

from __future__ import annotations

from urllib.parse import quote_from_bytes

REQUEST = "net/request"
SNAPSHOT_BEGIN = "net/snapshot/begin"
SNAPSHOT_END = "net/snapshot/end"

_PLAIN = ":@+,="


def escape(segment: bytes | str) -> str:
    """Return *segment* as one segment of a key; urllib.parse.unquote_to_bytes() gives it back."""
    return quote_from_bytes(segment.encode() if isinstance(segment, str) else segment, safe=_PLAIN)


def link_key(name: bytes) -> str:
    """Return ``net/link/<name>``."""
    return f"net/link/{escape(name)}"


def address_key(name: bytes, local: str, peer: str | None, prefix_length: int) -> str:
    """Return ``net/address/<name>/<local>%2F<prefix length>``; of a point-to-point address ``<local>,<peer>%2F…``.

    All that tells two addresses of a link apart is in the key: the kernel keeps 10.0.0.1/24 and 10.0.0.1/16 side by side.
    """
    ends = f"{local},{peer}" if peer else local
    return f"net/address/{escape(name)}/{escape(f'{ends}/{prefix_length}')}"


def route_key(table: str, destination: str) -> str:
    """Return ``net/route/<table>/<destination>``, the destination ``default`` or a prefix such as ``10.0.0.0%2F8``."""
    return f"net/route/{escape(table)}/{escape(destination)}"


def neighbour_key(name: bytes, address: str) -> str:
    """Return ``net/neighbour/<name>/<address>``."""
    return f"net/neighbour/{escape(name)}/{escape(address)}"
