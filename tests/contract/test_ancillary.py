"""Descriptors among a peer's unread packets: seen, never received, and closed by another thread."""

from __future__ import annotations

import os
import socket
import time

import pytest

from sbusd.dataplane import ancillary, closer
from sbusd.dataplane.contract import End
from tests.support.kernels import refuses_descriptors
from tests.support.lingering import pass_on
from tests.support.world import World

SECONDS = 60.0
"""When a descriptor that is still open is a failure."""


def fill(*packets: tuple[bytes, bool], world: World) -> tuple[int, socket.socket, int]:
    """Let a switch take over a socket with unread *packets*, some with a pipe's writing end; return its number and the other ends."""
    reader, writer = os.pipe()
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for packet, has_descriptor in packets:
        if has_descriptor:
            pass_on(mine, packet, writer)
        else:
            mine.send(packet)
    os.close(writer)
    number = world.switch.next_connection()
    world.switch.adopt(theirs.detach(), number)
    return number, mine, reader


def wait_for_the_end(world: World, number: int, reader: int) -> None:
    """Wait until nobody holds the pipe's writing end any more, and the sink knows."""
    deadline = time.monotonic() + SECONDS
    while ("closed", number) not in world.told:
        assert time.monotonic() < deadline
        world.switch.turn(10)
    assert os.read(reader, 1) == b""
    os.close(reader)


def ends(world: World, number: int) -> list[tuple[object, ...]]:
    """Return what the sink was told of the end of a connection, in order."""
    return [each[:3] for each in world.told if each[0] in {"ended", "closed"} and each[1] == number]


@pytest.mark.parametrize("before", [[], [b"MSG a\x001"]], ids=len)
def test_one_that_is_taken_over_with_them_is_ended_unread(world: World, before: list[bytes]) -> None:
    """The process before may have looked at its packets, and one of no bytes is then passed over by the next look."""
    listener = world.connect(b"a")
    number, mine, reader = fill(*((packet, False) for packet in before), (b"MSG a\x003", True), (b"MSG a\x004", False), world=world)
    world.run()
    assert world.receive(listener) == []
    with mine:
        assert mine.recv(1_000) == b"CMSG !/bus/error\0DESCRIPTORS"
    wait_for_the_end(world, number, reader)
    assert ends(world, number) == [("ended", number, End.DESCRIPTORS), ("closed", number)]


def test_one_that_is_disconnected_unread_is_closed_by_the_thread(world: World) -> None:
    number, mine, reader = fill((b"MSG a\x001", True), world=world)
    world.switch.disconnect(number, b"CMSG !/bus/error\0EACCES")
    world.switch.turn(0)
    assert ends(world, number)[0] == ("ended", number, End.DISCONNECTED)
    with mine:
        assert mine.recv(1_000) == b"CMSG !/bus/error\0EACCES"
        assert mine.recv(1_000) == b""
    wait_for_the_end(world, number, reader)


def test_one_without_them_is_closed_at_its_end(world: World) -> None:
    number = world.connect()
    world.hang_up(number)
    world.run()
    assert ends(world, number) == [("ended", number, End.HANGUP), ("closed", number)]
    assert world.switch.closing() == []


def test_an_empty_packet_before_them_does_not_hide_them(world: World) -> None:
    number, mine, reader = fill((b"", False), (b"MSG a\x001", True), world=world)
    mine.close()
    wait_for_the_end(world, number, reader)
    assert ends(world, number)[-1] == ("closed", number)


def test_a_socket_of_nobody_is_hung_up_by_the_thread_too() -> None:
    reader, writer = os.pipe()
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with mine:
        pass_on(mine, b"x", writer)
        os.close(writer)
        assert ancillary.has_waiting(theirs.fileno())
        closer.hang_up(theirs.detach())
        assert mine.recv(1) == b""
        assert os.read(reader, 1) == b""
    os.close(reader)


def test_the_kernel_is_told_to_refuse_them() -> None:
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with mine, theirs:
        assert ancillary.refuse(theirs.fileno()) == refuses_descriptors()
        assert not ancillary.has_waiting(theirs.fileno())
        if refuses_descriptors():
            with pytest.raises(PermissionError):
                pass_on(mine, b"x", 0)
