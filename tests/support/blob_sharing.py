"""One blob that many real users map at the same time: how much memory all of them use for it, by the kernel's accounts."""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from sbus import BlobMessage, Bus
from sbus.protocol.blobs import F_ADD_SEALS, SEALS
from tests.support.users import FIRST, User

READER_UID = 61_200
"""The uid of the first reader."""

TIMEOUT_SECONDS = 600.0

_CHUNK_PAGES = 256

_NUMBER = struct.Struct("=Q")


@dataclass(frozen=True, slots=True)
class Shared:
    """Bytes and seconds of one blob."""

    mapped: int
    """Sum of what the readers have mapped."""
    used: int
    """The memory for that, with what the publisher and the servers have mapped."""
    servers: int
    """What of that is of the servers."""
    private: int
    """The most that one reader uses for itself alone."""
    seconds: float
    """From the publication until the last reader has read a number on each page."""


def shared_by_users(size: int, readers: int, bus: str, servers: Sequence[int]) -> Shared:
    """Let *readers* users map and check one blob of *size* bytes, a multiple of 1 MiB, of another user. Needs root.

    *servers* are the process ids of bus and sbus-blob. Raises AssertionError if a reader does not get the content.
    """
    with ExitStack() as stack:
        users = [User(READER_UID + number, READER_UID + number) for number in range(readers)]
        processes = [stack.enter_context(_Process(user, lambda process: _read(bus, size, process))) for user in users]
        for each in processes:
            each.wait()
        publisher = stack.enter_context(_Process(FIRST, lambda process: _publish(bus, size, process)))
        publisher.wait()
        begun = time.monotonic()
        publisher.go()
        for each in processes:
            each.wait()
        seconds = time.monotonic() - begun
        of_readers = [_memory(each.pid) for each in processes]
        of_servers = sum(_memory(pid)["Pss_Shmem"] for pid in servers)
        used = sum(each["Pss_Shmem"] for each in of_readers) + _memory(publisher.pid)["Pss_Shmem"] + of_servers
        for each in (publisher, *processes):
            each.go()
    mapped = sum(each["RssShmem"] for each in of_readers)
    return Shared(mapped, used, of_servers, max(each["Pss_Anon"] for each in of_readers), seconds)


class _Process:
    """A child process that runs *function* as *user*; a context. It and its parent wait for each other."""

    def __init__(self, user: User, function: Callable[[_Process], None]) -> None:
        self._reports, report = os.pipe()
        order, self._orders = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            status = 1
            try:
                os.close(self._reports)
                os.close(self._orders)
                self._reports, self._orders = order, report
                os.setgroups([])
                os.setresgid(user.gid, user.gid, user.gid)
                os.setresuid(user.uid, user.uid, user.uid)
                os.chdir("/")
                function(self)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        os.close(report)
        os.close(order)

    def __enter__(self) -> _Process:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        os.close(self._orders)
        os.close(self._reports)
        _, status = os.waitpid(self.pid, 0)
        assert kind is not None or status == 0, f"process {self.pid} ended with wait status {status}"

    def wait(self) -> None:
        """Wait until the other process calls :meth:`go`. Raises AssertionError if it has ended."""
        assert os.read(self._reports, 1), "the other process has ended"

    def go(self) -> None:
        """Let the other process continue."""
        os.write(self._orders, b"x")


def _publish(bus: str, size: int, process: _Process) -> None:
    """Publish a blob of *size* bytes, which is made in its memory file, and keep it until the parent says so."""
    with Bus.connect(bus, timeout=TIMEOUT_SECONDS) as client, _numbered_pages(size) as file:
        process.go()
        process.wait()
        client.publish_blob("content", file, expire=TIMEOUT_SECONDS)
        process.wait()


def _read(bus: str, size: int, process: _Process) -> None:
    """Map the blob, check each page, and keep it mapped until the parent says so."""
    with Bus.connect(bus, timeout=TIMEOUT_SECONDS) as client, client.subscribe("content", blobs=True) as messages:
        client.ping()
        process.go()
        message = messages.receive(TIMEOUT_SECONDS)
        assert isinstance(message, BlobMessage), message
        assert (len(message.blob), message.owner.uid) == (size, FIRST.uid)
        numbers = message.blob.cast("Q")[:: mmap.PAGESIZE // _NUMBER.size]
        for first in range(0, len(numbers), _CHUNK_PAGES):
            assert numbers[first : first + _CHUNK_PAGES].tolist() == list(range(first, first + _CHUNK_PAGES))
        process.go()
        process.wait()


@contextmanager
def _numbered_pages(size: int) -> Iterator[BinaryIO]:
    """Yield a sealed memory file of *size* bytes whose pages begin with their numbers, and are random behind them."""
    chunk = bytearray(os.urandom(_CHUNK_PAGES * mmap.PAGESIZE))
    with os.fdopen(os.memfd_create("content", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING), "w+b", buffering=0) as file:
        for first in range(0, size // mmap.PAGESIZE, _CHUNK_PAGES):
            for number in range(_CHUNK_PAGES):
                _NUMBER.pack_into(chunk, number * mmap.PAGESIZE, first + number)
            assert file.write(chunk) == len(chunk)
        fcntl.fcntl(file, F_ADD_SEALS, SEALS)
        yield file


def _memory(pid: int) -> dict[str, int]:
    """Return what the kernel counts for the process *pid*, in bytes."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:] + Path(f"/proc/{pid}/status").read_text().splitlines()
    fields = (line.split() for line in lines if line.endswith(" kB"))
    return {name.rstrip(":"): int(number) * 1_024 for name, number, _ in fields}
