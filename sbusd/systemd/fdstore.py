"""The file descriptor store of the service manager, which outlives the process. Source: sd_pid_notify_with_fds(3), systemd.service(5).

systemd empties it when the service is stopped or has finally failed, but not on a restart. The bus does not need to know which.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import closing

from sbusd.protocol.errors import SbusError
from sbusd.systemd.service_manager import START_SECONDS, ServiceManager

PAIRS = 2
"""Socket pairs of the connection store, two descriptors each."""

STATE = "sbus-state"
"""FDNAME of the state file."""

CONNECTION_STORE = tuple(f"sbus-connections-{number}" for number in range(2 * PAIRS))
"""FDNAMEs of the ends of the connection store. Never rename them: after an upgrade the new process finds what the old one stored."""

NAMES = frozenset({STATE, *CONNECTION_STORE})


class DescriptorStoreError(SbusError, OSError):
    """The service manager cannot be notified; the text is one line."""


def is_there(environment: Mapping[str, str]) -> bool:
    """Return whether the service manager keeps stored descriptors after this process ends.

    Since systemd 254, $FDSTORE is the maximum number of descriptors. Older versions do not set it; then the bus assumes that there is
    a store. Without a store, systemd closes what it receives, which does no harm.
    """
    if not environment.get("NOTIFY_SOCKET"):
        return False
    return environment.get("FDSTORE", "") != "0"


def put(state: int, connection_store: list[int]) -> None:
    """Store these descriptors, and remove what was stored under their names. Raises DescriptorStoreError."""
    until = time.monotonic() + START_SECONDS
    try:
        with closing(ServiceManager(os.environ["NOTIFY_SOCKET"])) as manager:
            for name, fd in zip((STATE, *CONNECTION_STORE), (state, *connection_store), strict=True):
                manager.deliver(f"FDSTOREREMOVE=1\nFDNAME={name}", until=until)
                manager.deliver(f"FDSTORE=1\nFDNAME={name}", fd, until=until)
    except OSError as error:
        raise DescriptorStoreError(f"cannot store descriptors through $NOTIFY_SOCKET: {error.strerror}") from None
