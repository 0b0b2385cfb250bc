"""A new log of the kept state, written in steps while the bus works. Spec: sbusd(8), RESTARTS.

The snapshot goes through the connections by their numbers, and through the patterns of each in the order of their bytes. At any time the
draft says exactly how things stand up to the place that was reached: what changes before that place is added to the draft as a change,
and what changes behind it is found when the snapshot gets there. So when the last connection is written, the draft says all there is.
"""

from __future__ import annotations

from sbusd.broker.durable_state import head_of
from sbusd.broker.roster import Roster
from sbusd.dataplane.contract import Switch
from sbusd.state import records as state
from sbusd.state.log_file import StateFile
from sbusd.state.records import BusState

STEP_PATTERNS = 16
"""Patterns that one step writes at most."""

STEP_BYTES = 16 << 10
"""Bytes of patterns after which a step ends."""


class Snapshot:
    """One draft of *file*, and how far it is. Raises OSError, here and in each step, if memory is short; then drop the draft."""

    def __init__(self, file: StateFile, switch: Switch, roster: Roster, bus: BusState) -> None:
        """Begin the draft."""
        self._file = file
        self._switch = switch
        self._roster = roster
        self._connection = 0
        self._last: bytes | None = None
        self._is_whole = True
        """Whether all of the connection is written."""
        file.begin_draft()
        try:
            file.add_to_draft([state.begun(bus)])
        except OSError:
            file.drop_draft()
            raise

    def covers(self, connection: int, pattern: bytes | None = None) -> bool:
        """Return whether a change of a connection, or of one of its patterns, is to be added: the draft has already been there."""
        if connection != self._connection:
            return connection < self._connection
        return pattern is None or self._is_whole or (self._last is not None and pattern <= self._last)

    def step(self) -> bool:
        """Write the next connection, or some patterns of it, and return whether anything is left."""
        records: list[bytes] = []
        if self._is_whole or self._connection not in self._roster:
            client = self._roster.following(self._connection)
            if client is None:
                return False
            self._connection, self._last, self._is_whole = client.connection, None, False
            records.append(state.opened(head_of(self._switch, client)))
            if client.tap is not None:
                records.append(state.tapped(client.connection, client.tap))
        patterns = self._switch.patterns_after(self._connection, self._last, STEP_PATTERNS)
        self._is_whole = len(patterns) < STEP_PATTERNS
        size = 0
        for pattern in patterns:
            if size >= STEP_BYTES:
                self._is_whole = False
                break
            records.append(state.stored(self._connection, pattern, self._switch.instances(self._connection, pattern)))
            self._last = pattern
            size += len(pattern)
        if records:
            self._file.add_to_draft(records)
        return True
