"""Files with blobs: their names stay in the directory, and no file is replaced."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from sbus import BlobMessage
from sbusctl import blob_files
from sbusctl.blob_files import MAX_NAME_CHARACTERS, BlobFolder, write_file


@pytest.mark.parametrize(
    ("key", "name"),
    [
        (b"camera/front", "000001-camera_front"),
        (b"../../x", "000001-.._.._x"),
        (b"", "000001-"),
        (b"a\n\x1b[2J\xff", "000001-a_2J_"),
        (b"k" * 5_000, f"000001-{'k' * MAX_NAME_CHARACTERS}"),
    ],
)
def test_names_are_safe(tmp_path: Path, key: bytes, name: str) -> None:
    path = BlobFolder(tmp_path).save(BlobMessage(key, b"", blob=memoryview(b"data")))
    assert path == tmp_path / name
    assert path.read_bytes() == b"data"
    assert [each.name for each in tmp_path.iterdir()] == [name]


def test_existing_files_and_links_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "000001-a").write_bytes(b"old")
    (tmp_path / "000002-a").symlink_to(tmp_path / "elsewhere")
    path = BlobFolder(tmp_path).save(BlobMessage(b"a", b"", blob=memoryview(b"new")))
    assert path.name == "000003-a"
    assert (tmp_path / "000001-a").read_bytes() == b"old"
    assert not (tmp_path / "elsewhere").exists()


def test_a_file_that_cannot_be_written_whole_does_not_remain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, _data: memoryview) -> None:
        os.write(fd, b"part")
        os.close(fd)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (tmp_path / "old").write_bytes(b"old")
    monkeypatch.setattr(blob_files, "_write", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*/000001-a'"):
        BlobFolder(tmp_path).save(BlobMessage(b"a", b"", blob=memoryview(b"new")))
    for name in ("old", "new"):
        with pytest.raises(OSError, match="No space left"):
            write_file(tmp_path / name, memoryview(b"new"))
    assert [each.name for each in tmp_path.iterdir()] == ["old"]
    assert (tmp_path / "old").read_bytes() == b"old"


def test_a_regular_file_is_replaced_and_another_is_written_to(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "file")
    for content in (b"first", b""):
        write_file(tmp_path / "link", memoryview(content))
        assert (tmp_path / "file").read_bytes() == content
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600
    with pytest.raises(OSError, match="No space left on device: '/dev/full'"):
        write_file(Path("/dev/full"), memoryview(b"x"))
    with pytest.raises(IsADirectoryError):
        write_file(tmp_path, memoryview(b"x"))
    assert sorted(each.name for each in tmp_path.iterdir()) == ["file", "link"]
