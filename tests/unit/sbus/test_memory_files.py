"""Memory files: what becomes one, with and without huge pages, and what is read of files."""

from __future__ import annotations

import errno
import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sbus import memory_files
from sbus.memory_files import BlobData, create_memory_file, is_copied_file, is_sealed, make_memfd, map_file
from sbus.protocol.blobs import SEALS
from sbusd.state.log_file import create_memory_file as of_the_daemon
from tests.support.blob_programs import sealed
from tools.stage import ROOT, house_files

HUGE = 2 << 20


@pytest.fixture(params=[True, False], ids=["huge", "plain"])
def is_compiled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    if not memory_files.IS_COMPILED and request.param:
        pytest.fail("needs the extensions: make build")
    monkeypatch.setattr(memory_files, "IS_COMPILED", request.param)
    return bool(request.param)


def content_of(data: BlobData, limit: int | None = None) -> bytes:
    """Make a memory file of *data*, and return its content."""
    fd, size = make_memfd(data, limit)
    try:
        assert is_sealed(fd)
        status = os.fstat(fd)
        assert status.st_size == size
        assert status.st_blocks * 512 >= size, "readers would allocate pages"
        view = map_file(fd, size)
        assert view.readonly
        assert len(view) == size
        return bytes(view)
    finally:
        os.close(fd)


@pytest.mark.parametrize("size", [0, 1, 4_097, HUGE - 1, HUGE, HUGE + 1, 3 * HUGE + 4_097])
def test_all_bytes_of_anything_arrive(is_compiled: bool, tmp_path: Path, size: int) -> None:
    data = os.urandom(size)
    path = tmp_path / "file"
    path.write_bytes(data)
    assert content_of(data) == content_of(bytearray(data)) == content_of(memoryview(data)) == content_of(path) == data
    assert content_of(io.BytesIO(data)) == data
    with path.open("rb") as file:
        file.seek(size // 2)
        assert content_of(file) == data[size // 2 :]


def test_a_file_that_changes_its_size_is_read_to_its_end(is_compiled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * (HUGE + 5))
    for expected in (HUGE, 5 * HUGE):
        monkeypatch.setattr(memory_files, "_expected_size", lambda _source, expected=expected: expected)
        assert content_of(path) == b"x" * (HUGE + 5)


def test_at_most_the_limit_is_read_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 10)
    assert content_of(path, 10) == b"x" * 10
    for endless in (path, Path("/dev/zero")):
        with pytest.raises(OSError, match="more than 9 bytes, the quota of this user for blobs") as refused:
            make_memfd(endless, 9)
        assert (refused.value.errno, refused.value.filename) == (errno.EFBIG, str(endless))
    assert content_of(b"x" * 10, 9) == b"x" * 10


def test_a_sparse_file_above_the_limit_costs_nothing(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(OSError, match="more than 1048576 bytes"):
        make_memfd(path, 1 << 20)


def test_a_pipe_is_read_to_its_end() -> None:
    reader, writer = os.pipe()
    os.write(writer, b"content")
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        assert content_of(file) == b"content"


def test_what_cannot_be_read(tmp_path: Path) -> None:
    open_files = len(os.listdir("/proc/self/fd"))
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    with os.fdopen(reader, "rb", buffering=0) as file, os.fdopen(writer, "wb"), pytest.raises(BlockingIOError, match="does not block"):
        make_memfd(file)
    with open(__file__, encoding="utf-8") as text, pytest.raises(TypeError, match="binary mode"):
        make_memfd(text)  # type: ignore[arg-type]  # a mistake
    with pytest.raises(TypeError, match="not int"):
        make_memfd(5)  # type: ignore[arg-type]  # a mistake
    with pytest.raises(IsADirectoryError):
        make_memfd(tmp_path)
    with pytest.raises(FileNotFoundError):
        make_memfd(tmp_path / "none")
    assert len(os.listdir("/proc/self/fd")) == open_files


def test_a_sealed_memory_file_is_not_copied() -> None:
    fd = sealed(b"content")
    loose = sealed(b"content", SEALS & ~8)
    with os.fdopen(fd, "rb") as file, os.fdopen(loose, "rb") as other:
        assert not is_copied_file(file)
        assert is_copied_file(other)
        assert is_copied_file(io.BytesIO(b""))
        assert not is_copied_file(b"")
        made, size = make_memfd(file, 1)
        assert (os.fstat(made).st_ino, size) == (os.fstat(fd).st_ino, 7)
        os.close(made)


@pytest.mark.slow
def test_a_tree_that_is_not_built_works() -> None:
    program = (
        "import os, sys; sys.modules['sbus.huge_pages'] = None\n"
        "from sbus.memory_files import IS_COMPILED, make_memfd, map_file\n"
        "data = os.urandom(5_000_000)\n"
        "print(IS_COMPILED, map_file(*make_memfd(data)) == data)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, check=True, text=True)
    assert done.stdout == "False True\n"


@pytest.mark.parametrize("create", [create_memory_file, of_the_daemon])
@pytest.mark.parametrize("is_old", [True, False])
def test_memory_files_can_never_be_executed(monkeypatch: pytest.MonkeyPatch, create: Callable[[str], int], is_old: bool) -> None:
    flags: list[int] = []
    real = os.memfd_create

    def memfd_create(name: str, given: int) -> int:
        flags.append(given)
        if is_old and given & 0x8:
            raise OSError(errno.EINVAL, "an older kernel")
        return real(name, given & ~0x8)

    monkeypatch.setattr(os, "memfd_create", memfd_create)
    os.close(create("x"))
    assert [bool(each & 0x8) for each in flags] == ([True, False] if is_old else [True])


def test_nothing_else_creates_memory_files() -> None:
    sources = {str(path.relative_to(ROOT)): path.read_text() for path in house_files(".py")}
    users = {name for name, text in sources.items() if "os.memfd_create(" in text}
    assert users == {"sbus/memory_files.py", "sbusd/state/log_file.py"}
