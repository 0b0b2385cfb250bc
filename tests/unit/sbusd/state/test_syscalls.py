"""System calls with the interpreter's lock held return and raise the same as Python's own."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from sbusd.state.syscalls import inode_of, write_at


def closed_descriptor() -> int:
    """Return a descriptor that is not open."""
    fd = os.open("/dev/null", os.O_RDONLY)
    os.close(fd)
    return fd


def test_the_inode_is_the_one_that_fstat_returns(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        assert inode_of(file.fileno()) == os.fstat(file.fileno()).st_ino


def test_the_bytes_are_written_at_their_place(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w+b") as file:
        assert write_at(file.fileno(), b"middle", 1 << 33) == 6
        assert write_at(file.fileno(), memoryview(b"xbeginning")[1:], 0) == 9
        assert os.pread(file.fileno(), 9, 0) == b"beginning"
        assert os.pread(file.fileno(), 20, 1 << 33) == b"middle"


def test_errors_have_the_number_of_the_kernel(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    with pytest.raises(OSError, match=os.strerror(errno.EBADF)) as failure:
        inode_of(closed_descriptor())
    assert failure.value.errno == errno.EBADF
    with path.open("rb") as file, pytest.raises(OSError, match=os.strerror(errno.EBADF)):
        write_at(file.fileno(), b"x", 0)
