"""The face of shim.c: which call of the switch fails, with what, and how often it came to that."""

from __future__ import annotations

import contextlib
import ctypes
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).with_name("shim.c")

CALLS = (
    "recvmmsg",
    "sendmmsg",
    "send",
    "recv",
    "accept4",
    "epoll_ctl",
    "epoll_wait",
    "setsockopt",
    "open",
    "poll",
    "shutdown",
    "epoll_create1",
    "madvise",
)
"""The system calls that can be made to fail, in the order of shim.c."""


class Fault(NamedTuple):
    """Calls number *first* to *first* + *times* - 1 of *call* fail with *error*, an errno."""

    call: str
    error: int
    first: int
    times: int = 1


def build_shim(folder: Path) -> Path:
    """Compile shim.c into *folder* and return the library, which has to be in LD_PRELOAD of a process that uses :class:`Shim`."""
    library = folder / "shim.so"
    command = ["gcc", "-Wall", "-Wextra", "-Werror", "-O1", "-g", "-fPIC", "-shared", "-o", str(library), str(SOURCE)]
    subprocess.run(command, check=True, timeout=60)
    return library


class Shim:
    """The library of this process, which must have been started with it in LD_PRELOAD."""

    def __init__(self, library: str) -> None:
        self._library = ctypes.CDLL(library)
        for name in ("faults_count", "faults_done"):
            getattr(self._library, name).restype = ctypes.c_long
        self._library.faults_add.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
        assert self._library.faults_calls() == len(CALLS)

    def arm(self, faults: tuple[Fault, ...]) -> None:
        """Reset the counters, and replace the faults by *faults*."""
        self._library.faults_clear()
        for number, fault in enumerate(faults):
            assert self._library.faults_add(CALLS.index(fault.call), fault.error, fault.first, fault.times) == number

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Count calls, and let them fail, in this block alone."""
        self._library.faults_watch(1)
        try:
            yield
        finally:
            self._library.faults_watch(0)

    def counts(self) -> dict[str, int]:
        """Return how often each call was made while watching, since it was armed."""
        return {call: int(self._library.faults_count(number)) for number, call in enumerate(CALLS)}

    def done(self, fault: int) -> int:
        """Return how many calls have failed because of the armed fault of that number."""
        return int(self._library.faults_done(fault))
