"""Journal entries that the bus writes because of the feed's messages. Publishing them would cause an endless loop.

Example: a slow subscriber loses a message, the bus logs that, the feed publishes the log entry, the subscriber loses it, and so on. So
these entries are not published. The bus itself notifies subscribers of lost messages.
"""

from __future__ import annotations

import re

from sbusd.feeds.journal.entry import JournalEntry

PACKETS_LOST = b"42f13a4bdc354a9fb0e263134c20ef30"
QUOTA_REFUSED = b"a4f27f03c99c47a6824bdd67ab0d11b6"
SUPPRESSED = b"f8c730d37c22450d91c169fc5dfd85c1"

_CAUSED = frozenset({PACKETS_LOST, QUOTA_REFUSED, SUPPRESSED})
"""MESSAGE_ID of log entries about recipients that any message can cause; sbusd(8) lists them."""

_BUS_UNIT = re.compile(rb"sbus(@.*)?\.service", re.DOTALL)


def is_echo(entry: JournalEntry, pid: int, uid: int) -> bool:
    """Return whether a bus wrote *entry* about this feed, the process *pid* of *uid*, or because of some message.

    Only trusted fields decide who wrote the entry; otherwise any user could write entries that the feed omits.
    """
    if not _is_of_a_bus(entry, uid):
        return False
    return entry.first("MESSAGE_ID") in _CAUSED or entry.first("SBUS_PEER_PID") == b"%d" % pid


def _is_of_a_bus(entry: JournalEntry, uid: int) -> bool:
    """Return whether the writer is a bus: the system's, or the user's own under the user's own manager."""
    if _BUS_UNIT.fullmatch(entry.first("_SYSTEMD_UNIT") or b""):
        return True
    return entry.first("_UID") == b"%d" % uid and bool(_BUS_UNIT.fullmatch(entry.first("_SYSTEMD_USER_UNIT") or b""))
