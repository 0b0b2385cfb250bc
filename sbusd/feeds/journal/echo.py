"""What the bus writes into the journal because of what the feed publishes: published too, it would cause itself for ever.

A subscriber that reads too slowly loses a message, the bus records that, the feed publishes the record, the subscriber loses it …
So those records stay in the journal alone, which is where they are read; a subscriber is told of its losses by the bus itself.
"""

from __future__ import annotations

import re

from sbusd.feeds.journal.entry import JournalEntry

PACKETS_LOST = b"42f13a4bdc354a9fb0e263134c20ef30"
QUOTA_REFUSED = b"a4f27f03c99c47a6824bdd67ab0d11b6"
SUPPRESSED = b"f8c730d37c22450d91c169fc5dfd85c1"

_CAUSED = frozenset({PACKETS_LOST, QUOTA_REFUSED, SUPPRESSED})
"""Records that any message can cause, about its recipients, by MESSAGE_ID; sbusd(8) lists them."""

_BUS_UNIT = re.compile(rb"sbus(@.*)?\.service", re.DOTALL)


def is_echo(entry: JournalEntry, pid: int, uid: int) -> bool:
    """Return whether *entry* is a record of a bus about this feed, the process *pid* of *uid*, or of what any message can cause.

    Only by what journald itself says of who wrote it: else anybody could write entries that the feed leaves out.
    """
    if not _is_of_a_bus(entry, uid):
        return False
    return entry.first("MESSAGE_ID") in _CAUSED or entry.first("SBUS_PEER_PID") == b"%d" % pid


def _is_of_a_bus(entry: JournalEntry, uid: int) -> bool:
    """Return whether a service of this project wrote it: the system's, or the user's own under the user's own manager."""
    if _BUS_UNIT.fullmatch(entry.first("_SYSTEMD_UNIT") or b""):
        return True
    return entry.first("_UID") == b"%d" % uid and bool(_BUS_UNIT.fullmatch(entry.first("_SYSTEMD_USER_UNIT") or b""))
