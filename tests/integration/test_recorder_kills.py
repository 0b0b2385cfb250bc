"""The recorder killed at random under load, and on a disk that is full: what it said was on the disk is there, once."""

from __future__ import annotations

import itertools
import os
import random
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sbus_archive.record.layout import HOUR_NS
from sbus_archive.record.schema import Row, RowKind, batch_of
from sbus_archive.record.segments import RecordReader
from sbus_archive.recorder.converter import Converter, convert
from sbus_archive.recorder.log_messages import ARCHIVE_FAILED, ARCHIVE_RESUMED, REMOVED
from sbus_archive.recorder.retention import Retention
from sbus_archive.recorder.wal import WalWriter, read_wal, wal_files
from tests.support.dates import fixed_date
from tests.support.recorder_fakes import RecordedLog, recorded
from tests.support.records import NOON, message
from tests.support.small_disks import USES, fill, small_disk_at, take_inodes
from tests.support.tapped_bus import TappedBus, message_packet
from tests.support.threads import running
from tools.stage import ROOT

LIVES = 8
"""How often it is killed: each life is about a second."""

COMMAND = [sys.executable, "-m", "sbus_archive.recorder.main", "--verbose"]
ENV = {"PATH": os.defpath, "PYTHONPATH": str(ROOT), "HOME": "/nonexistent"}


class Recorder:
    """The program, and what it has said."""

    def __init__(self, bus: TappedBus, config: Path) -> None:
        command = [*COMMAND, "--address", str(bus.path), "-C", str(config)]
        self.process = subprocess.Popen(command, env=ENV, stderr=subprocess.PIPE, text=True)
        self.durable = 0
        self.said: list[str] = []
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._changed:
                if match := re.fullmatch(r"sbus-recorder: durable (\d+)\n", line):
                    self.durable = int(match[1])
                else:
                    self.said.append(line)
                self._changed.notify()

    def wait(self, seq: int) -> None:
        """Wait until it has said that the row *seq* is on the disk."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.durable >= seq or self.process.poll() is not None, 60)
        assert self.durable >= seq, self.said

    def wait_said(self, words: str) -> None:
        """Wait until it has said *words*."""
        with self._changed:
            assert self._changed.wait_for(lambda: any(words in line for line in self.said) or self.process.poll() is not None, 60)
        assert any(words in line for line in self.said), self.said

    def end(self, *, kill: bool) -> int:
        """End it, by a signal that it can or cannot handle; return its status."""
        (self.process.kill if kill else self.process.terminate)()
        status = self.process.wait(60)
        self._reader.join(60)
        assert self.process.stderr is not None
        self.process.stderr.close()
        return status


def _flood(bus: TappedBus, life: int, stop: threading.Event) -> None:
    """Tell the recorder of messages, numbered, until it ends."""
    number = 0
    while not stop.is_set():
        try:
            bus.tell(*(message_packet(b"life/%d" % life, b"%d" % (number + more)) for more in range(50)))
        except (BrokenPipeError, ConnectionResetError, TimeoutError):
            return
        number += 50


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[TappedBus]:
    with TappedBus(tmp_path / "bus") as bus:
        yield bus


@pytest.fixture
def start(bus: TappedBus) -> Iterator[Callable[[Path], Recorder]]:
    """Starts the program with a configuration, and waits until it listens; whatever is left at the end is killed."""
    started: list[Recorder] = []

    def start(config: Path) -> Recorder:
        started.append(Recorder(bus, config))
        bus.accept()
        return started[-1]

    yield start
    for each in started:
        if each.process.poll() is None:
            each.end(kill=True)


def _configure(folder: Path, *lines: str) -> Path:
    config = folder / "recorder.toml"
    config.write_text(
        "\n".join((f'archive = "{folder}/archive"', f'spool = "{folder}/spool"', 'host = "alpha"', 'retention = "36525d"', *lines))
    )
    return config


def test_rows_reported_as_durable_exist_exactly_once(bus: TappedBus, start: Callable[[Path], Recorder], tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    # Small files: each life sees several of them finished, converted and removed, so that kills meet all of that.
    config = _configure(tmp_path, 'sync_interval = "5ms"', "sync_rows = 100", "rotate_rows = 1500")
    promised = 0
    for life in range(LIVES):
        recorder = start(config)
        stop = threading.Event()
        flood = threading.Thread(target=_flood, args=(bus, life, stop))
        flood.start()
        recorder.wait(promised + chance.randrange(1, 6_000))
        time.sleep(chance.random() * 0.02)  # nothing is waited for: only so that the kill comes at any point of a batch
        assert recorder.end(kill=True) == -9
        stop.set()
        flood.join(60)
        promised = recorder.durable
    recorder = start(config)
    recorder.wait(promised + 1)
    with running(bus.end_when_asked):
        assert recorder.end(kill=False) == 0, recorder.said
    rows = recorded(tmp_path / "archive")
    assert [row.seq for row in rows] == list(range(1, len(rows) + 1)), f"seed {seed}"
    assert len(rows) > promised, f"seed {seed}"
    _check_lives(rows, seed)
    assert not wal_files(tmp_path / "spool")
    assert not [
        path for path in (tmp_path / "archive").rglob("*") if path.name.endswith(".tmp") and path.with_name(path.name[1:-4]).exists()
    ]


def _check_lives(rows: list[Row], seed: int) -> None:
    """Check that each life's messages are there from its first to its last, each once and in order."""
    starts = [index for index, row in enumerate(rows) if row.kind == RowKind.RESTART]
    assert len(starts) == LIVES + 1
    for life, (start, end) in enumerate(itertools.pairwise(starts)):
        messages = rows[start + 1 : end]
        assert {row.key for row in messages} <= {f"life/{life}"}, f"seed {seed}"
        assert [row.payload for row in messages] == [b"%d" % number for number in range(len(messages))], f"seed {seed}"


