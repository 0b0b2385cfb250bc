"""Upload of one segment: the entry follows its segment, and nothing leaves the archive but its own segments."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path
from typing import BinaryIO

import pytest

from sbus_archive.record.index import read_index, write_entry
from sbus_archive.record.layout import HOUR_NS, IndexEntry
from sbus_archive.shipping.upload import Outcome, Uploader
from sbus_archive.storage.files import RecordError
from sbus_archive.storage.ownership import HostTakenError, Owner, Ownership
from sbus_archive.storage.store import DifferentContentError, LocalStore
from tests.support.records import NOON, message
from tests.support.traffic import deliver


class _Recorded(LocalStore):
    """A store that notes what was written."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.written: list[str] = []

    def put(self, name: str, source: BinaryIO) -> None:
        self.written.append(name)
        super().put(name, source)


class Bench:
    """An archive with one segment, and a store."""

    def __init__(self, folder: Path, keep_seconds: float = 0.0) -> None:
        self.archive = folder / "archive"
        deliver(self.archive, "alpha", [message(1)])
        self.store = _Recorded(folder / "store")
        self.ownership = Ownership(self.store, "alpha", Owner("1", "machine-a", "/a", "11"), "Advice")
        self.ownership.take()
        self.store.written.clear()
        self.beats = 0
        self.uploader = Uploader(self.archive, self.store, self.ownership, keep_seconds, self.beat)
        self.now = NOON

    def beat(self) -> None:
        self.beats += 1

    @property
    def entry(self) -> IndexEntry:
        (entry,) = read_index(self.archive)
        return entry

    @property
    def name(self) -> str:
        return Path(self.entry.name.index_path).name

    def ship(self) -> Outcome:
        return self.uploader.ship(self.name, self.now)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_the_entry_follows_its_segment_and_a_repetition_changes_nothing(bench: Bench) -> None:
    assert bench.ship() is Outcome.SHIPPED
    assert bench.store.written == [bench.entry.path, bench.entry.name.index_path]
    assert list(read_index(bench.store.path(""))) == [bench.entry]
    assert (bench.uploader.bytes, bench.beats > 1) == (bench.entry.bytes, True)
    assert bench.ship() is Outcome.PRESENT
    assert len(bench.store.written) == 2


def test_the_rest_of_an_interrupted_upload_is_replaced(bench: Bench) -> None:
    bench.store.put(bench.entry.path, io.BytesIO(b"PAR1"))
    bench.store.put(bench.entry.name.index_path, io.BytesIO(b'{"version": 1'))
    assert bench.ship() is Outcome.SHIPPED
    assert list(read_index(bench.store.path(""))) == [bench.entry]


def test_another_segment_of_the_same_name_is_refused(bench: Bench) -> None:
    write_entry(bench.store.path(""), dataclasses.replace(bench.entry, sha256="0" * 64))
    with pytest.raises(DifferentContentError) as caught:
        bench.ship()
    assert f"{bench.store.path(bench.entry.path)}: exists with other content" in str(caught.value)
    assert str(bench.archive / bench.entry.path) in str(caught.value)
    assert bench.store.written == []


class _Raced(_Recorded):
    """A store in which another machine ships *entry* when the machine of the test has written *when*, or begins to write if it is empty."""

    def __init__(self, root: Path, entry: IndexEntry, when: str) -> None:
        super().__init__(root)
        self._entry, self._when = entry, when

    def digest(self, name: str) -> tuple[int, str]:
        if not self._when:
            self._win()
        return super().digest(name)

    def put(self, name: str, source: BinaryIO) -> None:
        super().put(name, source)
        if name == self._when:
            self._win()

    def _win(self) -> None:
        write_entry(self.path(""), self._entry)
        LocalStore.put(self, self._entry.path, io.BytesIO(b"PAR1 of another machine PAR1"))


@pytest.mark.parametrize("wins", ["before the segment", "after the segment"])
def test_an_entry_that_another_machine_wrote_meanwhile_stays(bench: Bench, wins: str) -> None:
    other = dataclasses.replace(bench.entry, sha256="0" * 64)
    store = _Raced(bench.store.path(""), other, bench.entry.path if wins == "after the segment" else "")
    ownership = Ownership(store, "alpha", Owner("1", "machine-a", "/a", "11"), "Advice")
    with pytest.raises(DifferentContentError, match="exists with other content"):
        Uploader(bench.archive, store, ownership).ship(bench.name, NOON)
    assert list(read_index(store.path(""))) == [other]
    assert store.path(other.path).read_bytes() == b"PAR1 of another machine PAR1"
    assert bench.entry.name.index_path not in store.written


