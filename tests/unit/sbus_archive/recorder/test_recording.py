"""Rows become durable in batches and files; each hour can repeat the active subscriptions."""

from __future__ import annotations

import dataclasses
import errno
import os
from pathlib import Path
from typing import Any

import pytest

from sbus_archive.record.layout import HOUR_NS
from sbus_archive.record.schema import Row, RowKind, rows_of
from sbus_archive.recorder.log_messages import RESUMED, SUSPENDED
from sbus_archive.recorder.recording import MAX_BATCH_BYTES, RETRY_SECONDS, Recording, SubscriptionSnapshot
from sbus_archive.recorder.wal import read_wal, wal_files
from sbus_programs.config.recorder import RecorderSettings
from tests.support.recorder_fakes import ManualClocks, RecordedLog
from tests.support.records import NOON, message


class Setup:
    """A recording with clocks that stand still, and what it says."""

    def __init__(self, spool: Path, **settings: Any) -> None:
        self.hands = ManualClocks()
        self.log = RecordedLog()
        self.finished: list[Path] = []
        self.durable: list[int] = []
        self.refusal: str | None = None
        self.spool = spool
        self.recording = Recording(
            dataclasses.replace(RecorderSettings(archive="/nowhere", spool=str(spool)), **settings),
            "alpha",
            1,
            self.log,
            self.finished.append,
            durable=self.durable.append,
            refusal=lambda _bytes: self.refusal,
            clocks=self.hands.clocks(),
        )

    def rows(self) -> list[Row]:
        """Return all rows on the disk, in order."""
        return [row for path in wal_files(self.spool) for batch in read_wal(path).batches for row in rows_of(batch)]

    def wait(self) -> None:
        """Let the time pass until something is due, and do it."""
        due = self.recording.due
        assert due is not None
        self.hands.pass_time(max(0.0, due - self.hands.seconds) + 1e-6)
        self.recording.tick()


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    return Setup(tmp_path, sync_rows=3)


def test_nothing_is_due_where_there_is_nothing(setup: Setup) -> None:
    assert setup.recording.due is None
    setup.recording.tick()
    setup.recording.close()
    assert not setup.finished
    assert not list(setup.spool.iterdir())


def test_rows_are_written_after_the_interval(setup: Setup) -> None:
    setup.recording.add(message(0))
    setup.recording.tick()
    assert setup.durable == []
    assert setup.recording.due == pytest.approx(setup.hands.seconds + 0.2)
    setup.wait()
    assert setup.durable == [1]
    assert setup.rows() == [message(0)._replace(seq=1)]


def test_rows_are_written_sooner_when_they_are_many(setup: Setup) -> None:
    for _ in range(7):
        setup.recording.add(message(0))
    assert setup.durable == [3, 6]
    assert [row.seq for row in setup.rows()] == [1, 2, 3, 4, 5, 6]


