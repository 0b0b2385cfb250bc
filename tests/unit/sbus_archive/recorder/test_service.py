"""The recorder as a whole, on a bus that has nothing but a tap."""

from __future__ import annotations

import errno
import os
import select
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sbus_archive.record.index import DayName
from sbus_archive.record.layout import HOUR_NS, INDEX
from sbus_archive.record.schema import RowKind, batch_of
from sbus_archive.record.segments import RecordReader
from sbus_archive.recorder import service
from sbus_archive.recorder.log_messages import DAMAGED, INDEX_DAMAGED, RECOVERED, STOPPED, TAP_LOSS, UNREAD, UNREADABLE
from sbus_archive.recorder.recording import Clocks
from sbus_archive.recorder.service import BadHostError, Recorder, SpoolInUseError, host_of
from sbus_archive.recorder.tap import RecorderTap
from sbus_archive.recorder.wal import WalWriter, wal_files, wal_path
from sbus_archive.storage.files import ExposedFolderError, RecordError
from sbus_programs.config.recorder import RecorderSettings
from sbus_programs.systemd.service_manager import ServiceManager
from tests.support.recorder_fakes import DurableRows, RecordedLog, recorded
from tests.support.records import NOON, message
from tests.support.tapped_bus import FEATURES, OWN_ID, TappedBus, fact, message_packet, tap_packet


@pytest.fixture
def settings(tmp_path: Path) -> RecorderSettings:
    return RecorderSettings(
        archive=str(tmp_path / "archive"), spool=str(tmp_path / "spool"), host="alpha", sync_interval=0.01, retention=36_525 * 86_400.0
    )


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[TappedBus]:
    with TappedBus(tmp_path / "bus") as bus:
        yield bus


@pytest.fixture
def log() -> RecordedLog:
    return RecordedLog()


def make(
    settings: RecorderSettings,
    bus: TappedBus,
    log: RecordedLog,
    durable: Callable[[int], None] = lambda _seq: None,
    clocks: Clocks | None = None,
) -> Recorder:
    return Recorder(settings, RecorderTap(str(bus.path), b""), log, ServiceManager(), durable=durable, clocks=clocks)


@contextmanager
def running(recorder: Recorder, bus: TappedBus, *early: bytes, answers_at_end: bool = True) -> Iterator[None]:
    """Run *recorder* in a thread; at the end stop it, and close it. The bus says that it has sent everything, if it *answers_at_end*."""
    accepting = bus.accept_soon(*early)
    recorder.prepare()
    accepting.join(30)
    failures: list[BaseException] = []

    def run() -> None:
        try:
            recorder.run()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        recorder.stop()
        thread.join(30)
        if answers_at_end:
            bus.end()
        recorder.close(30)
        assert not thread.is_alive()
        assert not failures, failures


def test_each_tap_record_is_in_the_archive_once(settings: RecorderSettings, bus: TappedBus, log: RecordedLog) -> None:
    durable = DurableRows()
    with running(make(settings, bus, log, durable=durable), bus, message_packet(b"early")):
        bus.tell(*(message_packet(b"k/%d" % number, b"p%d" % number, time=NOON + number) for number in range(100)))
        bus.tell(tap_packet(fact("connect", id=9)), tap_packet(fact("disconnect", id=9)))
        durable.wait(104)
    rows = recorded(settings.archive)
    assert [row.seq for row in rows] == list(range(1, 105))
    assert [row.kind for row in rows] == ["restart", *["message"] * 101, "connect", "disconnect"]
    assert [row.payload for row in rows if row.kind == RowKind.MESSAGE] == [b"x", *(b"p%d" % number for number in range(100))]
    assert not wal_files(Path(settings.spool))


def test_the_pattern_is_sent_to_the_bus(settings: RecorderSettings, bus: TappedBus, log: RecordedLog) -> None:
    recorder = Recorder(settings, RecorderTap(str(bus.path), b"net/"), log, ServiceManager())
    with running(recorder, bus):
        assert bus.demand == b"CMSG tap/on\0net/"


