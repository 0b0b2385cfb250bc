"""Notices two hosts that have one number, such as clones of a machine: verified messages of one host from two addresses in turn."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

SECONDS = 60.0
"""Time within which messages from two addresses must alternate."""

CHANGES = 4
"""Number of changes of the address within that time. A host that moves changes once, and back."""

MAX_HOSTS = 10_000


@dataclass(slots=True)
class _Seen:
    """The addresses of one host: the newest and the one before, and the changes since ``since``."""

    address: str
    before: str
    since: float
    changes: int = 0


class SharedNumbers:
    """The addresses from which verified messages of each host came."""

    def __init__(self) -> None:
        self._seen: OrderedDict[int, _Seen] = OrderedDict()

    def other_address(self, twin: int, address: str, now: float) -> str | None:
        """Note a verified message of *twin* from *address* at *now*, in monotonic seconds.

        Return the other address if messages come from both in turn, else None.
        """
        seen = self._seen.get(twin)
        if seen is None:
            self._seen[twin] = _Seen(address, "", now)
            if len(self._seen) > MAX_HOSTS:
                self._seen.popitem(last=False)
            return None
        if address == seen.address:
            return None
        is_return = address == seen.before and now - seen.since <= SECONDS
        seen.changes, seen.since = (seen.changes + 1, seen.since) if is_return else (1, now)
        seen.address, seen.before = address, seen.address
        if seen.changes < CHANGES:
            return None
        seen.changes, seen.since = 0, now
        return seen.before