def test_rows_are_written_sooner_when_they_are_big(tmp_path: Path) -> None:
    setup = Setup(tmp_path)
    for _ in range(3):
        setup.recording.add(message(0, payload=bytes(MAX_BATCH_BYTES // 2)))
    assert setup.durable == [2]


def test_a_file_ends_when_it_is_old(setup: Setup) -> None:
    setup.recording.add(message(0))
    setup.wait()
    setup.hands.pass_time(899)
    setup.recording.tick()
    assert not setup.finished
    setup.hands.pass_time(2)
    setup.recording.tick()
    assert setup.finished == [setup.spool / "00000000000000000001.wal"]
    setup.recording.add(message(0))
    setup.wait()
    assert [path.name for path in wal_files(setup.spool)] == ["00000000000000000001.wal", "00000000000000000002.wal"]


def test_a_file_ends_when_it_has_many_rows(tmp_path: Path) -> None:
    setup = Setup(tmp_path, sync_rows=2, rotate_rows=4)
    for _ in range(9):
        setup.recording.add(message(0))
    assert [read_wal(path).rows for path in setup.finished] == [4, 4]


def test_a_file_ends_when_it_is_big(tmp_path: Path) -> None:
    setup = Setup(tmp_path, rotate_bytes=1 << 20)
    for _ in range(40):
        setup.recording.add(message(0, payload=bytes(300_000)))
    assert [read_wal(path).rows for path in setup.finished] == [14, 14]


def test_an_hour_ends_by_the_clock(setup: Setup) -> None:
    setup.recording.add(message(0))
    setup.wait()
    setup.hands.wall_ns = NOON + HOUR_NS - 10**9
    assert setup.recording.due == pytest.approx(setup.hands.seconds + 1)
    setup.recording.tick()
    assert not setup.finished
    setup.wait()
    assert [read_wal(path).rows for path in setup.finished] == [1]


@pytest.mark.parametrize("years", [1, 73])
def test_after_a_clock_was_set_back_an_hour_ends_by_it(setup: Setup, years: int) -> None:
    """Otherwise no hour would end until the wrong date comes."""
    setup.recording.add(message(0, ts=NOON + years * 365 * 24 * HOUR_NS))
    setup.recording.tick()
    setup.recording.add(message(0))
    setup.wait()
    setup.hands.wall_ns = NOON + HOUR_NS
    setup.recording.add(message(0, ts=NOON + HOUR_NS))
    rows = [[row.ts for batch in read_wal(path).batches for row in rows_of(batch)] for path in setup.finished]
    assert rows == [[NOON + years * 365 * 24 * HOUR_NS], [NOON]]


def test_an_hour_ends_with_the_first_row_of_the_next(setup: Setup) -> None:
    setup.recording.add(message(0))
    setup.recording.add(message(0, ts=NOON + HOUR_NS))
    assert [row.ts for path in setup.finished for batch in read_wal(path).batches for row in rows_of(batch)] == [NOON]
    setup.recording.add(message(0, ts=NOON + 2))  # late: it is of the hour before, and stays in this file
    setup.recording.close()
    assert [read_wal(path).rows for path in setup.finished] == [1, 2]


def test_the_end_writes_pending_rows(setup: Setup) -> None:
    setup.recording.add(message(0))
    setup.recording.close()
    assert setup.durable == [1]
    assert [read_wal(path).rows for path in setup.finished] == [1]


def _fail(_fd: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_is_logged_once_and_missing_rows_are_recorded(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    setup.recording.add(message(0))
    setup.wait()
    with monkeypatch.context() as full:
        full.setattr("sbus_archive.recorder.wal.os.fdatasync", _fail)
        for _ in range(5):
            setup.recording.add(message(0))
        assert setup.recording.is_suspended
        for _ in range(3):
            setup.wait()
        setup.recording.add(message(0))
        assert setup.log.records == [(SUSPENDED, {"reason": "No space left on device"})]
        assert setup.recording.due == pytest.approx(setup.hands.seconds + RETRY_SECONDS)
    begun = setup.hands.wall_ns
    setup.wait()
    setup.recording.add(message(0))
    setup.recording.close()
    assert setup.log.facts(RESUMED) == [{"lost": 6}]
    rows = setup.rows()
    assert [(row.seq, row.kind, row.lost) for row in rows] == [(1, "message", None), (2, "gap", 6), (3, "message", None)]
    assert rows[1].reason == "No space left on device"
    assert (rows[1].duration or 0) >= begun - setup.hands.wall_ns + 3 * RETRY_SECONDS * 1e9
    assert setup.recording.lost == 6
    assert [read_wal(path).rows for path in setup.finished] == [1, 2]


def test_a_file_that_cannot_be_made_suspends_too(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as full:
        full.setattr("sbus_archive.recorder.wal.os.fsync", _fail)
        setup.recording.add(message(0))
        setup.wait()
        assert setup.recording.is_suspended
        assert not list(setup.spool.iterdir())
    setup.wait()
    assert [(row.kind, row.lost) for row in setup.rows()] == [("gap", 1)]


def test_a_quota_that_is_used_up_is_as_a_full_disk(setup: Setup) -> None:
    setup.refusal = "no room"
    setup.recording.add(message(0))
    setup.wait()
    assert setup.log.records == [(SUSPENDED, {"reason": "no room"})]
    setup.refusal = None
    setup.wait()
    assert [(row.kind, row.lost, row.reason) for row in setup.rows()] == [(RowKind.GAP, 1, "no room")]


def test_an_end_while_suspended_reports_missing_rows_if_possible(setup: Setup) -> None:
    setup.refusal = "no room"
    setup.recording.add(message(0))
    setup.wait()
    setup.refusal = None
    setup.recording.close()
    assert [(row.kind, row.lost) for row in setup.rows()] == [(RowKind.GAP, 1)]


def happened(kind: RowKind, conn: int | None, pattern: str | None = None) -> Row:
    return Row(NOON, 0, kind, pattern, conn, uid=1000 + (conn or 0))


def known(active: SubscriptionSnapshot) -> set[tuple[int | None, str | None]]:
    rows = list(active.rows(NOON + 5))
    assert len(rows) == len(active)
    assert all((row.kind, row.ts, row.uid) == (RowKind.SNAPSHOT, NOON + 5, 1000 + (row.conn or 0)) for row in rows)
    return {(row.conn, row.key) for row in rows}


def test_subscriptions_are_listed_until_they_end() -> None:
    active = SubscriptionSnapshot()
    for conn, pattern in [(1, "a"), (2, "a"), (1, "a"), (None, "x")]:
        active.note(happened(RowKind.SUBSCRIBE, conn, pattern))
    assert not active.knows(happened(RowKind.SNAPSHOT, 1, "b"))
    active.note(happened(RowKind.SNAPSHOT, 1, "b"))
    assert [active.knows(happened(RowKind.SNAPSHOT, *each)) for each in ((1, "b"), (2, "b"), (3, "a"), (None, "x"))] == [True, *[False] * 3]
    assert known(active) == {(1, "a"), (1, "b"), (2, "a")}
    active.note(happened(RowKind.UNSUBSCRIBE, 1, "a"))
    active.note(happened(RowKind.UNSUBSCRIBE, 1, "a"))
    active.note(happened(RowKind.UNSUBSCRIBE, 9, "a"))
    active.note(happened(RowKind.MESSAGE, 1, "b"))
    assert known(active) == {(1, "b"), (2, "a")}
    active.note(happened(RowKind.DISCONNECT, 1))
    active.note(happened(RowKind.DISCONNECT, 9))
    assert known(active) == {(2, "a")}
    active.clear()
    assert known(active) == set()


def test_omitted_items_are_counted() -> None:
    active = SubscriptionSnapshot(most=2)
    for number in range(5):
        active.note(happened(RowKind.SUBSCRIBE, number, "a"))
    assert (len(active), active.forgotten) == (2, 3)
    active.note(happened(RowKind.DISCONNECT, 0))
    active.note(happened(RowKind.SUBSCRIBE, 7, "b"))
    assert known(active) == {(1, "a"), (7, "b")}
