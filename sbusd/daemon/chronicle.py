"""What a bus writes down as it goes, so that it is known after a kill(2) at any instant. Spec: sbusd(8), RESTARTS.

A message costs nothing here: only what the control plane does is written, a record a change, before the client learns of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from sbusd.daemon import messages, state
from sbusd.daemon.contract import Switch
from sbusd.daemon.journal import Journal
from sbusd.daemon.parking import ParkingLot
from sbusd.daemon.roster import Client
from sbusd.daemon.state import ConnectionState, State
from sbusd.daemon.statefile import StateFile

NUMBERS_AT_ONCE = 1_024
"""Numbers of connections that one record sets aside; so many are skipped at most after a kill."""

LEAST_BYTES = 1 << 20
"""A log that is smaller is never written anew: some ten thousand changes."""

RETRY_SECONDS = 10.0
"""How long a state that could not be written rests before it is tried again: whoever has used up the memory may be gone by then."""


class Chronicle:
    """That of a bus whose state nobody would keep: nothing is written."""

    def numbered(self, connection: int) -> None:
        """Note that a number of a connection is in use: before anybody learns of it."""

    def opened(self, client: Client) -> None:
        """Note that there is a new client."""

    def closed(self, connection: int) -> None:
        """Note that a client has gone."""

    def subscribed(self, connection: int, pattern: bytes) -> None:
        """Note that one more instance of a pattern is stored."""

    def unsubscribed(self, connection: int, pattern: bytes) -> None:
        """Note that there is one instance less."""

    def changed(self, connection: int) -> None:
        """Note that a client has asked for something else for itself: echo, modes."""

    def tapped(self, connection: int, pattern: bytes | None) -> None:
        """Note that a client has a tap, or with None that it has none any more."""

    def counts(self) -> dict[str, int]:
        """Return what could not be kept, for statistics."""
        return {"connections_unparked": 0, "state_failures": 0}


class KeptChronicle(Chronicle):
    """Writes to *file*, and parks connections in *lot*; *standing* tells all that must be known now."""

    def __init__(self, file: StateFile, lot: ParkingLot, switch: Switch, standing: Callable[[], State], journal: Journal) -> None:
        self.file = file
        self.lot = lot
        self._switch = switch
        self._standing = standing
        self._journal = journal
        self._image_bytes = 0
        self._numbers = 0
        self._failures = 0
        self._rests_until = 0.0
        self.is_good = False
        """Whether what is written down holds."""
        self._says_unparked = True

    def begin(self) -> None:
        """Write down how things stand, and park everybody; what the file held before does not count any more."""
        self._write_image()
        if not self.lot.park_all():
            self._note_unparked()

    def numbered(self, connection: int) -> None:
        """Set numbers aside, some at a time."""
        if connection >= self._numbers:
            self._numbers = connection + NUMBERS_AT_ONCE
            self._append(state.reserved(self._numbers))

    def opened(self, client: Client) -> None:
        """Write down a client, and park its connection."""
        settings = self._switch.settings(client.connection)
        who = client.credentials
        ids = (who.pid, who.uid, who.gid)
        self._append(state.opened(ConnectionState(client.connection, client.inode, client.since, settings, who=ids)))
        if not self.lot.park(client.fd):
            self._note_unparked()

    def closed(self, connection: int) -> None:
        """Write down an end. Its connection lies in the lot until that is rewritten, shut down."""
        self._append(state.closed(connection))

    def subscribed(self, connection: int, pattern: bytes) -> None:
        """Write down one more instance of a pattern."""
        self._append(state.subscribed(connection, pattern))

    def unsubscribed(self, connection: int, pattern: bytes) -> None:
        """Write down one instance less."""
        self._append(state.unsubscribed(connection, pattern))

    def changed(self, connection: int) -> None:
        """Write down what a client has asked for itself."""
        self._append(state.changed(connection, self._switch.settings(connection)))

    def tapped(self, connection: int, pattern: bytes | None) -> None:
        """Write down a tap, or its end."""
        self._append(state.tapped(connection, pattern))

    def counts(self) -> dict[str, int]:
        """Return what could not be kept."""
        return {"connections_unparked": self.lot.unparked, "state_failures": self._failures}

    def _append(self, record: bytes) -> None:
        """Write a record, or all anew where that is due. Every caller has done what it tells of, so an image has it too."""
        if not self.is_good:
            if time.monotonic() >= self._rests_until:
                self._write_image()
            return
        if self.file.size > 2 * max(self._image_bytes, LEAST_BYTES):
            self._write_image()
            return
        try:
            self.file.append(record)
        except OSError as error:
            self._fail(error)

    def _write_image(self) -> None:
        """Write down how things stand."""
        standing = self._standing()
        standing.bus.next_connection = max(standing.bus.next_connection, self._numbers)
        try:
            self.file.replace(state.image(standing))
        except OSError as error:
            self._fail(error)
            return
        self.is_good = True
        self._image_bytes = self.file.size

    def _fail(self, error: OSError) -> None:
        """Take note that the state is not kept: what the file says is not so any more, and must not be believed."""
        self._failures += 1
        self.is_good = False
        self._rests_until = time.monotonic() + RETRY_SECONDS
        self.file.invalidate()
        self._journal.record(messages.STATE_UNKEPT, reason=f"{error.strerror}; its log has {self.file.size} bytes")

    def _note_unparked(self) -> None:
        """Record, once, that a connection would end with this process."""
        if self._says_unparked:
            self._says_unparked = False
            self._journal.record(messages.CONNECTION_UNPARKED)
