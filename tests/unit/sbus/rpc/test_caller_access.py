"""The permitted callers of a service: names are looked up when a program gives them, and a request waits for no look-up of a name."""

from __future__ import annotations

import grp
import pwd
from collections.abc import Callable
from typing import NoReturn

import pytest

from sbus import Allow, Peer, Twins
from sbus.rpc import caller_access

ROOT = pwd.getpwuid(0).pw_name
OTHER = next(each for each in pwd.getpwall() if each.pw_uid != 0)
ROOTS = grp.getgrgid(0).gr_name


def caller(uid: int, gid: int) -> Peer:
    return Peer(7, uid, gid, 42, b"!/cred/%d/%d/42" % (gid, uid))


CHECKS: dict[str, tuple[Callable[[], Allow | Twins], Callable[[Allow | Twins], bool]]] = {
    "user": (lambda: Allow(users=(ROOT,)), lambda rule: isinstance(rule, Allow) and rule.admits(caller(0, 99_999))),
    "group": (lambda: Allow(groups=(ROOTS,)), lambda rule: isinstance(rule, Allow) and rule.admits(caller(99_999, 0))),
    "relay": (lambda: Twins(relays=(OTHER.pw_name,)), lambda rule: isinstance(rule, Twins) and rule.believes(caller(OTHER.pw_uid, 99_999))),
    "no relay": (Twins, lambda rule: isinstance(rule, Twins) and not rule.believes(caller(99_999, 99_999))),
}


@pytest.mark.parametrize("name", CHECKS)
def test_a_check_looks_up_no_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, check = CHECKS[name]
    rule = make()

    def hangs(_name: str) -> NoReturn:
        raise AssertionError("a directory service that does not answer")

    monkeypatch.setattr("grp.getgrnam", hangs)
    monkeypatch.setattr("pwd.getpwnam", hangs)
    assert check(rule)


@pytest.mark.parametrize("error", [KeyError("x"), OverflowError(), OSError(5, "x"), UnicodeEncodeError("utf-8", "x", 0, 1, "x")])
def test_a_user_whose_groups_cannot_be_looked_up_has_none(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_arguments: object) -> NoReturn:
        raise error

    monkeypatch.setattr("os.getgrouplist", fails)
    monkeypatch.setattr(caller_access, "_known_groups", type(caller_access._known_groups)())
    assert not Allow(groups=(99_998,)).admits(caller(0, 99_999))


@pytest.mark.parametrize("name", ["admits", "believes"])
def test_an_error_of_a_rule_of_ones_own_ends_no_service(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_arguments: object) -> NoReturn:
        raise LookupError("a defect")

    for kind in (Allow, Twins):
        monkeypatch.setattr(kind, name, fails, raising=False)
    assert caller_access.relaying_problem("x", 1, Twins(), caller(0, 0)) == caller_access.UNCHECKED
    if name == "admits":
        assert caller_access.calling_problem("x", caller(0, 0), Allow(users=(0,))) == caller_access.UNCHECKED
