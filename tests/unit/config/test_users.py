"""Users and groups, by name or number."""

from __future__ import annotations

import grp
import pwd

import pytest

from sbusd.config.users import LAST_ID, GroupId, UnknownGroupError, UnknownUserError, UserId, find_uid


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
