"""Who blocks whom, as a switch says it. Spec: sbus-protocol(7) §7."""

from __future__ import annotations

from typing import NamedTuple

NAMED_WAITS = 4
"""Recipients that are named as blocking a connection, and publishers as blocked by it: it may be thousands."""


class Wait(NamedTuple):
    """A wait of a publisher for a recipient, as seen from one of the two."""

    connection: int
    """The other one."""
    is_paced: bool
    """The publisher waits because it asked for pacing; else because the recipient asked to block publishers."""
    ms: int
    """For how long."""


class Waits(NamedTuple):
    """Whom a connection waits for as a publisher, and who waits for it as a recipient."""

    is_paced: bool
    blocked_by_count: int
    blocks_count: int
    blocked_ms: int
    """How long it has waited, since it was adopted; a wait for several at a time counts once."""
    blocked_others_ms: int
    """How long others have waited for it, added up."""
    blocked_by: tuple[Wait, ...]
    """Recipients that it waits for, by number; :data:`NAMED_WAITS` at most, and not all of those if very many connections wait."""
    blocks: tuple[Wait, ...]
    """Publishers that wait for it, likewise."""


class UserWaits(NamedTuple):
    """For how long a user's connections have waited, and have let others wait, added up, since its oldest one came."""

    blocked_ms: int
    blocked_others_ms: int
