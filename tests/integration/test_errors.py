"""Every error of sbus-protocol(7) §8 that a client of this bus can meet: its code, and whether it ends the connection."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

import pytest

from sbus.protocol import controls
from sbus.protocol.packets import MAX_PACKET_BYTES
from tests.support import skips
from tests.support.daemons import Daemon, StartDaemon
from tests.support.users import FIRST, SECOND
from tests.support.wire import RawClient, error_code, message

pytestmark = pytest.mark.usefixtures("needs_root")

ENDING = {
    b"": "EPROTO",
    b" ": "EPROTO",
    b"MSG": "EPROTO",
    b"MSG no-nul": "EPROTO",
    b"msg a\0": "EPROTO",
    b"MSGa\0": "EPROTO",
    b"SUB": "EPROTO",
    b"SUBa": "EPROTO",
    b"UNSUB": "EPROTO",
    b"CMSG": "EPROTO",
    b"PUB a\0": "EPROTO",
    b"\0": "EPROTO",
    b"GET / HTTP/1.0\r\n\r\n": "EPROTO",
    b"\xff" * 1_000: "EPROTO",
    b"SUB !/cred//0//x": "EACCES",
}

STAYING = {
    b"MSG !/bus/error\0forged": "EPERM",
    b"MSG !/cred/0\0x": "EPERM",
    b"MSG !/\0": "EPERM",
    b"MSG !/event/connect/1\0": "EPERM",
    b"SUB !/bus/": "EPERM",
    b"SUB !/*": "EPERM",
    b"SUB !/event": "EPERM",
    b"SUB !/from/": "EPERM",
    b"SUB !/tap": "EPERM",
    b"MSG !/from/1/!/cred/0/0/1\0x": "EPERM",
    b"MSG !/tap\0x": "EPERM",
    b"SUB !/conn/0/": "EPERM",
    b"SUB !/conn/*/": "EPERM",
    b"SUB " + b"k" * 4_097: "EMSGSIZE",
    message(b"k" * 4_097): "EMSGSIZE",
    b"CMSG !/no/such": "ENOSYS",
    b"CMSG order/lastest": "ENOSYS",
    b"CMSG echo": "ENOSYS",
    b"CMSG \0x": "ENOSYS",
    b"CMSG !/\0x": "ENOSYS",
    b"CMSG !/bus/connections\0x": "EINVAL",
    b"CMSG !/bus/trace\0key\0x": "EINVAL",
}


@pytest.mark.parametrize(("packet", "code"), ENDING.items())
def test_errors_that_end_the_connection(bus: Daemon, packet: bytes, code: str) -> None:
    client, other = bus.client(FIRST), bus.client(SECOND)
    # Whether the bus has ended the connection before the packets behind are sent, is up to the machine.
    with contextlib.suppress(ConnectionError):
        for each in (packet, message(b"a", b"too late"), b""):
            client.send(each)
    assert [error_code(reported) for reported in client.receive_to_end()] == [code]
    assert other.barrier() == []


@pytest.mark.parametrize(("packet", "code"), STAYING.items())
def test_errors_that_leave_the_connection_as_it_was(bus: Daemon, packet: bytes, code: str) -> None:
    client = bus.client(FIRST)
    client.subscribe(b"a")
    client.barrier()
    for part in (message(b"a", b"before"), packet, message(b"a", b"after")):
        client.send(part)
    before, reported, after = client.barrier()
    assert (before, error_code(reported), after) == (message(b"a", b"before"), code, message(b"a", b"after"))


def test_every_error_has_a_description(bus: Daemon) -> None:
    for packet in (*ENDING, *STAYING):
        client = bus.client(FIRST)
        client.send(packet)
        reported = client.receive()
        words = reported.partition(b"\0")[2].decode().partition(" ")[2]
        assert len(words) > 10, packet
        assert "\n" not in words
        assert "Traceback" not in words


def test_a_packet_that_is_too_long_is_an_error_and_the_longest_is_delivered(bus: Daemon) -> None:
    client, listener = bus.client(), bus.client(SECOND)
    # Root may set more than net.core.wmem_max: SO_SNDBUFFORCE, socket(7).
    client.socket.setsockopt(socket.SOL_SOCKET, 32, 1 << 20)
    listener.subscribe(b"a")
    listener.barrier()
    longest = message(b"a", b"x" * (MAX_PACKET_BYTES - 6))
    client.send(longest + b"y")
    assert [error_code(reported) for reported in client.barrier()] == ["EMSGSIZE"]
    client.send(longest)
    client.barrier()
    limit = int(Path("/proc/sys/net/core/wmem_max").read_text())
    received = listener.barrier()
    skips.require(limit >= 212_992, "needs the kernel's usual net.core.wmem_max: sysctl net.core.wmem_max=212992", could_run=False)
    assert received == [longest]


def test_key_bytes_can_be_configured(daemon: StartDaemon) -> None:
    client = daemon(config="[limits]\nkey_bytes = 100\n").client(FIRST)
    for length in (100, 101):
        client.subscribe(b"k" * length)
        client.publish(b"k" * length)
    delivered, *reported = client.barrier()
    assert delivered == message(b"k" * 100)
    assert [error_code(packet) for packet in reported] == ["EMSGSIZE"] * 2


def test_error_words_cannot_be_made_to_forge_another_packet(bus: Daemon) -> None:
    client: RawClient = bus.client(FIRST)
    client.control(b"!/\n\x1b[31m\xff\xfe", b"")
    (reported,) = client.barrier()
    assert error_code(reported) == "ENOSYS"
    assert reported.count(b"\0") == 1
    assert client.ask(controls.PING, b"still here") == b"still here"
