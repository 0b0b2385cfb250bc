"""The reader on real journal files: order, rotation, missing and damaged entries."""

from __future__ import annotations

import contextlib
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sbus_services.feeds.journal import reader as module
from sbus_services.feeds.journal.reader import JournalError, JournalReader, UnreadableEntryError
from tests.support.journals import JournalFolder
from tools.stage import ROOT

pytestmark = pytest.mark.slow

OpenReader = Callable[[], JournalReader]


@pytest.fixture
def files(tmp_path: Path) -> JournalFolder:
    return JournalFolder(tmp_path / "journal")


@pytest.fixture
def open_reader(files: JournalFolder) -> Iterator[OpenReader]:
    """Open the existing files."""
    opened: list[JournalReader] = []

    def make() -> JournalReader:
        opened.append(JournalReader(files.path))
        return opened[-1]

    yield make
    for reader in opened:
        reader.close()


def messages(reader: JournalReader) -> list[bytes | None]:
    """Return the messages of all current entries."""
    read = []
    while (entry := reader.read()) is not None:
        read.append(entry.first("MESSAGE"))
    return read


def wait(reader: JournalReader) -> None:
    """Wait until the journal has changed, and process the change."""
    readable, _, _ = select.select([reader.fileno()], [], [], 30)
    assert readable
    reader.process()


def test_first_time_begins_with_the_last_lines(files: JournalFolder, open_reader: OpenReader) -> None:
    files.add(*(f"{number}" for number in range(5)))
    for lines, expected in ((0, []), (2, [b"3", b"4"]), (4, [b"1", b"2", b"3", b"4"]), (5, [b"0", b"1", b"2", b"3", b"4"])):
        reader = open_reader()
        place = reader.seek_last(lines)
        assert messages(reader) == expected
        assert (place is None) == (lines == 5)


def test_entries_come_in_order_over_rotations(files: JournalFolder, open_reader: OpenReader) -> None:
    reader = open_reader()
    reader.seek_last(0)
    files.add("a", "b")
    wait(reader)
    read = messages(reader)
    for letter in ("c", "d"):
        files.rotate()
        files.add(letter)
        while read[-1] != letter.encode():
            wait(reader)
            read += messages(reader)
    assert read == [b"a", b"b", b"c", b"d"]


def test_cursor_is_found_again_after_rotation(files: JournalFolder, open_reader: OpenReader) -> None:
    files.add("a", "b", "c")
    first = open_reader()
    first.seek_last(3)
    place = [first.read() for _ in range(2)][-1]
    assert place is not None
    files.rotate()
    files.add("d")
    again = open_reader()
    again.seek_recent(place.cursor, 100.0)
    assert messages(again) == [b"b", b"c", b"d"], "the entry itself comes first"


def test_a_cursor_of_a_removed_file_continues_at_the_next(files: JournalFolder, open_reader: OpenReader) -> None:
    files.add("a", "b")
    reader = open_reader()
    reader.seek_last(2)
    first = reader.read()
    assert first is not None
    archive = files.rotate()
    files.add("c")
    archive.unlink()
    again = open_reader()
    again.seek_recent(first.cursor, 100.0)
    entry = again.read()
    assert entry is not None
    assert entry.first("MESSAGE") == b"c"
    assert not entry.cursor.is_same_entry(first.cursor)


def test_clock_that_is_set_back_changes_nothing_in_the_order_of_a_file(files: JournalFolder, open_reader: OpenReader) -> None:
    files.add("a", at=5000)
    files.add("b", at=10)
    files.add("c", at=5001)
    reader = open_reader()
    reader.seek_last(100)
    assert messages(reader) == [b"a", b"b", b"c"]


YEAR = 365 * 86_400


@pytest.mark.parametrize("shift", [0, YEAR, -YEAR], ids=["right", "forward", "back"])
@pytest.mark.parametrize("seconds", [4.5, 100.0])
def test_the_backlog_does_not_depend_on_dates(files: JournalFolder, open_reader: OpenReader, shift: int, seconds: float) -> None:
    files.add(*"abc", at=1000)
    files.add(*"def", at=1003, shift=shift)
    reader = open_reader()
    reader.seek_last(100)
    saved = reader.read()
    assert saved is not None
    assert reader.seek_recent(saved.cursor, seconds) == (seconds < 5)
    assert messages(reader) == [*([b"a"] if seconds > 5 else []), b"b", b"c", b"d", b"e", b"f"]


@pytest.mark.parametrize(
    ("shift", "is_rotated"),
    # Without a common numbering the library orders files by date, so a file of the past would not be the newest.
    [(10, False), (10, True), (2 * YEAR, False), (2 * YEAR, True), (-YEAR, False)],
)
def test_time_without_power_does_not_count_for_the_backlog(
    files: JournalFolder, open_reader: OpenReader, shift: int, *, is_rotated: bool
) -> None:
    files.add(*"abc", at=1)
    if is_rotated:
        files.rotate()
    files.add("d", at=0, boot="c" * 32, shift=shift)
    files.add("e", at=1, boot="c" * 32, shift=shift)
    reader = open_reader()
    reader.seek_last(100)
    first = reader.read()
    assert first is not None
    assert first.first("MESSAGE") == b"a"
    for seconds, expected in ((0.5, b"e"), (2.5, b"bcde"), (100.0, b"abcde")):
        reader.seek_recent(first.cursor, seconds)
        assert b"".join(message or b"" for message in messages(reader)) == expected, f"backlog {seconds}"


