"""Users and groups, by name or number."""

from __future__ import annotations

import grp
import pwd
from pathlib import Path
from queue import SimpleQueue
from threading import Event

import pytest

from sbus_programs.config.users import (
    LAST_ID,
    ChargedUsers,
    GroupId,
    SubordinateIds,
    SubordinateIdsWatch,
    SubordinateRange,
    UnknownGroupError,
    UnknownUserError,
    UserId,
    accounts_first,
    find_uid,
    read_ranges,
    subordinate_ids,
)


@pytest.mark.parametrize("user", ["root", "0", "0000"])
def test_root_is_found(user: str) -> None:
    assert find_uid(user) == 0


def test_a_name_is_looked_up() -> None:
    someone = pwd.getpwall()[-1]
    assert find_uid(someone.pw_name) == pwd.getpwnam(someone.pw_name).pw_uid


def test_a_number_needs_no_name() -> None:
    assert find_uid(str(LAST_ID)) == LAST_ID


@pytest.mark.parametrize("user", ["", "no-such-name", "a\nb", "a\0b", str(LAST_ID + 1), "9" * 6000, "-1", "٣", "\ud800"])
def test_an_unknown_user_is_refused_in_one_line(user: str) -> None:
    with pytest.raises(UnknownUserError) as refusal:
        find_uid(user)
    assert str(refusal.value).isprintable()


@pytest.mark.parametrize(("value", "uid"), [("root", 0), (1000, 1000), ("1000", 1000)])
def test_a_user_in_a_file_is_a_name_or_a_number(value: object, uid: int) -> None:
    assert UserId().parse(value) == uid


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (True, "must be the name or number of a user, not true"),
        ({}, "must be the name or number of a user, not a table"),
        (-1, "invalid user id -1: must be 0 to 4294967294"),
        (1 << 32, "invalid user id 4294967296: must be 0 to 4294967294"),
    ],
)
def test_an_invalid_user_is_rejected(value: object, reason: str) -> None:
    with pytest.raises(ValueError) as refusal:
        UserId().parse(value)
    assert str(refusal.value) == reason


@pytest.mark.parametrize("group", ["root", "0", "0000"])
def test_root_s_group_is_found(group: str) -> None:
    assert GroupId().parse(group) == 0


def test_a_group_is_looked_up_by_name() -> None:
    some = grp.getgrall()[-1]
    assert GroupId().parse(some.gr_name) == grp.getgrnam(some.gr_name).gr_gid


def test_the_number_of_a_group_needs_no_name() -> None:
    assert GroupId().parse(str(LAST_ID)) == LAST_ID


@pytest.mark.parametrize("group", ["", "no-such-name", "a\nb", "a\0b", str(LAST_ID + 1), "9" * 6000, "-1", "٣", "\ud800"])
def test_an_unknown_group_is_refused_in_one_line(group: str) -> None:
    with pytest.raises(UnknownGroupError) as refusal:
        GroupId().parse(group)
    assert str(refusal.value).isprintable()


@pytest.mark.parametrize(("value", "gid"), [("root", 0), (1000, 1000), ("1000", 1000)])
def test_a_group_in_a_file_is_a_name_or_a_number(value: object, gid: int) -> None:
    assert GroupId().parse(value) == gid


@pytest.mark.parametrize("value", [True, {}, -1, 1 << 32, None, 1.5])
def test_an_invalid_group_is_rejected(value: object) -> None:
    with pytest.raises(ValueError, match="group"):
        GroupId().parse(value)


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
