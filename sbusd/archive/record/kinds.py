"""The kinds of row in the record. Spec: sbus-record(5)."""

from __future__ import annotations

import enum


class Kind(enum.StrEnum):
    """What a row says happened; the value is what stands in the column ``kind``."""

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
    """A client has the pattern ``key`` already. The recorder tells every subscription that it knows anew at the start of each hour's
    record, and after a ``gap``: so an hour's recipients can be told from that hour's rows alone. After a ``restart`` it knows of none."""
    DENIAL = "denial"
    """The bus refused a client something: ``packet``, ``code``, ``reason``, and in ``key`` what it was about."""
    LOSS = "loss"
    """``lost`` messages for the client ``conn`` were discarded."""
    TAP_LOSS = "tap_loss"
    """``lost`` rows are missing here: the recorder was too slow, and the bus discarded them."""
    GAP = "gap"
    """``lost`` rows are missing here, of ``duration`` nanoseconds: the recorder could not write, ``reason`` says why."""
    RESTART = "restart"
    """The recorder's connection to the bus is new, after ``duration`` nanoseconds without one; how many rows are missing is unknown."""
    RELAY = "relay"
    """The relay tried to hand a call to another host: ``twin``, ``attempt``, ``code`` and ``reason`` of the outcome."""


class Role(enum.StrEnum):
    """What a message is to a call; the value is what stands in the column ``call_role``."""

    REQUEST = "request"
    """A request, published to ``rpc/<cmd>``, ``!/conn/<id>/rpc/<cmd>`` or ``relay/<twin>/<cmd>``."""
    REPLY = "reply"
    """Its answer, published to the key that the request named."""
