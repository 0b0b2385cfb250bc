"""The change log that is written to the state file, which the service manager keeps. Spec: sbusd(8), RESTARTS.

A log that has grown is rewritten in steps between turns (:class:`Snapshot`), so that messages are not delayed for long. The bytes that a
user causes are charged to that user (:class:`sbusd.broker.quotas.StateUsage`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from sbusd.broker import log_messages
from sbusd.broker.broker import Broker
from sbusd.broker.change_log import ChangeLog
from sbusd.broker.durable_state import bus_state, connection_state
from sbusd.broker.roster import Client, Roster
from sbusd.dataplane.contract import Switch
from sbusd.restart.connection_store import ConnectionStore
from sbusd.state import records
from sbusd.state.log_file import StateFile
from sbusd.state.records import BusState

NUMBERS_AT_ONCE = 1_024
"""Connection numbers that one record reserves; at most this many are skipped after a crash."""

LEAST_BYTES = 1 << 20
"""A smaller log is not rewritten because of its size: some ten thousand changes."""

USER_SHARE = 4
"""The log is rewritten when the changes of one user take this fraction of the user's ``state_bytes``, so that few are rejected."""

RETRY_SECONDS = 10.0
"""Seconds between a failure to write the state and the next attempt: memory may be free by then."""

STEP_PATTERNS = 16
"""Maximum number of patterns that one step writes."""

STEP_BYTES = 16 << 10
"""Size of patterns, in bytes, after which a step ends."""


