"""Which bus is meant, how a socket is opened, and its limits."""

from __future__ import annotations

import errno
import socket
from pathlib import Path

import pytest

from sbus.bus_socket import bus_address, open_socket, packet_limit, parse_target
from sbus.errors import BadAddressError, NoBus, no_bus
from sbus.protocol.packets import MAX_PACKET_BYTES


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SBUS_ADDRESS", "/from/environment")
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")


def test_an_address_beats_all() -> None:
    assert bus_address("/here", scope="user") == "/here"


def test_a_scope_beats_the_environment() -> None:
    assert bus_address(scope="system") == "/run/sbus.socket"
    assert bus_address(scope="user") == "/run/user/7/sbus.socket"


def test_the_environment_beats_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    assert bus_address() == "/from/environment"
    monkeypatch.setenv("SBUS_ADDRESS", "")
    assert bus_address() == "/run/sbus.socket"
    monkeypatch.delenv("SBUS_ADDRESS")
    assert bus_address() == "/run/sbus.socket"


@pytest.mark.parametrize(("folder", "why"), [(None, "is not set"), ("", "is not set"), ("run", "is not an absolute path")])
def test_a_user_without_a_runtime_folder_gets_an_error(monkeypatch: pytest.MonkeyPatch, folder: str | None, why: str) -> None:
    if folder is None:
        monkeypatch.delenv("XDG_RUNTIME_DIR")
    else:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
    with pytest.raises(NoBus, match=r"\$XDG_RUNTIME_DIR " + why):
        bus_address(scope="user")


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


def test_a_descriptor_that_is_not_a_bus(tmp_path: Path) -> None:
    one, two = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with one, two, pytest.raises(NoBus, match="not a Unix socket of type SEQPACKET"):
        connect(f"/dev/fd/{one.fileno()}")
    with (tmp_path / "file").open("w") as file, pytest.raises(NoBus, match="not a socket"):
        connect(f"/dev/fd/{file.fileno()}")
    with pytest.raises(NoBus, match="Bad file descriptor"):
        connect("/dev/fd/1000000")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as alone, pytest.raises(NoBus, match="not connected"):
        connect(f"/dev/fd/{alone.fileno()}")


@pytest.mark.parametrize("address", ["nats://localhost:4222", "localhost:4222", "/run/none ", "10.0.0.1:4222"])
def test_an_address_is_a_path(address: str) -> None:
    with pytest.raises(NoBus, match=r"an address is the path of a Unix socket, such as /run/sbus\.socket$") as caught:
        connect(address)
    assert caught.value.__suppress_context__


def test_nothing_there(tmp_path: Path, listener: socket.socket) -> None:
    with pytest.raises(NoBus, match="no such socket; start the bus"):
        connect(str(tmp_path / "other"))
    with pytest.raises(NoBus, match="an address is a path, without 'unix:' before it"):
        connect(f"unix:path={tmp_path}/other")
    with listener, pytest.raises(NoBus, match=r"no process listens on this socket; start the bus. If it runs, .*mount its directory"):
        connect(listener.getsockname())
    with pytest.raises(NoBus, match=r": not a socket$"):
        connect(str(tmp_path))
    (tmp_path / "file").touch()
    with pytest.raises(NoBus, match=r": not a socket$"):
        connect(str(tmp_path / "file"))


@pytest.mark.parametrize("digits", ["zz", "0", ""])
def test_an_abstract_name_that_is_not_hexadecimal(digits: str) -> None:
    with pytest.raises(NoBus, match=f"{digits!r} is not an even number of hexadecimal digits; use the address that sbusd printed"):
        connect(f"/dev/unix/abstract/{digits}")


@pytest.mark.parametrize(
    ("address", "advice"),
    [
        ("/run/sbus.socket", "start the bus (systemctl restart sbus.socket) or"),
        ("/run/user/7/sbus.socket", "start the bus (systemctl --user restart sbus.socket) or"),
        ("/run/user/7/other.socket", "start the bus or"),
        ("/tmp/sbus.socket", "start the bus or"),
    ],
)
def test_only_the_default_addresses_have_a_unit_to_start(address: str, advice: str) -> None:
    assert advice in str(no_bus(address, OSError(errno.ENOENT, "")))


def test_a_stream_socket_is_not_a_bus(tmp_path: Path) -> None:
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
    with pytest.raises(NoBus, match="only sbusd"):
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
