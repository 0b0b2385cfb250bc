"""Who owns a bus, and who may connect to it. Spec: sbusd.toml(5), allowed_users and admins."""

from __future__ import annotations

import os
from dataclasses import dataclass

from sbusd.config.settings import DaemonSettings


@dataclass(frozen=True, slots=True)
class BusOwnership:
    """Whose bus it is: the uid it runs as, the uids that may connect (None: everyone), those that own it, and if it ends when empty."""

    own_uid: int
    allowed: frozenset[int] | None
    owners: frozenset[int]
    ends_when_empty: bool = False
    protected: frozenset[int] = frozenset()
    """Users whose disconnection by the bus is recorded as critical."""

    @classmethod
    def of(cls, settings: DaemonSettings, extra_users: tuple[int, ...] = (), *, ends_when_empty: bool = False) -> BusOwnership:
        """Return the ownership that *settings* and the users of ``-u`` make for this process."""
        own = os.geteuid()
        named = frozenset(settings.allowed_users) | frozenset(extra_users)
        owners = frozenset({0, own}) | frozenset(settings.admins)
        return cls(own, named | {own} if named else None, owners, ends_when_empty, frozenset(settings.protected_users))

    def admits(self, uid: int) -> bool:
        """Return whether a user may connect."""
        return self.allowed is None or uid in self.allowed
