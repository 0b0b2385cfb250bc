"""Which connections block which, as a switch reports it. Spec: sbus-protocol(7) §7."""

from __future__ import annotations

from typing import NamedTuple

NAMED_WAITS = 4
"""How many recipients that block a connection are named, and how many publishers that it blocks: there may be thousands."""


class Wait(NamedTuple):
    """A wait of a publisher for a recipient, as seen from one of the two."""

    connection: int
    """The number of the other one."""
    is_paced: bool
    """The publisher waits because it asked for pacing; otherwise because the recipient asked to block publishers."""
    ms: int
    """Milliseconds since the wait began."""


class Waits(NamedTuple):
    """The recipients for which a connection waits, and the publishers that wait for it."""

    is_paced: bool
    blocked_by_count: int
    blocks_count: int
    blocked_ms: int
    """How long it has waited since it was adopted; simultaneous waits count once."""
    blocked_others_ms: int
    """How long publishers have waited for it, in total."""
    blocked_by: tuple[Wait, ...]
    """Recipients for which it waits, by number; at most :data:`NAMED_WAITS`, and fewer if very many connections wait."""
    blocks: tuple[Wait, ...]
    """Publishers that wait for it, by number; at most :data:`NAMED_WAITS`."""


class UserWaits(NamedTuple):
    """How long a user's publishers have waited, and publishers for its recipients, in total, since its oldest connection began."""

    blocked_ms: int
    blocked_others_ms: int