def test_positions_go_on_where_an_earlier_run_stopped(settings: RecorderSettings, bus: TappedBus, log: RecordedLog) -> None:
    for run in range(3):
        durable = DurableRows()
        with running(make(settings, bus, log, durable=durable), bus):
            bus.tell(message_packet(b"run/%d" % run))
            durable.wait(2 * run + 2)
    assert [(row.seq, row.kind) for row in recorded(settings.archive)] == [
        (1, "restart"),
        (2, "message"),
        (3, "restart"),
        (4, "message"),
        (5, "restart"),
        (6, "message"),
    ]


@pytest.mark.parametrize("content", [b"", b"{", b'{"version":1}'])
@pytest.mark.parametrize("is_merged", [True, False])
def test_a_damaged_index_does_not_end_the_record(
    settings: RecorderSettings, bus: TappedBus, log: RecordedLog, content: bytes, is_merged: bool
) -> None:
    """No position is used twice, and no segment replaced: the file of the index may be repaired."""
    archive = Path(settings.archive)
    with running(make(settings, bus, log), bus):
        pass
    (entry,) = RecordReader(archive).entries()
    segment = (archive / entry.path).read_bytes()
    index = archive / entry.name.index_path
    if is_merged:
        index.unlink()
        index = archive / DayName(entry.date, entry.host).path
        index.parent.mkdir()
    index.write_bytes(content)
    (archive / INDEX / "x.json").write_bytes(content)
    with running(make(settings, bus, log), bus):
        pass
    assert [facts["count"] for facts in log.facts(INDEX_DAMAGED)] == [2]
    assert (archive / entry.path).read_bytes() == segment
    unreadable: list[RecordError] = []
    (later,) = RecordReader(archive).entries(unreadable=unreadable.append)
    assert (later.first_seq > entry.last_seq, later.path != entry.path, len(unreadable)) == (True, True, 2)


def test_files_of_a_killed_run_are_completed(settings: RecorderSettings, bus: TappedBus, log: RecordedLog) -> None:
    spool = Path(settings.spool)
    spool.mkdir()
    wal = WalWriter.create(spool, "alpha", 5)
    wal.append(batch_of([message(5), message(6)], 5))
    wal.close()
    with wal.path.open("ab") as file:
        file.write(b"half a frame")
    wal_path(spool, 7).write_bytes(b"")
    with running(make(settings, bus, log), bus):
        pass
    assert [row.seq for row in recorded(settings.archive)] == [5, 6, 7]
    assert log.facts(RECOVERED) == [{"rows": 2, "torn": len(b"half a frame")}]
    assert len(log.facts(DAMAGED)) == 1
    assert [path.name for path in spool.iterdir() if path.suffix == ".damaged"] == ["00000000000000000007.wal.damaged"]


def _no_header(whole: bytes) -> bytes:
    return whole[:10] + bytes([whole[10] ^ 1]) + whole[11:]


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        (_no_header, [(5, "gap", 2)]),
        (lambda whole: bytes(len(whole)), [(5, "gap", 2)]),
        (lambda _whole: b"", [(5, "gap", 2)]),
        (lambda whole: whole[:200], [(5, "gap", 2)]),
        (lambda whole: whole[:-1], [(5, "message", None), (6, "gap", 1)]),
        (lambda whole: whole[:-1] + bytes([whole[-1] ^ 1]), [(5, "message", None), (6, "gap", 1)]),
    ],
    ids=["header", "zeros", "empty", "only a header", "truncated", "last frame"],
)
def test_rows_of_a_damaged_file_before_another_one_are_a_gap(
    settings: RecorderSettings, bus: TappedBus, log: RecordedLog, damage: Callable[[bytes], bytes], found: list[tuple[int, str, int | None]]
) -> None:
    """At the end of the last file, an incomplete frame is a kill, and a restart follows in the record. Between two files it is damage."""
    spool = Path(settings.spool)
    spool.mkdir()
    for first in (5, 7):
        wal = WalWriter.create(spool, "alpha", first)
        wal.append(batch_of([message(first)], first))
        wal.append(batch_of([message(first + 1)], first + 1))
        wal.close()
    path = wal_path(spool, 5)
    path.write_bytes(damage(path.read_bytes()))
    with running(make(settings, bus, log), bus):
        pass
    rows = [(row.seq, str(row.kind), row.lost) for row in recorded(settings.archive)]
    assert rows == [*found, (7, "message", None), (8, "message", None), (9, "restart", None)]


