"""The ids of containers: users with an account come before them, and they belong to one."""

from __future__ import annotations

from pathlib import Path
from queue import SimpleQueue
from threading import Event

import pytest

from sbusd.config.subordinate_ids import (
    ChargedUsers,
    SubordinateIds,
    SubordinateIdsWatch,
    SubordinateRange,
    accounts_first,
    read_ranges,
    subordinate_ids,
)


def test_the_ids_of_containers_come_last(tmp_path: Path) -> None:
    file = tmp_path / "subuid"
    file.write_text("alice:100000:65536\nbob:165536:65536\n")
    uids = [100_000, 1_668_800_500, 165_536, 1_000, 231_071, 231_072]
    assert accounts_first(uids, subordinate_ids(file)) == [1_000, 231_072, 1_668_800_500, 100_000, 165_536, 231_071]


@pytest.mark.parametrize("text", ["", "\n", "alice\n", "alice:1\n", "alice:x:1\n", "alice:1:-1\n", "alice::\n", "alice:²:1\n"])
def test_a_line_without_a_range_has_none(tmp_path: Path, text: str) -> None:
    file = tmp_path / "subuid"
    file.write_text(text)
    assert not any(map(subordinate_ids(file), range(5)))


def test_without_a_file_there_are_none(tmp_path: Path) -> None:
    assert not subordinate_ids(tmp_path / "none")(100_000)


def test_an_id_belongs_to_the_user_of_its_range(tmp_path: Path) -> None:
    file = tmp_path / "subuid"
    file.write_text("alice:100000:65536\n1001:200000:10\nnobody-there:300000:10\nbob:100010:5\n99999999999:1:1\n7:5:99999999999\n")
    found = read_ranges(file, {"alice": 1000, "bob": 1002}.get)

    def owner(uid: int) -> object:
        each = found.range_of(uid)
        return None if each is None else each.owner or each.first

    assert [owner(uid) for uid in (99_999, 100_000, 165_535, 165_536, 200_009, 200_010, 300_001)] == [
        *(None, 1000, 1000, None, 1001, None, 300_000),
    ]
    assert [owner(uid) for uid in (100_009, 100_010, 100_014, 100_015)] == [1000, 1002, 1002, 1000]


def test_a_change_of_the_file_is_read(tmp_path: Path) -> None:
    file, read = tmp_path / "subuid", SimpleQueue[SubordinateIds]()
    watch = SubordinateIdsWatch(read.put, file, uid_of=lambda _name: None, seconds=0.001)
    watch.start()
    assert len(read.get(timeout=30)) == 0
    file.write_text("alice:100000:65536\n")
    while (found := read.get(timeout=30)).range_of(100_000) is None:
        continue
    assert found.range_of(100_000) == SubordinateRange(100_000, 65_536, None)
    file.unlink()
    while len(read.get(timeout=30)):
        continue
    watch.close()


def test_a_directory_service_that_is_slow_does_not_keep_the_bus_from_starting(tmp_path: Path) -> None:
    file, is_over = tmp_path / "subuid", Event()
    file.write_text("alice:100000:65536\n")
    read = SimpleQueue[SubordinateIds]()

    def slow(_name: str) -> int:
        assert is_over.wait(60)
        return 1000

    watch = SubordinateIdsWatch(read.put, file, uid_of=slow)
    watch.start(0.01)
    assert read.empty()
    is_over.set()
    assert len(read.get(timeout=30)) == 1
    watch.close()


def test_a_service_charges_the_user_who_has_the_ids_but_never_root(tmp_path: Path) -> None:
    file = tmp_path / "subuid"
    file.write_text("1000:100000:65536\nroot:200000:10\nnobody-there:300000:10\n")
    charged = ChargedUsers()
    assert charged.of(100_001) == 100_001
    charged.start(file, wait_seconds=60)
    assert [charged.of(uid) for uid in (-7, 0, 1000, 100_000, 165_535, 165_536)] == [-7, 0, 1000, 1000, 1000, 165_536]
    assert [charged.of(uid) for uid in (200_009, 300_004)] == [200_000, 300_000]
    charged.close()
