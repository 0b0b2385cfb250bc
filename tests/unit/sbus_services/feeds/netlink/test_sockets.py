"""The netlink sockets: on the real kernel where no privilege is needed, and on a fake channel for rare messages."""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest

from sbus_services.feeds.netlink.entries import Link
from sbus_services.feeds.netlink.sockets import Kernel, KernelError, KernelTables, Monitor, NetworkNamespace, OverrunError
from tests.support.netlink_captures import captured

[DATAGRAM] = captured()["ip link add $(printf 'x\\377y') type bridge"][-1:]


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    opened = Kernel()
    yield opened
    opened.close()


def test_tables_have_the_loopback_first(kernel: Kernel) -> None:
    entries = kernel.read_tables()
    [loopback] = [entry for entry in entries if isinstance(entry, Link) and entry.name == b"lo"]
    assert "loopback" in loopback.flags
    kinds = [type(entry).__name__ for entry in entries]
    assert kinds == sorted(kinds, key=["Link", "Address", "Route", "Neighbour"].index)


def test_tables_can_be_read_again(kernel: Kernel) -> None:
    def links() -> set[int]:
        return {entry.index for entry in kernel.read_tables() if isinstance(entry, Link)}

    assert links() == links()
    assert kernel.interrupted >= 0


def test_monitor_is_quiet_without_changes(kernel: Kernel) -> None:
    monitor = kernel.listen()
    assert os.fstat(monitor.fileno())
    monitor.close()
    assert monitor.fileno() == -1


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "/proc/1/ns/net", "no such", "\0", "\udcff"])
def test_invalid_namespace(name: str) -> None:
    with pytest.raises(KernelError, match=r"network namespace .*: .*; list the namespaces with: ip netns list"):
        NetworkNamespace(name)


class FakeChannel:
    """Returns datagrams with their flags and sender, and raises errors, in order."""

    def __init__(self, *items: tuple[bytes, int, int] | OSError) -> None:
        self.items = deque(items)
        self.sent: list[bytes] = []

    def next(self) -> tuple[bytes, int, int]:
        if not self.items:
            raise BlockingIOError(errno.EAGAIN, "nothing there")
        item = self.items.popleft()
        if isinstance(item, OSError):
            raise item
        return item

    def recvmsg_into(self, buffers: list[bytearray]) -> tuple[int, list[Any], int, tuple[int, int]]:
        data, flags, sender = self.next()
        buffers[0][: len(data)] = data
        return len(data), [], flags, (sender, 0)

    def recvmsg(self, size: int) -> tuple[bytes, list[Any], int, tuple[int, int]]:
        data, flags, sender = self.next()
        return data[:size], [], flags, (sender, 0)

    def sendto(self, data: bytes, address: tuple[int, int]) -> int:
        self.sent.append(data)
        return len(data)


def monitor_on(*items: tuple[bytes, int, int] | OSError, monkeypatch: pytest.MonkeyPatch) -> Monitor:
    monitor = Monitor(NetworkNamespace())
    monitor.close()
    monkeypatch.setattr(monitor, "_channel", FakeChannel(*items))
    return monitor


def test_the_monitor_reports_its_buffer_size() -> None:
    kernel = Kernel(receive_bytes=65536)
    monitor = kernel.listen()
    assert monitor.receive_bytes == 65536
    monitor.close()
    kernel.close()


def test_monitor_reads_no_more_than_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monitor = monitor_on((b"one", 0, 0), (b"two", 0, 0), (b"three", 0, 0), monkeypatch=monkeypatch)
    assert list(monitor.read(2)) == [b"one", b"two"]
    assert list(monitor.read(2)) == [b"three"]
    assert list(monitor.read(2)) == []


def test_the_monitor_drops_and_counts_datagrams_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monitor = monitor_on((b"forged", 0, 4711), (b"real", 0, 0), monkeypatch=monkeypatch)
    assert list(monitor.read(9)) == [b"real"]
    assert monitor.forged == 1


