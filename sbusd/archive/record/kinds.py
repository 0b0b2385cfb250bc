"""The kinds of rows in the record. Spec: sbus-record(5)."""

from __future__ import annotations

import enum


class Kind(enum.StrEnum):
    """The event of a row; the value is stored in the column ``kind``."""

    MESSAGE = "message"
    """The bus routed a message."""
    CONNECT = "connect"
    """A client connected."""
    DISCONNECT = "disconnect"
    """A client's connection ended."""
    SUBSCRIBE = "subscribe"
    """A client added a pattern: ``key``."""
    UNSUBSCRIBE = "unsubscribe"
    """A client removed a pattern: ``key``."""
    STANDING = "standing"
    """A client already has the pattern ``key``. The recorder repeats all known subscriptions at the start of each hour and after a
    ``gap``, so that the recipients of an hour can be derived from the rows of that hour alone. After a ``restart`` it knows none."""
    DENIAL = "denial"
    """The bus refused a request of a client: ``packet``, ``code``, ``reason``; ``key`` is the key or pattern."""
    LOSS = "loss"
    """``lost`` messages for the client ``conn`` were discarded."""
    TAP_LOSS = "tap_loss"
    """``lost`` rows are missing here: the recorder was too slow, and the bus discarded them."""
    GAP = "gap"
    """``lost`` rows are missing here, for ``duration`` nanoseconds: the recorder could not write because of ``reason``."""
    RESTART = "restart"
    """The recorder has a new connection to the bus, after ``duration`` nanoseconds without one. The number of missing rows is unknown."""
    RELAY = "relay"
    """The relay tried to forward a call to another host: ``twin``, ``attempt``; ``code`` and ``reason`` are the outcome."""


class Role(enum.StrEnum):
    """The role of a message in a call; the value is stored in the column ``call_role``."""

    REQUEST = "request"
    """A request, published to ``rpc/<cmd>``, ``!/conn/<id>/rpc/<cmd>`` or ``relay/<twin>/<cmd>``."""
    REPLY = "reply"
    """Its reply, published to the key that the request specified."""
