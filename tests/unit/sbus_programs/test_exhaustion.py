"""What is used up is named with its remedy, whatever exception says so."""

from __future__ import annotations

import errno
import os

import pytest

from sbus_programs.exhaustion import exhausted


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