def test_losses_of_the_tap_are_recorded_as_a_count(settings: RecorderSettings, bus: TappedBus, log: RecordedLog) -> None:
    durable = DurableRows()
    with running(make(settings, bus, log, durable=durable), bus):
        bus.tell(
            b"CMSG !/bus/lost\x0017",
            b"CMSG !/bus/lost\x000",
            tap_packet(fact("loss", id=OWN_ID, count=17)),
            tap_packet(fact("loss", count=5)),
        )
        durable.wait(4)
    rows = recorded(settings.archive)
    assert [(row.kind, row.lost) for row in rows] == [("restart", None), ("tap_loss", 17), ("tap_loss", None), ("loss", 5)]
    assert sum(int(facts["lost"]) for facts in log.facts(TAP_LOSS)) == 17


def test_what_a_stopped_bus_has_queued_is_an_unknown_loss(
    settings: RecorderSettings, bus: TappedBus, log: RecordedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "DRAIN_SECONDS", 0.1)
    durable = DurableRows()
    recorder = make(settings, bus, log, durable=durable)
    with running(recorder, bus, answers_at_end=False):
        bus.tell(message_packet())
        durable.wait(2)
    rows = recorded(settings.archive)
    assert [(row.kind, row.lost) for row in rows] == [("restart", None), ("message", None), ("tap_loss", None)]
    assert rows[-1].reason == "the bus did not send what it had queued"
    assert log.facts(UNREAD) == [{"seconds": "0.1"}]