@pytest.fixture
def small_disk(tmp_path: Path, needs_root: None) -> Iterator[Path]:
    """A file system of 12 MiB with 200 inodes."""
    with small_disk_at(tmp_path / "disk", "size=12m,nr_inodes=200") as folder:
        yield folder


def _rows_of_resumed(recorder: Recorder, bus: TappedBus, disk: Path) -> list[Row]:
    """Wait until *recorder* has resumed, end it after one more message, and return its rows, which are numbered without gaps."""
    recorder.wait_said("resumed recording; rows missing: ")
    last = recorder.durable
    bus.tell(message_packet(b"after"))
    recorder.wait(last + 1)
    with running(bus.end_when_asked):
        assert recorder.end(kill=False) == 0
    rows = recorded(disk / "archive")
    assert [row.seq for row in rows] == list(range(1, len(rows) + 1))
    return rows


def test_a_full_disk_suspends_it_and_the_bus_does_not_notice(bus: TappedBus, start: Callable[[Path], Recorder], small_disk: Path) -> None:
    config = _configure(small_disk, 'sync_interval = "5ms"', 'rotate_bytes = "1MiB"', 'disk_quota = "1GiB"')
    recorder = start(config)
    bus.tell(message_packet(b"before"))
    recorder.wait(2)
    filler = fill(small_disk)
    noise = random.Random(1).randbytes(100_000)  # what cannot be compressed
    for number in range(100):
        bus.tell(message_packet(b"during/%d" % number, noise))
    recorder.wait_said("suspended recording: cannot write: No space left on device")
    # It goes on to read: a bus that sends is never kept waiting. More than its socket holds goes through.
    for number in range(100):
        bus.tell(message_packet(b"still/%d" % number, noise))
    filler.unlink()
    rows = _rows_of_resumed(recorder, bus, small_disk)
    gaps = [row for row in rows if row.kind == RowKind.GAP]
    assert {row.reason for row in gaps} == {"No space left on device"}
    assert sum(row.lost or 0 for row in gaps) + sum(row.kind == RowKind.MESSAGE for row in rows) == 202
    assert (rows[1].key, rows[-1].key) == ("before", "after")
    assert sum("suspended" in line for line in recorder.said) == len(gaps)


