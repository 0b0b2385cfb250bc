"""Admission: the owners of a bus, and the users that may connect to it. Spec: sbusd.toml(5), allowed_users and admins."""

from __future__ import annotations

import os
from dataclasses import dataclass

from sbusd.config.settings import DaemonSettings


@dataclass(frozen=True, slots=True)
class BusOwnership:
    """The uid that the bus runs as, the uids that may connect (None: all), and those that own it.

    ``ends_when_empty``: the bus stops when the last client has disconnected.
    """

    own_uid: int
    allowed: frozenset[int] | None
    owners: frozenset[int]
    ends_when_empty: bool = False
    protected: frozenset[int] = frozenset()
    """Users whose disconnection by the bus is logged as critical."""

    @classmethod
    def of(cls, settings: DaemonSettings, extra_users: tuple[int, ...] = (), *, ends_when_empty: bool = False) -> BusOwnership:
        """Return the ownership by *settings* and the users of option ``-u``, for this process."""
        own = os.geteuid()
        named = frozenset(settings.allowed_users) | frozenset(extra_users)
        owners = frozenset({0, own}) | frozenset(settings.admins)
        return cls(own, named | {own} if named else None, owners, ends_when_empty, frozenset(settings.protected_users))

    def admits(self, uid: int) -> bool:
        """Return whether a user may connect."""
        return self.allowed is None or uid in self.allowed

    @staticmethod
    def denial(uid: int) -> str:
        """Return the reason for rejecting a user that may not connect."""
        return f"user {uid} is not admitted to this bus by its -u options and allowed_users"