def test_the_end_waits_for_all_packets_of_a_slow_bus(
    settings: RecorderSettings, bus: TappedBus, log: RecordedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit is for the time between two packets: all together may take longer."""
    waits: list[float] = []
    wait = select.select

    def slowly(reading: list[int], writing: list[int], failing: list[int], seconds: float) -> tuple[list[int], list[int], list[int]]:
        waits.append(seconds)
        bus.tell(message_packet()) if len(waits) < 20 else bus.end()
        return wait(reading, writing, failing, seconds)

    with running(make(settings, bus, log), bus, answers_at_end=False):
        monkeypatch.setattr(select, "select", slowly)
    assert waits == [service.DRAIN_SECONDS] * 20
    assert [row.kind for row in recorded(settings.archive)] == ["restart", *["message"] * 19]
    assert log.facts(UNREAD) == []


def test_the_last_line_counts_losses_of_the_tap(settings: RecorderSettings, bus: TappedBus, log: RecordedLog) -> None:
    durable = DurableRows()
    with running(make(settings, bus, log, durable=durable), bus):
        bus.tell(b"CMSG !/bus/lost\x00807", message_packet(), b"CMSG !/bus/lost\x000", b"CMSG !/bus/lost\x009024")
        durable.wait(5)
    (facts,) = log.facts(STOPPED)
    assert (facts["rows"], facts["lost"]) == (5, 9_831)


def test_a_restarted_bus_is_followed(settings: RecorderSettings, bus: TappedBus, log: RecordedLog) -> None:
    durable = DurableRows()
    with running(make(settings, bus, log, durable=durable), bus):
        bus.tell(message_packet(b"before"))
        durable.wait(2)
        bus.hang_up()
        bus.accept(message_packet(b"after"))
        durable.wait(4)
    rows = recorded(settings.archive)
    assert [(row.kind, row.key) for row in rows] == [("restart", None), ("message", "before"), ("restart", None), ("message", "after")]
    assert rows[2].reason == "the recorder lost its connection to the bus"
    assert (rows[2].duration or 0) > 0


def test_existing_subscriptions_are_recorded_once_and_again_in_each_hour(
    settings: RecorderSettings, tmp_path: Path, log: RecordedLog
) -> None:
    durable = DurableRows()
    with (
        TappedBus(tmp_path / "knowing", features=FEATURES + b"\nsubscriptions") as bus,
        running(make(settings, bus, log, durable=durable), bus),
    ):
        stood = [{"id": conn, "cred": f"!/cred/100/{conn}000/99", "pattern": pattern} for conn, pattern in ((1, "a/"), (2, "b"), (2, "c"))]
        bus.answer_question(stood, "2/63")
        bus.tell(tap_packet(fact("unsubscribe", id=2, pattern="b")))
        bus.answer_question([*stood[:1], {"id": 3}, {"pattern": "x"}, {"id": 4, "pattern": "y", "pattern_base64": "!"}])
        bus.tell(message_packet(b"a/x"), message_packet(b"a/y", time=(time.time_ns() // HOUR_NS + 2) * HOUR_NS))
        durable.wait(9)
    rows = [
        (row.kind, row.conn, row.uid, row.key) for row in recorded(settings.archive) if row.kind not in {RowKind.MESSAGE, RowKind.RESTART}
    ]
    assert rows == [
        ("snapshot", 1, 1000, "a/"),
        ("snapshot", 2, 2000, "b"),
        ("snapshot", 2, 2000, "c"),
        ("unsubscribe", 2, 2000, "b"),
        ("snapshot", 1, 1000, "a/"),
        ("snapshot", 2, 2000, "c"),
    ]
    assert log.facts(UNREADABLE)[-1] == {"count": 3}


def test_the_connections_of_a_restarted_bus_are_read_again(settings: RecorderSettings, tmp_path: Path, log: RecordedLog) -> None:
    durable = DurableRows()
    with (
        TappedBus(tmp_path / "knowing", features=FEATURES + b"\nsubscriptions") as bus,
        running(make(settings, bus, log, durable=durable), bus),
    ):
        bus.answer_question([{"id": 1, "cred": "!/cred/100/1000/99", "pattern": "a/"}])
        durable.wait(2)
        accepting = bus.accept_soon()
        accepting.join(30)
        bus.answer_question([{"id": 1, "cred": "!/cred/200/2000/99", "pattern": "a/"}])
        durable.wait(4)
    rows = [(row.kind, row.conn, row.uid, row.key) for row in recorded(settings.archive)]
    assert rows == [("restart", None, None, None), ("snapshot", 1, 1000, "a/"), ("restart", None, None, None), ("snapshot", 1, 2000, "a/")]


def test_each_hour_begins_with_the_subscriptions_that_stand(settings: RecorderSettings, bus: TappedBus, log: RecordedLog) -> None:
    durable = DurableRows()
    now = 4_000_000_000 * 10**9
    with running(make(settings, bus, log, durable=durable, clocks=Clocks(lambda: now)), bus):
        bus.tell(tap_packet(fact("subscribe", time=now, pattern="a/*")), tap_packet(fact("subscribe", time=now, id=8, pattern="b")))
        bus.tell(tap_packet(fact("unsubscribe", time=now, id=8, pattern="b")))
        bus.tell(message_packet(time=now + HOUR_NS), message_packet(time=now + HOUR_NS + 1))
        durable.wait(7)
    rows = recorded(settings.archive)
    assert [(row.kind, row.key) for row in rows[4:]] == [("snapshot", "a/*"), ("message", "a/b"), ("message", "a/b")]
    assert (rows[4].ts, rows[4].conn, rows[4].uid) == (now + HOUR_NS, 7, 1000)
    assert [entry.hour for entry in RecordReader(Path(settings.archive)).entries()][-2:] == [7, 8]


def test_after_a_gap_the_subscriptions_are_recorded_again(
    settings: RecorderSettings, bus: TappedBus, log: RecordedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    durable, tried = DurableRows(), threading.Event()

    def fail(_fd: int) -> None:
        tried.set()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with running(make(settings, bus, log, durable=durable), bus):
        bus.tell(tap_packet(fact("subscribe", pattern="a/*")))
        durable.wait(2)
        with monkeypatch.context() as full:
            full.setattr("sbus_archive.recorder.wal.os.fdatasync", fail)
            bus.tell(message_packet(b"lost"))
            assert tried.wait(30)
            bus.tell(tap_packet(fact("subscribe", pattern="b")))
            # It writes nothing: only its repetition shows that it was received.
        durable.wait(3)
        bus.tell(message_packet(b"kept"))
        durable.wait(5)
    rows = recorded(settings.archive)
    assert [row.kind for row in rows[:4]] == ["restart", "subscribe", "gap", "snapshot"]
    assert rows[-1].key == "kept"
    assert {row.key for row in rows[3:] if row.kind in (RowKind.SNAPSHOT, RowKind.SUBSCRIBE)} == {"a/*", "b"}


def test_unreadable_records_are_counted_and_reported(settings: RecorderSettings, bus: TappedBus, log: RecordedLog) -> None:
    durable = DurableRows()
    with running(make(settings, bus, log, durable=durable), bus):
        bus.tell(tap_packet(fact("colour")), b"CMSG !/tap\0no json\n", message_packet())
        durable.wait(2)
    assert log.facts(UNREADABLE)[-1] == {"count": 2}


def test_its_files_are_private(settings: RecorderSettings, bus: TappedBus, log: RecordedLog) -> None:
    before = os.umask(0)
    try:
        with running(make(settings, bus, log), bus):
            bus.tell(message_packet())
    finally:
        os.umask(before)
    paths = [path for folder in (settings.archive, settings.spool) for path in (Path(folder), *Path(folder).rglob("*"))]
    assert {".parquet", ".json"} < {path.suffix for path in paths}
    assert {path: path.stat().st_mode & 0o777 for path in paths} == {path: 0o750 if path.is_dir() else 0o640 for path in paths}


def test_folders_that_are_there_are_closed_to_others_or_refused(settings: RecorderSettings, bus: TappedBus, log: RecordedLog) -> None:
    for name in (settings.archive, settings.spool):
        Path(name).mkdir()
        Path(name).chmod(0o755)
    with running(make(settings, bus, log), bus):
        pass
    assert [Path(name).stat().st_mode & 0o777 for name in (settings.archive, settings.spool)] == [0o750] * 2
    Path(settings.archive, "diary").touch()
    Path(settings.archive).chmod(0o755)
    refused = make(settings, bus, log)
    with pytest.raises(ExposedFolderError, match="such as 'diary'"):
        refused.prepare()
    refused.close()


def test_two_recorders_do_not_share_a_spool(settings: RecorderSettings, bus: TappedBus, log: RecordedLog) -> None:
    second = make(settings, bus, log)
    with running(make(settings, bus, log), bus):
        with pytest.raises(SpoolInUseError, match=r"in use by another recorder, process \d+"):
            second.prepare()
        second.close()


@pytest.mark.parametrize("host", ["a/b", "", "ü", "x" * 65])
def test_an_invalid_host_name_is_reported(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: host)
    with pytest.raises(BadHostError, match=r"invalid host name .* for an archive: set host in recorder\.toml"):
        host_of(RecorderSettings())
