"""The service manager's store of descriptors, which outlives the process. Source: sd_pid_notify_with_fds(3), systemd.service(5).

It is emptied when the service is stopped or has failed for good, not when it is restarted; that is not for the bus to tell apart.
"""

from __future__ import annotations

from collections.abc import Mapping

from systemd import daemon

from sbusd.protocol.errors import SbusError

PAIRS = 2
"""Socket pairs that hold the connections, two descriptors each."""

STATE = "sbus-state"
"""Name of the state in the store."""

LOT = tuple(f"sbus-lot-{number}" for number in range(2 * PAIRS))
"""Names of the ends of the parking lot."""

NAMES = frozenset({STATE, *LOT})


class StoreError(SbusError, OSError):
    """The service manager cannot be told; its text is one line."""


def is_there(environment: Mapping[str, str]) -> bool:
    """Return whether what is stored outlives this process, as far as the service manager says.

    Since systemd 254 $FDSTORE says how many descriptors it keeps. Older ones say nothing; then it is tried, for where they keep none
    they close what they are given, and nothing is worse than without.
    """
    if not environment.get("NOTIFY_SOCKET"):
        return False
    return environment.get("FDSTORE", "") != "0"


def put(state: int, lot: list[int]) -> None:
    """Store these, in place of what was stored under their names. Raises StoreError."""
    try:
        for name, fd in zip((STATE, *LOT), (state, *lot), strict=True):
            daemon.notify(f"FDSTOREREMOVE=1\nFDNAME={name}")
            daemon.notify(f"FDSTORE=1\nFDNAME={name}", fds=[fd])
    except OSError as error:
        raise StoreError(f"cannot store descriptors through $NOTIFY_SOCKET: {error.strerror}") from None