def test_a_backlog_of_an_empty_journal(files: JournalFolder, open_reader: OpenReader) -> None:
    files.add("a")
    reader = open_reader()
    reader.seek_last(1)
    saved = reader.read()
    assert saved is not None
    files.active.unlink()
    again = open_reader()
    assert not again.seek_recent(saved.cursor, 0.0)
    assert messages(again) == []


def test_value_that_is_huge_when_unpacked_costs_that_entry_alone(files: JournalFolder) -> None:
    files.add("a", b"z" * (96 << 20), "b")
    program = f"""
from pathlib import Path
from sbus_services.feeds.journal.reader import JournalReader, UnreadableEntryError, bound_memory
bound_memory(160 << 20)
reader = JournalReader(Path({str(files.path)!r}))
reader.seek_last(100)
while True:
    try:
        entry = reader.read()
    except UnreadableEntryError as wrong:
        print(wrong)
        continue
    if entry is None:
        break
    print(entry.first("MESSAGE"))
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60, cwd=ROOT)
    assert result.stderr == ""
    assert result.stdout.splitlines() == ["b'a'", "journal entry too large to read", "b'b'"]


def test_damaged_file_does_not_stop_the_others(files: JournalFolder, open_reader: OpenReader) -> None:
    files.add("a", "b", "c")
    archive = files.rotate()
    files.add("d")
    damage(archive)
    reader = open_reader()
    reader.seek_last(100)
    read: list[bytes | None] = []
    for _ in range(20):
        try:
            entry = reader.read()
        except UnreadableEntryError:
            continue
        if entry is None:
            break
        read.append(entry.first("MESSAGE"))
    assert read[-1] == b"d"


def damage(file: Path) -> None:
    """Overwrite a journal file after its header and hash tables."""
    content = bytearray(file.read_bytes())
    start = content.find(b"MESSAGE=a")
    assert start > 0
    content[start - 100 : start + 400] = b"\xff" * 500
    file.write_bytes(content)


def test_entry_without_fields_is_damaged_and_not_the_end(
    files: JournalFolder, open_reader: OpenReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.add("a", "b")
    reader = open_reader()
    reader.seek_last(100)
    with monkeypatch.context() as patch:
        patch.setattr(module._Files, "fields", lambda self: {})
        with pytest.raises(UnreadableEntryError):
            reader.read()
    assert messages(reader) == [b"b"]


def test_no_such_folder(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match=r"cannot open the journal .*: No such file"):
        JournalReader(tmp_path / "nothing")


def test_an_unreadable_system_journal_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "id").mkdir()
    file = tmp_path / "id" / "system.journal"
    file.touch()
    monkeypatch.setattr(module, "_WHERE", (tmp_path,))
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with pytest.raises(JournalError, match=f"{file}: permission denied; .*systemd-journal"):
        JournalReader()


def test_system_s_journal_can_be_opened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "_WHERE", (tmp_path,))
    with contextlib.closing(JournalReader()) as reader:
        assert reader.fileno() >= 0
        reader.process()


def test_a_folder_that_appears_is_read(monkeypatch: pytest.MonkeyPatch, files: JournalFolder, tmp_path: Path) -> None:
    """As /var/log/journal does at journalctl --flush; also one that was removed and made again, which the library does not watch."""
    late = tmp_path / "late"
    monkeypatch.setattr(module, "_WHERE", (files.path, late))
    with contextlib.closing(JournalReader()) as reader:
        assert reader.timeout_ms() == module.MISSING_FOLDER_MS
        late.mkdir()
        assert reader.process()
        assert reader.timeout_ms() != module.MISSING_FOLDER_MS
        late.rename(tmp_path / "other")
        late.mkdir()
        assert reader.process()
        assert not reader.process()
        late.rmdir()
        assert reader.process()


def test_files_that_are_added_or_removed_require_to_seek_again(files: JournalFolder, open_reader: OpenReader) -> None:
    files.add("a")
    reader = open_reader()
    reader.seek_last(100)
    assert messages(reader) == [b"a"]
    files.rotate()
    files.add("b")
    while not reader.process():
        assert select.select([reader], [], [], 30)[0]
    reader.seek(None)
    assert messages(reader) == [b"a", b"b"]


def test_a_folder_that_appears_and_cannot_be_read_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "_WHERE", (tmp_path / "late",))
    with contextlib.closing(JournalReader()) as reader:
        (tmp_path / "late/id").mkdir(parents=True)
        (tmp_path / "late/id/system.journal").touch()
        monkeypatch.setattr("os.access", lambda path, mode: False)
        with pytest.raises(JournalError, match="permission denied"):
            reader.process()


def test_a_file_that_is_not_a_journal_is_skipped(files: JournalFolder, open_reader: OpenReader) -> None:
    files.add("a")
    (files.path / "other.journal").write_bytes(b"no journal" * 1000)
    reader = open_reader()
    reader.seek_last(100)
    assert messages(reader) == [b"a"]
