"""Huge pages of memory files: the mapping is right with and without them, and lives as long as its last view."""

from __future__ import annotations

import mmap
import os
import re
from pathlib import Path

import pytest

from tests.support.skips import require

try:
    from sbus.huge_pages import HUGE_PAGE_BYTES, Mapping, use_huge_pages
except ImportError:
    require(False, "needs the extensions: make build", could_run=True)


def memfd(size: int) -> int:
    """Return an empty memory file."""
    fd = os.memfd_create("huge", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.truncate(fd, size)
    return fd


def mapped() -> list[str]:
    """Return the lines of the mappings of these files, with their parts."""
    return [line for line in Path("/proc/self/maps").read_text().splitlines() if "memfd:huge" in line]


@pytest.mark.parametrize("size", [1, 4_096, HUGE_PAGE_BYTES - 1, HUGE_PAGE_BYTES, HUGE_PAGE_BYTES + 1, 5 * HUGE_PAGE_BYTES + 4_097])
def test_a_mapping_has_the_file_and_nothing_else(size: int) -> None:
    fd = memfd(size)
    use_huge_pages(fd, size)
    data = os.urandom(size)
    assert os.pwrite(fd, data, 0) == size
    before = Path("/proc/self/maps").read_text().count("\n")
    view = memoryview(Mapping(fd, size))
    os.close(fd)
    assert view == data
    assert view.readonly
    (line,) = mapped()
    first, last = (int(each, 16) for each in re.match(r"(\w+)-(\w+) r--s", line).groups())  # type: ignore[union-attr]  # else it fails
    assert last - first == -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
    assert size < HUGE_PAGE_BYTES or first % HUGE_PAGE_BYTES == 0
    part = view[size // 2 :]
    del view
    assert part == data[size // 2 :]
    assert mapped()
    del part
    assert not mapped()
    assert Path("/proc/self/maps").read_text().count("\n") <= before


def test_the_size_does_not_change() -> None:
    size = 3 * HUGE_PAGE_BYTES + 5
    fd = memfd(size)
    use_huge_pages(fd, size)
    assert os.fstat(fd).st_size == size
    assert os.fstat(fd).st_blocks * 512 <= 3 * HUGE_PAGE_BYTES + mmap.PAGESIZE
    os.close(fd)


def test_small_files_need_none() -> None:
    fd = memfd(4_096)
    assert use_huge_pages(fd, 4_096)
    assert os.fstat(fd).st_blocks == 0
    os.close(fd)


def test_what_cannot_be_mapped() -> None:
    with pytest.raises(ValueError, match="must be at least 1"):
        Mapping(0, 0)
    for size in (4_096, HUGE_PAGE_BYTES):
        with pytest.raises(OSError, match="Bad file descriptor"):
            Mapping(1_000_000, size)
    fd = memfd(1)
    with pytest.raises(OSError, match="Cannot allocate memory"):
        Mapping(fd, 1 << 62)
    assert not use_huge_pages(1_000_000, HUGE_PAGE_BYTES)
    os.close(fd)
    assert not mapped()
