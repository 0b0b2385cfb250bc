"""The kernel reports the owner of a loopback connection, and no owner when its socket is closed."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable

import pytest

from sbus_programs.socket_owner import OVERFLOW_UID, client_user, is_trusted, socket_user
from tests.support.users import FIRST

HOSTS = ["127.0.0.1", "::1"]


def listener(host: str) -> socket.socket:
    """Return a socket that listens at *host*."""
    return socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)


@pytest.mark.parametrize("host", HOSTS)
def test_the_user_of_a_real_connection(host: str) -> None:
    with listener(host) as server, socket.create_connection(server.getsockname()[:2]) as client:
        served, _ = server.accept()
        with served:
            assert client_user(served) == os.geteuid()
            ours, theirs = client.getsockname()[:2], server.getsockname()[:2]
            assert socket_user(ours, theirs) == os.geteuid()
            assert socket_user((host, 1), theirs) is None


def test_a_client_of_ipv6_that_connects_to_an_ipv4_address(needs_root: None) -> None:
    """Its socket has IPv4-mapped addresses, the listening one IPv4 addresses."""
    with listener("127.0.0.1") as server:
        port = server.getsockname()[1]

        def connect() -> int:
            with socket.socket(socket.AF_INET6) as client:
                client.connect(("::ffff:127.0.0.1", port))
                with server.accept()[0] as served:
                    return client_user(served) or 0

        assert FIRST.call(connect) == FIRST.uid


@pytest.mark.parametrize("host", HOSTS)
def test_another_user_is_seen(host: str, needs_root: None) -> None:
    with listener(host) as server:

        def connect() -> int | None:
            with socket.create_connection(server.getsockname()[:2]), server.accept()[0] as served:
                return client_user(served)

        assert FIRST.call(connect) == FIRST.uid


def closes(client: socket.socket) -> None:
    """Close the socket as any program does."""
    client.sendall(b"x")
    client.close()


def closes_with_more(client: socket.socket) -> None:
    """Send data and the end of the connection in one segment."""
    client.send(b"x" * 100, socket.MSG_MORE)
    client.close()


def resets(client: socket.socket) -> None:
    """Reset the connection."""
    client.send(b"x")
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("leave", [closes, closes_with_more, resets])
@pytest.mark.parametrize("early", [True, False])
def test_closed_socket_has_no_owner(host: str, leave: Callable[[socket.socket], None], early: bool) -> None:
    """Before and after the connection is accepted; nor does it belong to root, whose uid the kernel reports."""
    with listener(host) as server, socket.create_connection(server.getsockname()[:2]) as client:
        if early:
            leave(client)
        served, _ = server.accept()
        with served:
            if not early:
                leave(client)
            assert client_user(served) is None


def test_a_listening_socket_at_the_clients_address_is_not_its_socket() -> None:
    """If the connection is gone, the kernel finds the socket that listens on its address instead."""
    with listener("127.0.0.1") as server, listener("127.0.0.1") as other:
        assert socket_user(other.getsockname(), server.getsockname()) is None


def test_an_end_of_ours_that_is_not_established_decides_nothing() -> None:
    """The client's connection is still established, as after a loss of its packets."""

    class Gone:
        def __init__(self, served: socket.socket) -> None:
            self.getpeername = served.getpeername
            self.getsockname = served.getsockname

        def getsockopt(self, *_: int) -> bytes:
            return bytes([7])

    with listener("127.0.0.1") as server, socket.create_connection(server.getsockname()), server.accept()[0] as served:
        assert client_user(served) == os.geteuid()
        assert client_user(Gone(served)) is None


def test_the_trusted_are_root_and_the_own_user() -> None:
    assert is_trusted(0)
    assert is_trusted(os.geteuid())
    assert not is_trusted(None)
    assert not is_trusted(os.geteuid() + 1)
    assert not is_trusted(OVERFLOW_UID)


def test_no_owner_without_an_answer_of_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    with listener("127.0.0.1") as server, socket.create_connection(server.getsockname()), server.accept()[0] as served:

        def refuse(*_: object) -> None:
            raise PermissionError

        monkeypatch.setattr("sbus_programs.socket_owner.socket.socket", refuse)
        assert client_user(served) is None
