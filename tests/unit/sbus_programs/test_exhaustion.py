"""What is used up is named with its remedy, whatever exception says so; and the limit of descriptors of a program."""

from __future__ import annotations

import errno
import os
import resource
import sys

import pytest

from sbus_programs.exhaustion import descriptor_limit, descriptor_shortage, exhausted, raised_descriptor_limit


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.EMFILE, os.strerror(errno.EMFILE)), "LimitNOFILE="),
        (OSError(errno.ENFILE, os.strerror(errno.ENFILE)), "fs.file-max"),
        (MemoryError(), "MemoryMax="),
        (RuntimeError("can't start new thread"), "TasksMax="),
        # What dlerror(3) says of a shared object.
        (ImportError("libssl.so.3: cannot open shared object file: Too many open files"), "LimitNOFILE="),
        (ImportError("libssl.so.3: cannot open shared object file: Too many open files in system"), "fs.file-max"),
        (ImportError("x.so: cannot allocate memory for program header: Cannot allocate memory"), "MemoryMax="),
        (ExceptionGroup("tasks", [ValueError("x"), OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))]), "MemoryMax="),
    ],
)
def test_what_is_used_up_is_named(error: Exception, words: str) -> None:
    assert words in (exhausted(error) or "")


@pytest.mark.parametrize("error", [OSError(errno.ENOENT, "x"), ImportError("No module named 'x'"), RuntimeError("x"), ValueError("x")])
def test_other_errors_have_another_cause(error: Exception) -> None:
    assert exhausted(error) is None


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