@pytest.mark.parametrize(("use", "is_new"), [("space", True), ("space", False), ("inodes", False)])
def test_one_that_starts_on_a_full_disk_is_suspended_until_there_is_room(
    bus: TappedBus, start: Callable[[Path], Recorder], small_disk: Path, use: str, is_new: bool
) -> None:
    config = _configure(small_disk, 'sync_interval = "5ms"')
    if not is_new:
        before = start(config)
        before.wait(1)
        assert before.end(kill=True) == -9
    taken = USES[use](small_disk)
    killed = start(config)
    killed.wait_said("suspended recording: cannot write: No space left on device")
    assert killed.end(kill=True) == -9
    recorder = start(config)
    recorder.wait_said("suspended recording: cannot write: No space left on device")
    bus.tell(*(message_packet(b"during/%d" % number) for number in range(100)))
    for each in taken:
        each.unlink()
    rows = _rows_of_resumed(recorder, bus, small_disk)
    kinds = [row.kind for row in rows]
    assert kinds[:2] == [RowKind.GAP, RowKind.MESSAGE] if is_new else [RowKind.RESTART, RowKind.GAP]
    assert rows[-1].key == "after"
    lost = sum(row.lost or 0 for row in rows)
    assert lost + kinds.count(RowKind.MESSAGE) == 102, "its own start, the messages during the outage, and the one after it"


def test_one_that_cannot_create_its_directories_names_them(bus: TappedBus, small_disk: Path) -> None:
    config = _configure(small_disk)
    taken = take_inodes(small_disk)
    taken.pop().unlink()
    (small_disk / "archive").mkdir(0o750)
    command = [*COMMAND, "--address", str(bus.path), "-C", str(config)]
    done = subprocess.run(command, env=ENV, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    line = f"sbus-recorder: {small_disk}/spool: No space left on device; free some space or inodes: see df -h and df -i\n"
    assert (done.returncode, done.stderr) == (1, line), "the service manager starts it again"


def _write_ahead(folder: Path, seq: int, payload: bytes, ts: int) -> Path:
    """Write a file of the write-ahead log with one row."""
    writer = WalWriter.create(folder, "alpha", seq)
    writer.append(batch_of([message(seq, payload=payload, ts=ts)]))
    writer.close()
    return writer.path


@pytest.mark.parametrize("payload_bytes", [100_000, 8 << 20], ids=["no room at all", "room for a part of the new segment"])
def test_expired_segments_make_room_on_a_full_disk(small_disk: Path, tmp_path: Path, payload_bytes: int) -> None:
    """The write-ahead log is elsewhere, so only the archive is full."""
    archive, spool = small_disk / "archive", tmp_path / "spool"
    spool.mkdir()
    noise = random.Random(1)
    for seq in (1, 2):
        convert(archive, read_wal(_write_ahead(tmp_path, seq, noise.randbytes(5 << 20), NOON)))
    if payload_bytes < 1 << 20:
        fill(small_disk)
    retention = Retention(archive, "alpha", 1 << 30, keep_seconds=0)
    retention.load()
    log = RecordedLog()
    converter = Converter(archive, retention, log, clock=fixed_date(NOON + HOUR_NS), retry_seconds=0.01)
    converter.submit(_write_ahead(spool, 3, noise.randbytes(payload_bytes), NOON + HOUR_NS))
    converter.start()
    deadline = time.monotonic() + 60
    while converter.waiting_bytes and time.monotonic() < deadline:
        time.sleep(0.01)
    assert converter.close(60)
    assert converter.failure is None
    assert [event for event, _ in log.records] == [REMOVED, ARCHIVE_FAILED, ARCHIVE_RESUMED]
    assert [entry.is_removed for entry in RecordReader(archive).entries(removed=True)] == [True, True, False]
    assert [row.seq for row in recorded(archive)] == [3]
