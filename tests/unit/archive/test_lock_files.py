"""A lock file has the id of the process that holds it, as far as the disk has room."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from sbusd.archive.lock_files import LockHeldError, lock_file


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
