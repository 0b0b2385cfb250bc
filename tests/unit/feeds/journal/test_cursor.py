"""Cursors of the journal, and the file that saves one."""

from __future__ import annotations

from pathlib import Path

import pytest

from sbusd.feeds.journal.cursor import BadCursorError, Cursor, CursorFile


def text(number: int = 1, *, source: str = "a", second: int = 1, checksum: int = 7) -> str:
    return f"s={source * 32};i={number:x};b={'b' * 32};m={second:x};t={second:x};x={checksum:x}"


def test_fields_of_a_cursor() -> None:
    cursor = Cursor.parse(text(255, second=16))
    assert (cursor.source, cursor.number, cursor.monotonic, cursor.realtime, cursor.checksum) == ("a" * 32, 255, 16, 16, 7)


@pytest.mark.parametrize(
    "wrong", ["", "s=1", text() + "x\n", text().replace("i=1", "i="), text().upper(), "\0" * 200, text() + "\n" + text()]
)
def test_an_invalid_cursor(wrong: str, tmp_path: Path) -> None:
    with pytest.raises(BadCursorError) as error:
        Cursor.parse(wrong)
    assert len(str(error.value).splitlines()) == 1
    file = tmp_path / "cursor"
    file.write_text(wrong)
    with pytest.raises(BadCursorError):
        CursorFile(file).load()


def test_missing_entries_are_known_within_one_source() -> None:
    first = Cursor.parse(text(5))
    assert [Cursor.parse(text(number)).missing_since(first) for number in (5, 6, 7, 10)] == [0, 0, 1, 4]
    assert Cursor.parse(text(7, source="c")).missing_since(first) is None


def test_order_within_one_source_is_independent_of_the_clock() -> None:
    early, late = Cursor.parse(text(5, second=900)), Cursor.parse(text(6, second=3))
    assert late.is_behind(early)
    assert not early.is_behind(late)
    assert not early.is_behind(early)
    assert not Cursor.parse(text(9, source="c")).is_behind(early)


def test_entry_that_was_copied_to_another_file_is_the_same() -> None:
    assert Cursor.parse(text(5)).is_same_entry(Cursor.parse(text(1, source="c")))
    assert not Cursor.parse(text(5)).is_same_entry(Cursor.parse(text(5, source="c", checksum=8)))
    assert not Cursor.parse(text(5)).is_same_entry(Cursor.parse(text(6)))


def test_the_file_returns_the_saved_cursor(tmp_path: Path) -> None:
    file = CursorFile(tmp_path / "cursor")
    assert file.load() is None
    for number in (1, 2):
        file.save(Cursor.parse(text(number)))
        assert file.load() == Cursor.parse(text(number))
    assert [path.name for path in tmp_path.iterdir()] == ["cursor"]


def test_save_that_fails_leaves_the_old_one_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = CursorFile(tmp_path / "cursor")
    file.save(Cursor.parse(text(1)))

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        file.save(Cursor.parse(text(2)))
    assert file.load() == Cursor.parse(text(1))
    assert [path.name for path in tmp_path.iterdir()] == ["cursor"]


def test_without_a_path_nothing_is_kept() -> None:
    file = CursorFile(None)
    file.save(Cursor.parse(text()))
    assert file.load() is None
