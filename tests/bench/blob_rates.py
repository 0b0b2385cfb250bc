"""One content to several subscribers: as a blob, and as messages of 256 KiB. Measures the time, and the CPU time of each process.

Each subscriber does the same with what it gets, by the same function: it reads a byte of each page (``pages``), or all bytes (``bytes``).
The time ends when the last subscriber has done so; what it has is released after that, and counts as CPU time only. A publisher of messages
waits for slow subscribers, so none is lost. Subscribers are processes that are forked before the content exists.

Before each time the process uses as much memory as the content needs, and frees it. A virtual machine may return free memory to its host;
to get it again takes longer than to copy the content into it, and is not a cost of any of the ways.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, BinaryIO

from sbus import BlobMessage, Bus, Message
from sbus.protocol.blobs import F_ADD_SEALS, SEALS
from tests.support.blob_programs import ENV, BlobProgram
from tests.support.relays import wait_for

CHUNK_BYTES = 256 << 10

TIMEOUT_SECONDS = 600.0

WAYS = ("messages", "blob", "memfd")
"""``messages`` of 256 KiB; a ``blob`` that is copied from bytes; a sealed ``memfd`` that the publisher already has."""

READERS: dict[str, Callable[[memoryview], int]] = {
    "pages": lambda data: sum(data[:: mmap.PAGESIZE]),
    "bytes": zlib.adler32,
}
"""What a subscriber does with what it gets."""

_SECONDS = struct.Struct("d")


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds: of the clock, and of the CPU in each kind of process. ``servers`` are the bus and sbus-blob."""

    wall: float
    publisher: float
    servers: float
    subscribers: float

    @property
    def cpu(self) -> float:
        """CPU time of all processes."""
        return self.publisher + self.servers + self.subscribers


@contextlib.contextmanager
def running(quota: int) -> Iterator[tuple[str, tuple[int, int]]]:
    """Start a bus, and the service with a quota of *quota* bytes; yield the address of the bus, and both process ids."""
    with tempfile.TemporaryDirectory(prefix="sbusd-bench-") as name:
        address = f"{name}/bus"
        command = [sys.executable, "-m", "sbusd.daemon.main", "-f", "-g", "-o", "-a", address]
        daemon = subprocess.Popen(command, env=ENV, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            wait_for(lambda: os.path.exists(address), "the bus")
            Path(name).chmod(0o755)
            with BlobProgram(Path(name), address, f"[quotas]\nbytes = {quota}\nconnections = 100\n", prefix=["env"]) as blobs:
                yield address, (daemon.pid, blobs.pid)
        finally:
            daemon.terminate()
            daemon.wait()


def cost(way: str, reader: str, size: int, subscribers: int) -> Cost:
    """Return what it costs to publish *size* bytes to *subscribers* by *way*. Raises AssertionError if one did not get everything."""
    with running(2 * size) as (address, servers), _Subscribers(address, reader, size, subscribers) as readers:
        # The content is never zero pages, which would be cheap to read.
        data = os.urandom(1 << 20) * (size >> 20)
        sealed = _sealed(data) if way == "memfd" else None
        with Bus.connect(address, timeout=TIMEOUT_SECONDS, pace=True) as bus:
            bus.ping()
            _use_memory(size)
            before, begun, used = _cpu_seconds(servers), time.monotonic(), time.process_time()
            if way == "messages":
                for start in range(0, size, CHUNK_BYTES):
                    bus.publish("content", data[start : start + CHUNK_BYTES])
            elif sealed is not None:
                bus.publish_blob("content", sealed)
            else:
                bus.publish_blob("content", data)
            readers.wait()
            wall, publisher = time.monotonic() - begun, time.process_time() - used
            readings = readers.release()
            if sealed is not None:
                sealed.close()
        return Cost(wall, publisher, _cpu_seconds(servers) - before, sum(readings))


class _Subscribers:
    """*number* processes that each receive *size* bytes; a context. They wait for each other before they release them."""

    def __init__(self, address: str, reader: str, size: int, number: int) -> None:
        self._pids: list[int] = []
        self._number = number
        words, report = os.pipe()
        self._released, release = os.pipe()
        for _ in range(number):
            pid = os.fork()
            if pid == 0:
                status = 1
                try:
                    os.close(release)
                    _receive(address, size, READERS[reader], report, self._released)
                    status = 0
                finally:
                    os._exit(status)
            self._pids.append(pid)
        os.close(report)
        self._release = os.fdopen(release, "wb", buffering=0)
        self._words: IO[bytes] = os.fdopen(words, "rb", buffering=0)

    def __enter__(self) -> _Subscribers:
        self.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._release.close()
        self._words.close()
        os.close(self._released)
        for pid in self._pids:
            os.waitpid(pid, 0)

    def wait(self) -> None:
        """Wait until each has subscribed, or each has read everything. Raises AssertionError if one has ended."""
        assert len(self._read(self._number)) == self._number, "a subscriber has ended before it had everything"

    def release(self) -> list[float]:
        """Make them release everything, and return the CPU time of each."""
        self._release.write(b"x" * self._number)
        packed = self._read(self._number * _SECONDS.size)
        assert len(packed) == self._number * _SECONDS.size, "a subscriber has ended"
        return [seconds for (seconds,) in _SECONDS.iter_unpack(packed)]

    def _read(self, number: int) -> bytes:
        data = b""
        while len(data) < number and (part := self._words.read(number - len(data))):
            data += part
        return data


def _receive(address: str, size: int, read: Callable[[memoryview], int], report: int, released: int) -> None:
    """Subscribe, receive and read *size* bytes, release them, and report each step: the last one with the CPU time."""
    with Bus.connect(address, timeout=TIMEOUT_SECONDS) as bus, bus.subscribe("content", blobs=True) as items:
        bus.ping()
        os.write(report, b"x")
        used, total = time.process_time(), 0
        while size > 0:
            item = items.receive(TIMEOUT_SECONDS)
            assert isinstance(item, Message), item
            content = item.blob if isinstance(item, BlobMessage) else memoryview(item.payload)
            total += read(content)
            size -= len(content)
        assert total > 0
        os.write(report, b"x")
        assert os.read(released, 1)
        del item, content
        os.write(report, _SECONDS.pack(time.process_time() - used))


def _use_memory(size: int) -> None:
    """Use *size* bytes of memory, and free them."""
    with mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(mmap.MADV_HUGEPAGE)
        for place in range(0, size, mmap.PAGESIZE):
            memory[place] = 1


def _sealed(data: bytes) -> BinaryIO:
    """Return a sealed memfd with *data*, as a publisher has it that has computed its content there."""
    file = os.fdopen(os.memfd_create("content", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING), "w+b", buffering=0)
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]
    fcntl.fcntl(file, F_ADD_SEALS, SEALS)
    return file


def _cpu_seconds(pids: Sequence[int]) -> float:
    """Return the CPU time of the processes *pids*, with that of threads that have ended. Source: clock_getcpuclockid(3)."""
    # The number of the clock of a process is what clock_getcpuclockid(3) computes: the complement of the pid, and 2 for all its threads.
    return sum(time.clock_gettime((~pid << 3) | 2) for pid in pids)
