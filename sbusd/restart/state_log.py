"""A chronicle that is written to memory which the service manager keeps. Spec: sbusd(8), RESTARTS.

When the log has grown, it is rewritten in steps between turns (:mod:`sbusd.restart.snapshot`), none of which holds up messages for
long. What users write to it is charged to them (:mod:`sbusd.state.usage`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from sbusd.broker import log_messages
from sbusd.broker.change_log import Chronicle
from sbusd.broker.durable_state import Parts, bus_of
from sbusd.broker.roster import Client
from sbusd.restart.connection_store import ParkingLot
from sbusd.restart.snapshot import Snapshot
from sbusd.state import records
from sbusd.state.log_file import StateFile
from sbusd.state.records import ConnectionState

NUMBERS_AT_ONCE = 1_024
"""Numbers of connections that one record sets aside; at most that many are skipped after a kill."""

LEAST_BYTES = 1 << 20
"""A log that is smaller is not rewritten because of its length: some ten thousand changes."""

USER_SHARE = 4
"""The log is rewritten as soon as one user's changes in it take this part of the user's ``state_bytes``, so that few are refused."""

RETRY_SECONDS = 10.0
"""How long a state that could not be written rests before it is tried again: memory may be free by then."""


class KeptChronicle(Chronicle):
    """Writes to *file*, and parks connections in *lot*; *parts* returns the parts of the broker as they are now."""

    def __init__(self, file: StateFile, lot: ParkingLot, parts: Callable[[], Parts]) -> None:
        self.file = file
        self.lot = lot
        self._parts = parts
        made = parts()
        self._switch = made.switch
        self._journal = made.journal
        self._quotas = made.quotas
        self._usage = made.quotas.state_usage
        self._snapshot: Snapshot | None = None
        self._image_bytes = 0
        self._is_due = False
        self._is_aside = False
        """Whether the log that counts is for the process that follows in place."""
        self._numbers = 0
        self._failures = 0
        self._rewrites = 0
        self._rests_until = 0.0
        self.is_good = False
        """Whether what is written down holds."""
        self._says_unparked = True

    def begin(self) -> None:
        """Write down how things stand, all at once, and park everybody; what the file held before does not count any more."""
        self.file.free_rest()
        self._begin_snapshot()
        while self._snapshot is not None:
            self._go_on(self._snapshot)
        if not self.is_good:
            self.file.invalidate()
        self.file.free_all()
        self._usage.free()
        if not self.lot.park_all():
            self._note_unparked()

    def numbered(self, connection: int) -> None:
        """Set numbers aside, some at a time."""
        if connection >= self._numbers:
            self._numbers = connection + NUMBERS_AT_ONCE
            self._append(records.reserved(self._numbers), None, is_covered=True)

    def opened(self, client: Client) -> None:
        """Write down a client, and park its connection."""
        settings = self._switch.settings(client.connection)
        who = client.credentials
        ids = (who.pid, who.uid, who.gid)
        self._note(client, records.opened(ConnectionState(client.connection, client.inode, client.since, settings, who=ids)))
        if not self.lot.park(client.fd):
            self._note_unparked()
        self._ask_for_steps()

    def closed(self, client: Client) -> None:
        """Write down an end. Its connection lies in the lot until that is rewritten, shut down."""
        self._note(client, records.closed(client.connection))

    def subscribed(self, client: Client, pattern: bytes) -> None:
        """Write down one more instance of a pattern."""
        self._note(client, records.subscribed(client.connection, pattern), pattern)

    def unsubscribed(self, client: Client, pattern: bytes) -> None:
        """Write down one instance less."""
        self._note(client, records.unsubscribed(client.connection, pattern), pattern)

    def changed(self, client: Client) -> None:
        """Write down what a client has asked for itself."""
        self._note(client, records.changed(client.connection, self._switch.settings(client.connection)))

    def tapped(self, client: Client, pattern: bytes | None) -> None:
        """Write down a tap, or its end."""
        self._note(client, records.tapped(client.connection, pattern))

    @property
    def has_work(self) -> bool:
        """Whether the log is being rewritten, or is to be, or the memory of an old one is to be given back."""
        is_due = self._is_due and time.monotonic() >= self._rests_until
        return self._snapshot is not None or self.file.has_waste or is_due or self.lot.has_work

    def step(self) -> None:
        """Write some records of a new log, or give back some memory of an old one, or move some parked connections."""
        if self.lot.has_work:
            unparked = self.lot.unparked
            self.lot.step()
            if self.lot.unparked > unparked:
                self._note_unparked()
        elif self._snapshot is not None:
            self._go_on(self._snapshot)
        elif self.file.has_waste:
            if not self.file.free_some():
                self._usage.free()
        elif self.has_work:
            self._begin_snapshot()

    def write_aside(self, image: Iterable[bytes]) -> None:
        """Let *image* count for the process that is about to follow in place. Raises OSError, and nothing has changed but a draft."""
        self._abandon_snapshot()
        self.file.draft_all(image)
        self._usage.free()
        self.file.commit_draft()
        self._is_aside = True

    def take_back(self) -> None:
        """Let what was written before :meth:`write_aside` count again: this process goes on. To give its memory back takes steps."""
        if self._is_aside:
            self._is_aside = False
            self.file.revert()
            if not self.is_good:
                self.file.invalidate()

    def counts(self) -> dict[str, int]:
        """Return what could not be kept, and how often the log was rewritten."""
        return {"connections_unparked": self.lot.unparked, "state_failures": self._failures, "state_rewrites": self._rewrites}

    def _note(self, client: Client, record: bytes, pattern: bytes | None = None) -> None:
        """Write down a change of a client's, or of one of its patterns."""
        is_covered = self._snapshot is not None and self._snapshot.covers(client.connection, pattern)
        self._append(record, client.credentials.uid, is_covered=is_covered)

    def _append(self, record: bytes, uid: int | None, *, is_covered: bool) -> None:
        """Write a change by the user *uid*, to the draft too if it is about what is written there."""
        before = self.file.size
        if self.is_good:
            try:
                self.file.append(record)
            except OSError as error:
                self._fail(error)
            else:
                self._charge_log(uid, self.file.size - before)
        if is_covered and self._snapshot is not None:
            try:
                size = self.file.add_to_draft([record])
            except OSError as error:
                self._drop_snapshot(error)
            else:
                if uid is not None:
                    self._usage.add_to_draft(uid, size)
        self._ask_for_steps()

    def _ask_for_steps(self) -> None:
        """Have :meth:`Switch.run` return where :meth:`step` has something to do."""
        if self.has_work:
            self._switch.return_soon()

    def _charge_log(self, uid: int | None, size: int) -> None:
        """Charge a change to its user, and find out whether the log is to be rewritten."""
        is_due = self.file.size > 2 * max(self._image_bytes, LEAST_BYTES)
        if uid is not None:
            self._usage.add_to_log(uid, size)
            is_due = is_due or self._usage.in_log(uid) * USER_SHARE > self._quotas.state_bytes(uid)
        self._is_due = self._is_due or is_due

    def _begin_snapshot(self) -> None:
        """Begin to rewrite the log."""
        self._is_due = False
        parts = self._parts()
        bus = bus_of(parts)
        bus.next_connection = max(bus.next_connection, self._numbers)
        try:
            self._snapshot = Snapshot(self.file, parts.switch, parts.roster, bus)
        except OSError as error:
            self._drop_snapshot(error)

    def _go_on(self, snapshot: Snapshot) -> None:
        """Write some of the new log; if it is complete, it counts from now on."""
        try:
            if snapshot.step():
                return
        except OSError as error:
            self._drop_snapshot(error)
            return
        self._snapshot = None
        self.file.commit_draft()
        self._usage.commit()
        self._rewrites += 1
        self._image_bytes = self.file.size
        self.is_good = True

    def _drop_snapshot(self, error: OSError) -> None:
        """Give up the new log for some time; what the old one says still holds, if it did."""
        self._abandon_snapshot()
        self._note_failure(error)

    def _abandon_snapshot(self) -> None:
        """Give up the new log, if one is being written."""
        if self._snapshot is not None:
            self._is_due = True
        self._snapshot = None
        self.file.drop_draft()
        self._usage.drop_draft()

    def _fail(self, error: OSError) -> None:
        """Take note that the state is not kept: what the file says is not so any more, and must not be believed."""
        self.is_good = False
        self.file.invalidate()
        self._usage.drop_log()
        self._note_failure(error)

    def _note_failure(self, error: OSError) -> None:
        """Count what could not be written, try again later, and record it if connections would not outlive the bus meanwhile."""
        self._failures += 1
        self._is_due = True
        self._rests_until = time.monotonic() + RETRY_SECONDS
        if not self.is_good:
            self._journal.record(log_messages.STATE_UNKEPT, reason=f"{error.strerror}; its log has {self.file.size} bytes")

    def _note_unparked(self) -> None:
        """Record, once, that a connection would end with this process."""
        if self._says_unparked:
            self._says_unparked = False
            self._journal.record(log_messages.CONNECTION_UNPARKED)
