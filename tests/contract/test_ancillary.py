"""Descriptors among a peer's unread packets: seen, never received, and closed by another thread."""

from __future__ import annotations

import os
import socket
import time

import pytest

from sbusd.dataplane import ancillary, socket_closer
from sbusd.dataplane.contract import End
from tests.support.kernels import refuses_descriptors
from tests.support.lingering import pass_on
from tests.support.switch_harness import SwitchHarness

SECONDS = 60.0
"""When a descriptor that is still open is a failure."""


def fill(*packets: tuple[bytes, bool], harness: SwitchHarness) -> tuple[int, socket.socket, int]:
    """Let a switch take over a socket with unread *packets*, some with a pipe's writing end; return its number and the other ends."""
    reader, writer = os.pipe()
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for packet, has_descriptor in packets:
        if has_descriptor:
            pass_on(mine, packet, writer)
        else:
            mine.send(packet)
    os.close(writer)
    number = harness.switch.next_connection()
    harness.switch.adopt(theirs.detach(), number)
    return number, mine, reader


def wait_for_the_end(harness: SwitchHarness, number: int, reader: int) -> None:
    """Wait until no process holds the writing end of the pipe, and the sink has been notified."""
    deadline = time.monotonic() + SECONDS
    while ("closed", number) not in harness.events:
        assert time.monotonic() < deadline
        harness.switch.turn(10)
    assert os.read(reader, 1) == b""
    os.close(reader)


def ends(harness: SwitchHarness, number: int) -> list[tuple[object, ...]]:
    """Return the sink's events about the end of a connection, in order."""
    return [each[:3] for each in harness.events if each[0] in {"ended", "closed"} and each[1] == number]


@pytest.mark.parametrize("before", [[], [b"MSG a\x001"]], ids=len)
def test_a_restored_connection_with_unread_descriptors_is_closed(harness: SwitchHarness, before: list[bytes]) -> None:
    """The process before may have looked at its packets, and one of no bytes is then passed over by the next look."""
    listener = harness.connect(b"a")
    number, mine, reader = fill(*((packet, False) for packet in before), (b"MSG a\x003", True), (b"MSG a\x004", False), harness=harness)
    harness.run()
    assert harness.receive(listener) == []
    with mine:
        assert mine.recv(1_000) == b"CMSG !/bus/error\0DESCRIPTORS"
    wait_for_the_end(harness, number, reader)
    assert ends(harness, number) == [("ended", number, End.DESCRIPTORS), ("closed", number)]


def test_one_that_is_disconnected_unread_is_closed_by_the_thread(harness: SwitchHarness) -> None:
    number, mine, reader = fill((b"MSG a\x001", True), harness=harness)
    harness.switch.disconnect(number, b"CMSG !/bus/error\0EACCES")
    harness.switch.turn(0)
    assert ends(harness, number)[0] == ("ended", number, End.DISCONNECTED)
    with mine:
        assert mine.recv(1_000) == b"CMSG !/bus/error\0EACCES"
        assert mine.recv(1_000) == b""
    wait_for_the_end(harness, number, reader)


def test_one_without_them_is_closed_at_its_end(harness: SwitchHarness) -> None:
    number = harness.connect()
    harness.hang_up(number)
    harness.run()
    assert ends(harness, number) == [("ended", number, End.HANGUP), ("closed", number)]
    assert harness.switch.closing() == []


def test_an_empty_packet_before_them_does_not_hide_them(harness: SwitchHarness) -> None:
    number, mine, reader = fill((b"", False), (b"MSG a\x001", True), harness=harness)
    mine.close()
    wait_for_the_end(harness, number, reader)
    assert ends(harness, number)[-1] == ("closed", number)


def test_a_socket_without_an_owner_is_closed_by_the_thread_too() -> None:
    reader, writer = os.pipe()
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with mine:
        pass_on(mine, b"x", writer)
        os.close(writer)
        assert ancillary.has_waiting(theirs.fileno())
        socket_closer.hang_up(theirs.detach())
        assert mine.recv(1) == b""
        assert os.read(reader, 1) == b""
    os.close(reader)


def test_the_kernel_is_configured_to_reject_them() -> None:
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with mine, theirs:
        assert ancillary.refuse(theirs.fileno()) == refuses_descriptors()
        assert not ancillary.has_waiting(theirs.fileno())
        if refuses_descriptors():
            with pytest.raises(PermissionError):
                pass_on(mine, b"x", 0)