def test_one_wrong_reading_of_an_entry_is_not_a_damaged_one(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    write_entry(bench.store.path(""), dataclasses.replace(bench.entry, sha256="0" * 64))
    read, left = bench.store.read, [2]

    def misread(name: str, limit: int) -> bytes:
        left[0] -= 1
        return b"{" if left[0] >= 0 else read(name, limit)

    monkeypatch.setattr(bench.store, "read", misread)
    with pytest.raises(DifferentContentError):
        bench.ship()
    assert bench.store.written == []


@pytest.mark.parametrize("other", [Owner("2", "machine-b", "/b", "22"), Owner("1", "machine-a", "/a", "22")], ids=["another", "a copy"])
def test_nothing_is_written_after_another_machine_took_the_name(bench: Bench, other: Owner) -> None:
    Ownership(bench.store, "alpha", other, "Advice").take(by_force=True)
    bench.store.written.clear()
    with pytest.raises(HostTakenError):
        bench.ship()
    assert bench.store.written == []


@pytest.mark.parametrize("because", ["quota", "retention"])
def test_a_segment_that_was_removed_before_is_lost_and_one_that_was_shipped_stays(bench: Bench, because: str) -> None:
    removed = dataclasses.replace(bench.entry, removed_at=NOON, removed_because=because)  # type: ignore[arg-type]
    shipped = bench.entry
    bench.ship()
    write_entry(bench.archive, removed)
    (bench.archive / removed.path).unlink()
    assert bench.ship() is Outcome.PRESENT
    assert list(read_index(bench.store.path(""))) == [shipped]
    bench.store.delete(shipped.name.index_path)
    assert bench.ship() is Outcome.LOST


def test_a_segment_that_was_removed_before_shipping_began_is_not_lost(bench: Bench) -> None:
    write_entry(bench.archive, dataclasses.replace(bench.entry, removed_at=NOON, removed_because="retention"))
    outcomes = [
        Uploader(bench.archive, bench.store, bench.ownership, since_ns=since).ship(bench.name, NOON) for since in (0, NOON, NOON + 1)
    ]
    assert outcomes == [Outcome.LOST, Outcome.LOST, Outcome.EARLIER]


def test_a_segment_that_would_expire_at_once_is_not_shipped(tmp_path: Path) -> None:
    bench = Bench(tmp_path, keep_seconds=3_600.0)
    bench.now = NOON + 2 * HOUR_NS
    assert (bench.ship(), bench.store.written) == (Outcome.EXPIRED, [])
    bench.now -= 1
    assert bench.ship() is Outcome.SHIPPED


def test_damaged_missing_and_foreign_files_are_not_shipped(bench: Bench, tmp_path: Path) -> None:
    segment, name, entry = bench.archive / bench.entry.path, bench.name, bench.entry
    content = segment.read_bytes()
    segment.write_bytes(content + b"x")
    with pytest.raises(RecordError, match="checksum mismatch"):
        bench.ship()
    segment.unlink()
    with pytest.raises(RecordError, match="missing, but named in the index"):
        bench.ship()
    (tmp_path / "secret").write_bytes(content)
    segment.symlink_to(tmp_path / "secret")
    with pytest.raises(RecordError, match="cannot read file: Too many levels of symbolic links"):
        bench.ship()
    segment.unlink()
    segment.mkdir()
    with pytest.raises(RecordError, match="not a regular file"):
        bench.ship()
    for path in ("../secret", "/etc/passwd", entry.path.replace("host=alpha", "host=..%2f"), entry.path.replace("alpha", "beta")):
        text = entry.to_json().replace(entry.path, path)
        (bench.archive / "index" / name).write_text(text.replace('"alpha"', '"beta"') if "beta" in path else text)
        with pytest.raises(RecordError, match="invalid"):
            bench.uploader.ship(name, NOON)
    assert bench.store.written == []