def test_a_forged_datagram_that_is_too_long_is_not_an_overrun(monkeypatch: pytest.MonkeyPatch) -> None:
    monitor = monitor_on((b"forged", socket.MSG_TRUNC, 4711), (b"real", 0, 0), monkeypatch=monkeypatch)
    assert list(monitor.read(9)) == [b"real"]


@pytest.mark.parametrize("item", [OSError(errno.ENOBUFS, "No buffer space available"), (b"cut", socket.MSG_TRUNC, 0)])
def test_lost_messages_are_an_overrun(item: tuple[bytes, int, int] | OSError, monkeypatch: pytest.MonkeyPatch) -> None:
    monitor = monitor_on((b"one", 0, 0), item, monkeypatch=monkeypatch)
    read = monitor.read(9)
    assert next(read) == b"one"
    with pytest.raises(OverrunError):
        next(read)


def test_other_errors_are_not_an_overrun(monkeypatch: pytest.MonkeyPatch) -> None:
    monitor = monitor_on(OSError(errno.EBADF, "Bad file descriptor"), monkeypatch=monkeypatch)
    with pytest.raises(OSError, match="Bad file descriptor"):
        list(monitor.read(9))


def control_message(kind: int, error: int, sequence: int, flags: int = 2) -> bytes:
    """Return NLMSG_ERROR (2) or NLMSG_DONE (3)."""
    return struct.pack("=IHHIIi", 20, kind, flags, sequence, 0, error)


def numbered(datagram: bytes, sequence: int, flags: int = 2) -> bytes:
    """Return *datagram*, one message, as part of a dump."""
    return datagram[:6] + struct.pack("=HI", flags, sequence) + datagram[12:]


def tables_on(*items: tuple[bytes, int, int] | OSError, monkeypatch: pytest.MonkeyPatch) -> KernelTables:
    tables = KernelTables(NetworkNamespace())
    tables.close()
    monkeypatch.setattr(tables, "_channel", FakeChannel(*items))
    return tables


def whole_answer(sequence: int, *datagrams: bytes) -> list[tuple[bytes, int, int]]:
    return [(datagram, 0, 0) for datagram in (*datagrams, control_message(3, 0, sequence))]


def test_interrupted_table_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [
        *whole_answer(1, numbered(DATAGRAM, 1, flags=0x12)),
        *whole_answer(2, numbered(DATAGRAM, 2)),
        *(item for sequence in (3, 4, 5) for item in whole_answer(sequence)),
    ]
    tables = tables_on(*answers, monkeypatch=monkeypatch)
    [entry] = tables.read()
    assert isinstance(entry, Link)
    assert entry.name == b"x\xffy"
    assert tables.interrupted == 1


def test_foreign_and_forged_responses_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    strange = [(control_message(2, -errno.EPERM, 1), 0, 4711), (control_message(2, -errno.EPERM, 99), 0, 0)]
    answers = [item for sequence in (1, 2, 3, 4) for item in whole_answer(sequence)]
    assert tables_on(*strange, *answers, monkeypatch=monkeypatch).read() == []


@pytest.mark.parametrize("kind", [2, 3])
def test_refused_dump_says_which_error(kind: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = tables_on((control_message(kind, -errno.EPERM, 1), 0, 0), monkeypatch=monkeypatch)
    with pytest.raises(KernelError, match="netlink dump rejected by the kernel: EPERM"):
        tables.read()


def test_dump_that_does_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = tables_on(TimeoutError("timed out"), monkeypatch=monkeypatch)
    with pytest.raises(KernelError, match="netlink dump timed out after 10 seconds"):
        tables.read()


def test_monitor_can_be_polled(kernel: Kernel) -> None:
    monitor = kernel.listen()
    poll = select.poll()
    poll.register(monitor.fileno(), select.POLLIN)
    assert all(fd == monitor.fileno() for fd, _ in poll.poll(0))
    monitor.close()
