"""The rewrite of the state log in steps, while the bus serves its clients. Spec: sbusd(8), RESTARTS.

The snapshot walks through the connections by number, and through the patterns of each in the order of their bytes. At any time the draft
has the exact state up to the current position. A change before that position is added to the draft as a change; a change after it is
included when the snapshot gets there. So after the last connection the draft has the whole state.
"""

from __future__ import annotations

from sbusd.broker.durable_state import connection_state
from sbusd.broker.roster import Roster
from sbusd.dataplane.contract import Switch
from sbusd.state import records
from sbusd.state.log_file import StateFile
from sbusd.state.records import BusState

STEP_PATTERNS = 16
"""Maximum number of patterns that one step writes."""

STEP_BYTES = 16 << 10
"""Size of patterns, in bytes, after which a step ends."""


class Snapshot:
    """A draft of *file*, and its position. Raises OSError, also in each step, if there is not enough memory; then drop the draft."""

    def __init__(self, file: StateFile, switch: Switch, roster: Roster, bus: BusState) -> None:
        """Start the draft with the state of the *bus*."""
        self._file = file
        self._switch = switch
        self._roster = roster
        self._connection = 0
        self._last: bytes | None = None
        self._is_whole = True
        """Whether the current connection is written completely."""
        file.begin_draft()
        try:
            file.add_to_draft([records.begun(bus)])
        except OSError:
            file.drop_draft()
            raise

    def covers(self, connection: int, pattern: bytes | None = None) -> bool:
        """Return whether a change of a connection, or of one of its patterns, must be added: its position has been passed."""
        if connection != self._connection:
            return connection < self._connection
        return pattern is None or self._is_whole or (self._last is not None and pattern <= self._last)

    def step(self) -> bool:
        """Write the next connection, or some of its patterns, and return whether there is more to write."""
        found: list[bytes] = []
        if self._is_whole or self._connection not in self._roster:
            client = self._roster.following(self._connection)
            if client is None:
                return False
            self._connection, self._last, self._is_whole = client.connection, None, False
            found.append(records.opened(connection_state(self._switch, client)))
            if client.tap is not None:
                found.append(records.tapped(client.connection, client.tap))
        patterns = self._switch.patterns_after(self._connection, self._last, STEP_PATTERNS)
        self._is_whole = len(patterns) < STEP_PATTERNS
        size = 0
        for pattern in patterns:
            if size >= STEP_BYTES:
                self._is_whole = False
                break
            found.append(records.stored(self._connection, pattern, self._switch.instances(self._connection, pattern)))
            self._last = pattern
            size += len(pattern)
        if found:
            self._file.add_to_draft(found)
        return True
