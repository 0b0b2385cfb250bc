"""The label of a user means this user alone."""

from __future__ import annotations

import os
import pwd

import pytest

from sbusd.metrics.user_labels import user_labels


def entry(name: str, uid: int) -> pwd.struct_passwd:
    """Return an entry of passwd(5)."""
    return pwd.struct_passwd((name, "x", uid, uid, "", "/", "/bin/sh"))


def test_a_name_and_a_number() -> None:
    me = pwd.getpwuid(os.geteuid())
    assert user_labels([me.pw_uid, 3_999_999_999]) == {me.pw_uid: me.pw_name, 3_999_999_999: "3999999999"}


@pytest.mark.parametrize("name", ["other", "1001", "two\nlines", ""])
def test_a_name_that_could_mean_another_user(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: entry(name, uid))
    monkeypatch.setattr(pwd, "getpwnam", lambda name: entry(name, 1_000))
    assert user_labels([1_000]) == {1_000: "1000"}


def test_a_name_that_two_users_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: entry("twin", uid))
    monkeypatch.setattr(pwd, "getpwnam", lambda name: entry(name, 1_000))
    assert user_labels([1_000, 1_001]) == {1_000: "twin", 1_001: "1001"}
