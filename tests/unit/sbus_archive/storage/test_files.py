"""The record is closed to other users, whatever the umask and the modes that it finds."""

from __future__ import annotations

import errno
import os
import pwd
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sbus_archive.record.schema import batch_of
from sbus_archive.recorder.converter import convert
from sbus_archive.recorder.wal import WalContent, WalWriter
from sbus_archive.storage import files
from sbus_archive.storage.files import ExposedFolderError, LockHeldError, create_private, lock_file, make_folder, make_private
from tests.support.records import message


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    """Nothing is private by the umask."""
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_folders_that_are_made_are_closed_to_others(tmp_path: Path) -> None:
    make_folder(tmp_path / "a" / "b" / "c")
    assert [mode(tmp_path / each) for each in ("a", "a/b", "a/b/c")] == [0o750] * 3
    os.umask(0o077)
    make_folder(tmp_path / "a" / "d")
    assert mode(tmp_path / "a" / "d") == 0o700


@pytest.mark.parametrize("before", [0o755, 0o777, 0o751])
def test_a_folder_of_ours_is_closed(tmp_path: Path, before: int) -> None:
    folder = tmp_path / "archive"
    (folder / "index").mkdir(parents=True)
    (folder / "date=2026-11-20").mkdir()
    folder.chmod(before)
    make_private(folder, ("index", "date=*"))
    assert mode(folder) == before & 0o770


def test_a_folder_that_is_closed_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "foreign").touch()
    tmp_path.chmod(0o770)
    make_private(tmp_path, ())
    assert mode(tmp_path) == 0o770


def test_a_folder_with_other_things_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "foreign").touch()
    tmp_path.chmod(0o755)
    with pytest.raises(
        ExposedFolderError, match=r"open to all users \(mode 0755\), and contains other files, such as 'foreign'. Run chmod o-rwx /"
    ):
        make_private(tmp_path, ("index",))
    assert mode(tmp_path) == 0o755


def test_a_folder_of_another_user_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o755)
    monkeypatch.setattr("os.geteuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(ExposedFolderError, match=r"and owned by user \d+\. Run chmod o-rwx /"):
        make_private(tmp_path, ())


def test_root_does_not_write_into_the_folder_of_another_user(tmp_path: Path, needs_root: None) -> None:
    files.check_owner(tmp_path, ("program",))
    files.check_owner(tmp_path / "missing", ("program",))
    other = pwd.getpwuid(65534)
    os.chown(tmp_path, other.pw_uid, -1)
    command = f"cd / && runuser -u {other.pw_name} -- program 'a b'"
    with pytest.raises(files.ForeignFolderError, match=rf"owned by user {other.pw_name}\. .*: {command}$"):
        files.check_owner(tmp_path, ("program", "a b"))


def test_files_are_closed_to_others_also_if_they_were_there(tmp_path: Path) -> None:
    new, old = tmp_path / "new", tmp_path / "old"
    old.write_bytes(b"something longer")
    old.chmod(0o666)
    for path in (new, old):
        with create_private(path) as stream:
            stream.write(b"x")
        assert (mode(path), path.read_bytes()) == (0o640, b"x")
    (tmp_path / "link").symlink_to(old)
    with pytest.raises(OSError, match="symbolic links"):
        create_private(tmp_path / "link")


def test_all_of_an_archive_and_a_spool_is_private(tmp_path: Path) -> None:
    archive, spool = tmp_path / "archive", tmp_path / "spool"
    for folder in (archive, spool):
        make_folder(folder)
    wal = WalWriter.create(spool, "alpha", 1)
    wal.append(batch_of([message(1)]))
    wal.close()
    convert(archive, WalContent("alpha", 1, [batch_of([message(1)])]))
    paths = [path for folder in (archive, spool) for path in folder.rglob("*")]
    assert {mode(path) for path in paths if path.is_dir()} == {files.FOLDER_MODE}
    assert {mode(path) for path in paths if path.is_file()} == {files.FILE_MODE}
    assert {path.suffix for path in paths if path.is_file()} == {".parquet", ".json", ".wal"}


def test_the_holder_is_named_and_the_id_of_an_earlier_one_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    path.write_text("123456789012345\n")
    fd = lock_file(path)
    assert path.read_text() == f"{os.getpid()}\n"
    with pytest.raises(LockHeldError, match=f"process {os.getpid()}$"):
        lock_file(path)
    os.close(fd)
    os.close(lock_file(path))


def _failing(code: int) -> Callable[[int, bytes, int], int]:
    """Return a pwrite(2) that fails with *code*."""

    def fail(_fd: int, _data: bytes, _offset: int) -> int:
        raise OSError(code, os.strerror(code))

    return fail


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_prevents_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    path = tmp_path / ".lock"
    path.write_text("1\n")
    monkeypatch.setattr(os, "pwrite", _failing(code))
    fd = lock_file(path)
    with pytest.raises(LockHeldError) as found:
        lock_file(path)
    assert found.value.holder == "unknown", "not an earlier process"
    os.close(fd)


def test_other_errors_of_the_disk_are_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(os, "pwrite", _failing(errno.EIO))
        with pytest.raises(OSError, match="Input/output error"):
            lock_file(tmp_path / ".lock")
    os.close(lock_file(tmp_path / ".lock"))
