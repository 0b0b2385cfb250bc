"""Two recorders with one host name and one archive: the second is refused, and nothing of the first is replaced or removed."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import BinaryIO

import pytest

from sbus_archive.record.layout import HOUR_NS
from sbus_archive.record.schema import batch_of
from sbus_archive.recorder import host_claims
from sbus_archive.recorder.converter import Converter, convert
from sbus_archive.recorder.host_claims import HostClaims
from sbus_archive.recorder.log_messages import DAMAGED
from sbus_archive.recorder.retention import Retention
from sbus_archive.recorder.service import Recorder
from sbus_archive.recorder.tap import RecorderTap
from sbus_archive.recorder.wal import WalWriter, read_wal, wal_files
from sbus_archive.storage.ownership import HostTakenError
from sbus_archive.storage.store import LocalStore
from sbus_programs.config.recorder import RecorderSettings
from sbus_programs.systemd.service_manager import ServiceManager
from tests.support.dates import fixed_date
from tests.support.recorder_fakes import RecordedLog, recorded
from tests.support.records import NOON, message


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return tmp_path / "archive"


def of_machine(identity: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on this machine is another one."""
    monkeypatch.setattr(host_claims, "machine_identity", lambda _application: identity)


def spooled(spool: Path, host: str, payload: bytes) -> Path:
    """Write a file of the write-ahead with one row, which has the first position."""
    spool.mkdir(exist_ok=True)
    writer = WalWriter.create(spool, host, 1)
    writer.append(batch_of([message(1, payload=payload)], 1))
    writer.close()
    return writer.path


def converter_of(archive: Path, spool: Path, log: RecordedLog, host: str = "alpha", *, is_late: bool = False) -> Converter:
    """Return the converter of a recorder that has claimed *host*; if it *is_late*, all segments are expired."""
    claims = HostClaims(archive, spool)
    claims.hold(host)
    retention = Retention(archive, host, 1 << 30, 3_600.0)
    retention.load()
    date = fixed_date(NOON + 100 * HOUR_NS * is_late)
    return Converter(archive, retention, log, hold=claims.hold, clock=date, retry_seconds=0.01)


@pytest.mark.parametrize("other_machine", [True, False], ids=["another machine", "another spool of this machine"])
def test_the_second_recorder_of_a_name_is_refused(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other_machine: bool
) -> None:
    HostClaims(archive, tmp_path / "spool").hold("alpha")
    convert(archive, read_wal(spooled(tmp_path / "spool", "alpha", b"first")))
    spool = tmp_path / ("spool" if other_machine else "spool2")
    spooled(spool, "alpha", b"second")
    if other_machine:
        of_machine("4" * 32, monkeypatch)
    settings = RecorderSettings(archive=str(archive), spool=str(spool), host="alpha", retention=3_600.0)
    recorder = Recorder(settings, RecorderTap(str(tmp_path / "bus"), b""), RecordedLog(), ServiceManager())
    with pytest.raises(HostTakenError) as caught:
        recorder.prepare()
    recorder.close()
    said = str(caught.value)
    assert said.startswith(
        f"{archive}/hosts/alpha.json: host alpha belongs to machine {os.uname().nodename} with archive {archive} and spool "
    )
    assert said.endswith(f"stop the other one, and delete {archive}/hosts/alpha.json")
    assert [row.payload for row in recorded(archive)] == [b"first"]
    assert wal_files(spool)


@pytest.mark.parametrize("work", ["convert", "expire"])
def test_a_recorder_whose_name_was_taken_changes_nothing(archive: Path, tmp_path: Path, work: str) -> None:
    """Such as a copy of a machine, which has the same identity: the later start has the name."""
    spool, log = tmp_path / "spool", RecordedLog()
    converter_of(archive, spool, log).close()
    convert(archive, read_wal(spooled(spool, "alpha", b"other")))
    converter = converter_of(archive, spool, log, is_late=work == "expire")
    HostClaims(archive, spool).hold("alpha")
    converter.submit(spooled(spool, "alpha", b"mine"))
    if work == "expire":
        wal_files(spool)[0].unlink()
    converter.start()
    converter.close(30)
    assert isinstance(converter.failure, HostTakenError)
    assert [row.payload for row in recorded(archive)] == [b"other"]
    assert bool(wal_files(spool)) is (work == "convert")


def test_rows_of_an_earlier_name_do_not_replace_those_of_its_new_owner(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool, log = tmp_path / "spool", RecordedLog()
    of_machine("4" * 32, monkeypatch)
    HostClaims(archive, tmp_path / "elsewhere").hold("alpha")
    convert(archive, read_wal(spooled(tmp_path / "elsewhere", "alpha", b"other")))
    of_machine("3" * 32, monkeypatch)
    converter = converter_of(archive, spool, log, "beta")
    spool.mkdir()
    for host in ("alpha", "gamma"):
        converter.submit(spooled(spool / host, host, host.encode()))
    converter.start()
    assert converter.close(30)
    assert sorted(row.payload or b"" for row in recorded(archive)) == [b"gamma", b"other"]
    (fact,) = log.facts(DAMAGED)
    assert "host alpha belongs to machine" in str(fact["reason"])
    assert [path.name for path in (spool / "alpha").iterdir()] == [str(fact["reason"]).rpartition("; renamed to ")[2]]


def test_an_archive_that_contains_its_spool_can_be_moved(tmp_path: Path) -> None:
    """As the archives of ``sbusctl record``."""
    HostClaims(tmp_path / "a", tmp_path / "a" / ".spool").hold("alpha")
    (tmp_path / "a").rename(tmp_path / "b")
    HostClaims(tmp_path / "b", tmp_path / "b" / ".spool").hold("alpha")
    with pytest.raises(HostTakenError):
        HostClaims(tmp_path / "b", tmp_path / "spool").hold("alpha")


def test_a_full_disk_does_not_prevent_retention(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_store: LocalStore, name: str, _source: BinaryIO) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)

    claims = HostClaims(tmp_path, tmp_path / "spool")
    with monkeypatch.context() as patched:
        patched.setattr(LocalStore, "put", full)
        claims.hold("alpha")
    claims.hold("alpha")
    with pytest.raises(HostTakenError):
        HostClaims(tmp_path, tmp_path / "other").hold("alpha")
