"""The log that outlives a process is complete or rejected, after any kill and any damage."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from sbusd.state import log_file as statefile
from sbusd.state.log_file import PAGE, StateError, StateFile

RECORDS = [b"one", b"", b"three" * 1000]


@pytest.fixture(autouse=True)
def _nothing_is_left_open() -> Iterator[None]:
    before = set(os.listdir("/proc/self/fd"))
    yield
    assert set(os.listdir("/proc/self/fd")) == before


@pytest.fixture
def file() -> Iterator[StateFile]:
    made = StateFile.create()
    yield made
    made.close()


def _read(fd: int) -> list[bytes]:
    """Return the records that another process would read."""
    other = StateFile.adopt(fd)
    try:
        return list(other.records())
    finally:
        other.close()


def _copy(file: StateFile) -> bytes:
    return os.pread(file.fd, os.fstat(file.fd).st_size, 0)


def _adopt(content: bytes) -> list[bytes]:
    """Return the records of a file with that content."""
    fd = os.memfd_create("copy")
    try:
        os.write(fd, content)
        return _read(fd)
    finally:
        os.close(fd)


def test_the_next_process_reads_appended_records(file: StateFile) -> None:
    assert _read(file.fd) == []
    for record in RECORDS:
        file.append(record)
    assert _read(file.fd) == RECORDS
    assert file.size == sum(4 + len(record) for record in RECORDS)


def test_the_next_process_can_append(file: StateFile) -> None:
    file.append(b"a")
    other = StateFile.adopt(file.fd)
    other.append(b"b")
    other.close()
    assert _read(file.fd) == [b"a", b"b"]


def test_a_new_log_replaces_the_old_one_and_frees_its_memory(file: StateFile) -> None:
    for _ in range(3):
        file.replace([bytes(300_000) for _ in range(20)])
    file.replace(RECORDS)
    file.append(b"more")
    assert _read(file.fd) == [*RECORDS, b"more"]
    assert os.fstat(file.fd).st_blocks * 512 < 10 * PAGE


def test_it_is_private_and_cannot_be_truncated(file: StateFile) -> None:
    assert os.fstat(file.fd).st_mode & 0o777 == 0o600
    assert not os.get_inheritable(file.fd)
    with pytest.raises(PermissionError):
        os.ftruncate(file.fd, 0)


def test_only_records_covered_by_the_header_exist(file: StateFile) -> None:
    """A kill between the record and the header, and one in the middle of a new log."""
    file.append(b"a")
    os.pwrite(file.fd, b"\x05\0\0\0half", PAGE + file.size)
    os.pwrite(file.fd, b"garbage", 10 * PAGE)
    assert _read(file.fd) == [b"a"]


def test_a_draft_is_not_read_until_it_is_committed(file: StateFile) -> None:
    """Both logs grow meanwhile. A reader always gets one of them, complete."""
    file.append(b"old")
    file.begin_draft()
    for number in range(50):
        file.add_to_draft([b"new %d" % number, b""])
        file.append(b"change %d" % number)
        assert _read(file.fd) == [b"old", *(b"change %d" % each for each in range(number + 1))]
    file.commit_draft()
    written = [each for number in range(50) for each in (b"new %d" % number, b"")]
    assert _read(file.fd) == written
    file.append(b"more")
    while file.free_some():
        assert _read(file.fd) == [*written, b"more"]
    file.begin_draft()
    file.drop_draft()
    file.free_all()
    assert _read(file.fd) == [*written, b"more"]


def test_a_commit_can_be_reverted(file: StateFile) -> None:
    file.append(b"old")
    file.draft_all([b"new"])
    file.commit_draft()
    file.revert()
    file.append(b"older")
    assert _read(file.fd) == [b"old", b"older"]
    file.free_all()
    assert _read(file.fd) == [b"old", b"older"]


def test_memory_is_freed_in_steps(file: StateFile) -> None:
    file.append(bytes(statefile.FREED_AT_ONCE * 5))
    file.draft_all([b"x"])
    file.commit_draft()
    taken = []
    while file.has_obsolete:
        before = os.fstat(file.fd).st_blocks * 512
        file.free_some()
        taken.append(before - os.fstat(file.fd).st_blocks * 512)
    assert len(taken) == 6
    assert max(taken) <= statefile.FREED_AT_ONCE
    assert os.fstat(file.fd).st_blocks * 512 <= 3 * PAGE


def test_the_memory_that_a_killed_process_left_is_freed(file: StateFile) -> None:
    """In the middle of a draft, and in the middle of freeing."""
    file.append(b"kept")
    file.begin_draft()
    file.add_to_draft([bytes(3 << 20)])
    other = StateFile.adopt(file.fd)
    other.free_rest()
    assert os.fstat(file.fd).st_blocks * 512 <= 3 * PAGE
    assert list(other.records()) == [b"kept"]
    other.close()


def test_a_failed_new_log_leaves_the_old_one(file: StateFile) -> None:
    file.append(b"a")

    def failing() -> Iterator[bytes]:
        yield bytes(2 << 20)
        raise OSError(28, "no space")

    with pytest.raises(OSError, match="no space"):
        file.replace(failing())
    assert os.fstat(file.fd).st_blocks * 512 < 10 * PAGE
    file.append(b"b")
    assert _read(file.fd) == [b"a", b"b"]


def test_every_truncation_is_rejected(file: StateFile) -> None:
    for record in (b"one", b"two", b"x" * 40):
        file.append(record)
    whole = _copy(file)
    for length in [*range(60), *range(PAGE - 2, len(whole))]:
        with pytest.raises(StateError):
            _adopt(whole[:length])
    assert _adopt(whole) == [b"one", b"two", b"x" * 40]


def test_every_flipped_bit_is_rejected_or_has_no_effect(file: StateFile) -> None:
    for record in (b"one", b"two", b"x" * 40):
        file.append(record)
    whole = _copy(file)
    refused = 0
    for place in [*range(60), *range(PAGE, len(whole))]:
        for bit in range(8):
            damaged = bytearray(whole)
            damaged[place] ^= 1 << bit
            try:
                assert _adopt(bytes(damaged)) == [b"one", b"two", b"x" * 40]
            except StateError:
                refused += 1
    header = statefile._HEADER.size + statefile._CHECK.size
    assert refused == 8 * (header + len(whole) - PAGE)


def test_another_format_is_rejected_by_its_number(file: StateFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statefile, "FORMAT", 7)
    file.append(b"a")
    monkeypatch.undo()
    with pytest.raises(StateError, match="format 7, and this bus reads format 1"):
        _read(file.fd)


def test_an_invalidated_log_is_rejected_until_it_is_rewritten(file: StateFile) -> None:
    file.append(b"a")
    file.invalidate()
    with pytest.raises(StateError):
        _read(file.fd)
    file.replace([b"b"])
    assert _read(file.fd) == [b"b"]


def test_other_files_are_rejected(tmp_path: object) -> None:
    reader, writer = os.pipe()
    try:
        with pytest.raises(StateError, match="not anonymous memory"):
            StateFile.adopt(reader)
    finally:
        os.close(reader)
        os.close(writer)
    with open(__file__, "rb") as named, pytest.raises(StateError, match="not anonymous memory"):
        StateFile.adopt(named.fileno())
    with pytest.raises(OSError):
        StateFile.adopt(1 << 20)
