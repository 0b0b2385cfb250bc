"""Opening a socket, and its limits."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from sbusd.client.connection import open_socket, packet_limit, parse_target
from sbusd.client.errors import BadAddressError, NoBus
from sbusd.protocol.limits import MAX_PACKET_BYTES


def connect(address: str, timeout: float | None = 5.0) -> socket.socket:
    return open_socket(parse_target(address, reconnect=False), timeout)


@pytest.fixture
def listener(tmp_path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.bind(str(tmp_path / "s"))
    return sock


def test_a_path(listener: socket.socket) -> None:
    with listener:
        listener.listen()
        with connect(listener.getsockname()) as client:
            assert client.getblocking()
            assert not client.get_inheritable()


def test_an_abstract_name() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.bind("")  # the kernel picks a name
        name = server.getsockname().ljust(108, b"\0")
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as padded:
            padded.bind(name)
            padded.listen()
            connect("/dev/unix/abstract/" + name.hex()).close()


def test_a_descriptor_stays_the_callers() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        with connect(f"/dev/fd/{ours.fileno()}") as client:
            client.send(b"x")
        assert theirs.recv(10) == b"x"
        ours.send(b"y")
        assert theirs.recv(10) == b"y"


def test_a_descriptor_that_is_no_bus(tmp_path: Path) -> None:
    one, two = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with one, two, pytest.raises(NoBus, match="not a Unix socket of type SEQPACKET"):
        connect(f"/dev/fd/{one.fileno()}")
    with (tmp_path / "file").open("w") as file, pytest.raises(NoBus, match="not a socket"):
        connect(f"/dev/fd/{file.fileno()}")
    with pytest.raises(NoBus, match="Bad file descriptor"):
        connect("/dev/fd/1000000")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as alone, pytest.raises(NoBus, match="not connected"):
        connect(f"/dev/fd/{alone.fileno()}")


def test_nothing_there(tmp_path: Path, listener: socket.socket) -> None:
    with pytest.raises(NoBus, match="no such socket; start the bus"):
        connect(str(tmp_path / "other"))
    with listener, pytest.raises(NoBus, match="no process listens"):
        connect(listener.getsockname())


def test_a_stream_socket_is_no_bus(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stream:
        stream.bind(str(tmp_path / "stream"))
        stream.listen()
        with pytest.raises(NoBus, match="not of type SEQPACKET"):
            connect(str(tmp_path / "stream"))


@pytest.mark.parametrize("timeout", [0, 0.01])
def test_a_full_backlog_ends_in_time(listener: socket.socket, timeout: float) -> None:
    with listener:
        listener.listen(0)
        with connect(listener.getsockname()), pytest.raises(NoBus, match="did not accept the connection in time"):
            connect(listener.getsockname(), timeout)


def test_addresses_that_no_client_can_use() -> None:
    with pytest.raises(NoBus, match="only a server"):
        parse_target("/dev/unix/abstract", reconnect=False)
    with pytest.raises(BadAddressError, match="leave out reconnect"):
        parse_target("/dev/fd/3", reconnect=True)
    with pytest.raises(BadAddressError):
        parse_target("", reconnect=False)


def test_the_send_buffer_takes_the_largest_packet_the_kernel_allows(listener: socket.socket) -> None:
    allowed = 2 * int(Path("/proc/sys/net/core/wmem_max").read_text()) - 32
    with listener:
        listener.listen()
        with connect(listener.getsockname()) as client, listener.accept()[0] as server:
            limit = packet_limit(client)
            assert limit == min(MAX_PACKET_BYTES, max(allowed, limit))
            client.send(b"x" * limit)
            assert len(server.recv(limit + 1)) == limit