class StateLog(ChangeLog):
    """Writes changes to *file*, and stores connections in *store*; for the next process to continue *broker*."""

    def __init__(self, file: StateFile, store: ConnectionStore, broker: Broker) -> None:
        self.file = file
        self.store = store
        self._broker = broker
        self._switch = broker.switch
        self._journal = broker.journal
        self._quotas = broker.quotas
        self._usage = broker.quotas.state_usage
        self._snapshot: Snapshot | None = None
        self._image_bytes = 0
        self._is_due = False
        self._is_handover = False
        """Whether the current log is for the program that follows in place."""
        self._numbers = 0
        self._failures = 0
        self._rewrites = 0
        self._retry_at = 0.0
        self.is_good = False
        """Whether the log is up to date."""
        self._reports_failures = True

    def begin(self) -> None:
        """Write the current state at once in place of the content of the file, and store all connections."""
        self.file.free_rest()
        self._begin_snapshot()
        while self._snapshot is not None:
            self._continue_snapshot(self._snapshot)
        if not self.is_good:
            self.file.invalidate()
        self.file.free_all()
        self._usage.free()
        if not self.store.rewrite():
            self._report_store_failure()

    def numbered(self, connection: int) -> None:
        """Reserve connection numbers, many at a time."""
        if connection >= self._numbers:
            self._numbers = connection + NUMBERS_AT_ONCE
            self._append(records.reserved(self._numbers), None, is_covered=True)

    def opened(self, client: Client) -> None:
        """Log a new client, and store its connection."""
        self._log_change(client, records.opened(connection_state(self._switch, client)))
        if not self.store.add(client.fd):
            self._report_store_failure()
        self._ask_for_steps()

    def closed(self, client: Client) -> None:
        """Log the end of a client. The store keeps the connection, which is shut down, until its next rewrite."""
        self._log_change(client, records.closed(client.connection))

    def subscribed(self, client: Client, pattern: bytes) -> None:
        """Log one more instance of a pattern."""
        self._log_change(client, records.subscribed(client.connection, pattern), pattern)

    def unsubscribed(self, client: Client, pattern: bytes) -> None:
        """Log one instance of a pattern less."""
        self._log_change(client, records.unsubscribed(client.connection, pattern), pattern)

    def changed(self, client: Client) -> None:
        """Log the changed settings of a client."""
        self._log_change(client, records.changed(client.connection, self._switch.settings(client.connection)))

    def tapped(self, client: Client, pattern: bytes | None) -> None:
        """Log the tap of a client, or its end."""
        self._log_change(client, records.tapped(client.connection, pattern))

    def named(self, client: Client) -> None:
        """Log the name of a client."""
        self._log_change(client, records.named(client.connection, client.name))

    @property
    def has_work(self) -> bool:
        """Whether :meth:`step` has work."""
        is_due = self._is_due and time.monotonic() >= self._retry_at
        return self._snapshot is not None or self.file.has_obsolete or is_due or self.store.has_work

    def step(self) -> None:
        """Write some records of a new log, or free some memory of an old one, or move some stored connections."""
        if self.store.has_work:
            before = self.store.failures
            self.store.step()
            if self.store.failures > before:
                self._report_store_failure()
        elif self._snapshot is not None:
            self._continue_snapshot(self._snapshot)
        elif self.file.has_obsolete:
            if not self.file.free_some():
                self._usage.free()
        elif self.has_work:
            self._begin_snapshot()

    def write_handover(self, image: Iterable[bytes]) -> None:
        """Write *image* for the program that follows in place. Raises OSError; then only the draft has changed."""
        self._abandon_snapshot()
        self.file.draft_all(image)
        self._usage.free()
        self.file.commit_draft()
        self._is_handover = True

    def undo_handover(self) -> None:
        """Undo :meth:`write_handover`: this process continues. Its memory is freed in steps."""
        if self._is_handover:
            self._is_handover = False
            self.file.revert()
            if not self.is_good:
                self.file.invalidate()

    def counts(self) -> dict[str, int]:
        """Return the statistics of the log: failures, and how often it was rewritten."""
        return {
            "connection_store_failures": self.store.failures,
            "connections_missing": self.store.missing,
            "state_failures": self._failures,
            "state_rewrites": self._rewrites,
        }

    def _log_change(self, client: Client, record: bytes, pattern: bytes | None = None) -> None:
        """Log a change of a client, or of one of its patterns."""
        is_covered = self._snapshot is not None and self._snapshot.covers(client.connection, pattern)
        self._append(record, client.credentials.uid, is_covered=is_covered)

    def _append(self, record: bytes, uid: int | None, *, is_covered: bool) -> None:
        """Write a change by the user *uid* to the log, and also to the draft if the draft has passed its position."""
        uid = None if uid is None else self._quotas.charged_uid(uid)
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
        """Make :meth:`Switch.run` return if :meth:`step` has work."""
        if self.has_work:
            self._switch.return_soon()

    def _charge_log(self, uid: int | None, size: int) -> None:
        """Charge a change to its user, and decide whether the log must be rewritten."""
        is_due = self.file.size > 2 * max(self._image_bytes, LEAST_BYTES)
        if uid is not None:
            self._usage.add_to_log(uid, size)
            is_due = is_due or self._usage.in_log(uid) * USER_SHARE > self._quotas.state_bytes(uid)
        self._is_due = self._is_due or is_due

    def _begin_snapshot(self) -> None:
        """Start to rewrite the log."""
        self._is_due = False
        bus = bus_state(self._broker)
        bus.next_connection = max(bus.next_connection, self._numbers)
        try:
            self._snapshot = Snapshot(self.file, self._switch, self._broker.roster, bus)
        except OSError as error:
            self._drop_snapshot(error)

    def _continue_snapshot(self, snapshot: Snapshot) -> None:
        """Write some of the new log; if it is complete, it replaces the old one."""
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
        """Stop the rewrite, and try again later; the old log stays valid if it was."""
        self._abandon_snapshot()
        self._note_failure(error)

    def _abandon_snapshot(self) -> None:
        """Stop the rewrite, if there is one."""
        if self._snapshot is not None:
            self._is_due = True
        self._snapshot = None
        self.file.drop_draft()
        self._usage.drop_draft()

    def _fail(self, error: OSError) -> None:
        """Invalidate the file: it no longer has the current state, and must not be restored."""
        self.is_good = False
        self.file.invalidate()
        self._usage.drop_log()
        self._note_failure(error)

    def _note_failure(self, error: OSError) -> None:
        """Count the failure, schedule another attempt, and record it if a crash would close all connections meanwhile."""
        self._failures += 1
        self._is_due = True
        self._retry_at = time.monotonic() + RETRY_SECONDS
        if not self.is_good:
            self._journal.record(log_messages.STATE_NOT_STORED, reason=f"{error.strerror}; its log has {self.file.size} bytes")

    def _report_store_failure(self) -> None:
        """Record, once, that a connection could not be stored."""
        if self._reports_failures:
            self._reports_failures = False
            self._journal.record(log_messages.CONNECTION_NOT_STORED)


class Snapshot:
    """A draft of *file*, and its position. Raises OSError, also in each step, if there is not enough memory; then drop the draft.

    It walks through the connections by number, and through the patterns of each in the order of their bytes. At any time the draft has the
    exact state up to the current position. A change before that position is added to the draft as a change; a change after it is included
    when the snapshot gets there. So after the last connection the draft has the whole state.
    """

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
            if client.name:
                found.append(records.named(client.connection, client.name))
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
