"""The user of another service, by name. The user database is read in a thread: a directory service can be slow, and the event loop serves
all users."""

from __future__ import annotations

import os
import pwd

from sbus.asyncio.look_ups import LookUps


class NamedUser:
    """The user *name*. Its number is remembered once it is found: the package of the service can be installed later."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._uid: int | None = None
        self._look_ups = LookUps()

    async def is_trusted(self, uid: int, charged: int = 0) -> bool:
        """Return whether *uid* is root, the user of this process, or this user. Raises what :meth:`has_uid` raises."""
        return uid in (0, os.geteuid()) or await self.has_uid(uid, charged)

    async def has_uid(self, uid: int, charged: int = 0) -> bool:
        """Return whether *uid* is the number of this user. Only *charged* waits for the look-up.

        Raises:
            TimeoutError: the user database did not respond in time.
            RuntimeError, MemoryError: no thread is left.
        """
        if self._uid is None:
            self._uid = await self._look_ups.run(charged, self._found)
        return uid == self._uid

    def _found(self) -> int | None:
        """Return the number of the user, None if there is none."""
        try:
            return pwd.getpwnam(self._name).pw_uid
        except KeyError:
            return None
