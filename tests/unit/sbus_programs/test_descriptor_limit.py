"""The limit of descriptors of this process, and whether it is enough for a program."""

from __future__ import annotations

import resource
import sys

import pytest

from sbus_programs.descriptor_limit import descriptor_limit, descriptor_shortage, raised_descriptor_limit


class Limits:
    """The limits of a process; *is_permitted*: it may change them."""

    def __init__(self, soft: int, hard: int, *, is_permitted: bool = True) -> None:
        self.pair = soft, hard
        self._is_permitted = is_permitted

    def get(self, _resource: int) -> tuple[int, int]:
        return self.pair

    def set(self, _resource: int, pair: tuple[int, int]) -> None:
        if not self._is_permitted:
            raise PermissionError
        self.pair = pair


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        (Limits(100, 200), 200),
        (Limits(100, 200, is_permitted=False), 100),
        (Limits(200, 200, is_permitted=False), 200),
        (Limits(100, resource.RLIM_INFINITY), sys.maxsize),
        (Limits(resource.RLIM_INFINITY, resource.RLIM_INFINITY), sys.maxsize),
    ],
    ids=["raised", "not permitted", "equal", "unlimited", "both unlimited"],
)
def test_the_limit_is_raised_as_far_as_possible(limits: Limits, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", limits.get)
    monkeypatch.setattr(resource, "setrlimit", limits.set)
    assert raised_descriptor_limit() == expected
    assert descriptor_limit() == expected


def test_a_limit_that_is_too_small_is_named_with_the_remedy() -> None:
    assert descriptor_shortage(37, 37) is None
    assert descriptor_shortage(36, 37) == (
        "the limit of 36 file descriptors is below 37. Raise LimitNOFILE= of the unit, or the limit of the shell (ulimit -n)"
    )
