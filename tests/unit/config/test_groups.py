"""Groups by name and by number."""

from __future__ import annotations

import grp

import pytest

from sbusd.config.groups import LAST_GID, GroupId, UnknownGroupError, find_gid


@pytest.mark.parametrize("group", ["root", "0", "0000"])
def test_root_s_group_is_found(group: str) -> None:
    assert find_gid(group) == 0


def test_a_name_is_looked_up() -> None:
    some = grp.getgrall()[-1]
    assert find_gid(some.gr_name) == grp.getgrnam(some.gr_name).gr_gid


def test_a_number_needs_no_name() -> None:
    assert find_gid(str(LAST_GID)) == LAST_GID


@pytest.mark.parametrize("group", ["", "nobody-is-called-this", "a\nb", "a\0b", str(LAST_GID + 1), "9" * 6000, "-1", "٣", "\ud800"])
def test_an_unknown_group_is_refused_in_one_line(group: str) -> None:
    with pytest.raises(UnknownGroupError) as refusal:
        find_gid(group)
    assert str(refusal.value).isprintable()


@pytest.mark.parametrize(("value", "gid"), [("root", 0), (1000, 1000), ("1000", 1000)])
def test_a_group_in_a_file_is_a_name_or_a_number(value: object, gid: int) -> None:
    assert GroupId().parse(value) == gid


@pytest.mark.parametrize("value", [True, {}, -1, 1 << 32, None, 1.5])
def test_an_invalid_group_is_rejected(value: object) -> None:
    with pytest.raises(ValueError, match="group"):
        GroupId().parse(value)
