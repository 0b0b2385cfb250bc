"""How a real bus gets its socket: a path, an abstract name, a descriptor, or from systemd; and its mode."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sbus.protocol import controls
from tests.support.program import COMMAND, Program, environment
from tests.support.users import FIRST
from tests.support.wire import RawClient


def is_served(address: str | bytes | Path) -> bool:
    """Return whether a bus answers at *address*."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.connect(os.fspath(address))
        return RawClient(sock).ask(controls.PING, b"x") == b"x"


@contextmanager
def running(program: Program, *options: str, pass_fds: tuple[int, ...] = ()) -> Iterator[str]:
    """Run a bus in the foreground and give what it has written to standard output; it must end with status 0."""
    process = program.start("-f", *options, pass_fds=pass_fds)
    assert process.stdout is not None
    with process.stdout:
        said = process.stdout.read().decode()
    try:
        yield said
    finally:
        process.send_signal(signal.SIGTERM)
        status = process.wait(30)
    assert (status, "Traceback" in program.stderr) == (0, False), program.stderr


# -- abstract names


def test_a_random_abstract_name_is_printed_and_others_can_connect(program: Program) -> None:
    names = set()
    for _ in range(3):
        with running(program, "-a", "/dev/unix/abstract") as said:
            (address,) = said.splitlines()
            head, _, digits = address.rpartition("/")
            name = bytes.fromhex(digits)
            assert head == "/dev/unix/abstract"
            assert (len(name), name[0]) == (108, 0)
            assert is_served(name)
            names.add(name)
    assert len(names) == 3


def test_in_the_background_a_random_name_is_printed_too(program: Program) -> None:
    done = program.run("-c", "-a", "/dev/unix/abstract", "-p", "/dev/null")
    assert done.status == 0
    assert is_served(bytes.fromhex(done.stdout.strip().rpartition("/")[2]))


def test_an_abstract_name_in_hex_is_padded_as_the_original_s(program: Program) -> None:
    name = b"\0sbus-test-%d" % os.getpid()
    with running(program, "-a", f"/dev/unix/abstract/{name.hex()}") as said:
        assert said == ""
        assert is_served(name.ljust(108, b"\0"))
        done = program.run("-f", "-r", "-a", f"/dev/unix/abstract/{name.hex()}")
        assert done.status == 1
        assert "in use" in done.complaint()


# -- descriptors


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    """A listening socket as another program would pass it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.bind(b"")
        sock.listen()
        yield sock


def test_an_inherited_listening_socket_is_served(program: Program, listening: socket.socket) -> None:
    fd = listening.fileno()
    with running(program, "-a", f"/dev/fd/{fd}", pass_fds=(fd,)):
        assert is_served(listening.getsockname())


def other_sockets() -> list[tuple[socket.socket, str]]:
    """Return unusable sockets, each with the expected error message."""
    stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    stream.bind(b"")
    stream.listen()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.close()
    datagram = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    network = socket.create_server(("127.0.0.1", 0))
    return [(stream, "STREAM"), (theirs, "cannot listen"), (datagram, "DGRAM"), (network, "not a Unix socket")]


def test_any_other_socket_is_one_clear_line(program: Program) -> None:
    for sock, says in other_sockets():
        with sock:
            done = program.run("-f", "-a", f"/dev/fd/{sock.fileno()}", pass_fds=(sock.fileno(),))
            assert done.status == 1
            assert says in done.complaint()


def test_an_unusable_descriptor_is_reported_in_one_line(program: Program) -> None:
    with open(os.devnull) as file:
        done = program.run("-f", "-a", f"/dev/fd/{file.fileno()}", pass_fds=(file.fileno(),))
    assert (done.status, "not a socket" in done.complaint()) == (1, True)
    for fd, says in ((77, "not open"), (9_999_999_999, "not a file descriptor")):
        done = program.run("-f", "-a", f"/dev/fd/{fd}")
        assert done.status == 1
        assert says in done.complaint()


def test_a_socket_that_is_only_bound_is_served_as_by_the_original(program: Program) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as bound:
        bound.bind(b"")
        with running(program, "-a", f"/dev/fd/{bound.fileno()}", pass_fds=(bound.fileno(),)):
            assert is_served(bound.getsockname())


# -- paths


def test_a_path_in_use_is_an_error_without_the_replace_option(program: Program) -> None:
    path = program.folder / "socket"
    with running(program, "-a", str(path)):
        done = program.run("-f", "-a", str(path))
        assert done.status == 1
        assert str(path) in done.complaint()
        assert "-r" in done.complaint()
        assert is_served(path)


def test_a_replaced_path_is_left_to_its_new_bus(program: Program) -> None:
    path = program.folder / "socket"
    old = program.run_in_background("-a", str(path))
    program.pid_file.rename(program.folder / "old.pid")
    program.run_in_background("-r", "-a", str(path))
    program.end(old)
    assert is_served(path)


def test_a_stale_path_can_be_replaced(program: Program) -> None:
    path = program.folder / "socket"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as left:
        left.bind(str(path))
    done = program.run("-f", "-a", str(path))
    assert (done.status, "-r" in done.complaint()) == (1, True)
    with running(program, "-r", "-a", str(path)):
        assert is_served(path)


def test_a_file_is_never_replaced(program: Program) -> None:
    path = program.folder / "precious"
    path.write_text("data")
    for options in ((), ("-r",)):
        done = program.run("-f", *options, "-a", str(path))
        assert (done.status, "neither a socket nor an empty file" in done.complaint()) == (1, True)
        assert path.read_text() == "data"


@pytest.mark.parametrize(("options", "mode"), [((), 0o700), (("-g",), 0o770), (("-o",), 0o707), (("-go",), 0o777)])
@pytest.mark.parametrize("umask", [0, 0o022, 0o777])
def test_the_socket_has_the_requested_mode_with_any_umask(program: Program, options: tuple[str, ...], mode: int, umask: int) -> None:
    path = program.folder / "socket"
    program.run_in_background(*options, "-a", str(path), umask=umask)
    assert stat.S_IMODE(path.stat().st_mode) == mode
    assert stat.S_IMODE(program.pid_file.stat().st_mode) == 0o644
    assert is_served(path)


def test_others_get_in_only_where_the_mode_lets_them(program: Program, needs_root: None) -> None:
    path = program.folder / "socket"
    with running(program, "-g", "-a", str(path)), pytest.raises(PermissionError):
        FIRST.connect(str(path))
    with running(program, "-o", "-a", str(path)), FIRST.connect(str(path)) as sock:
        assert RawClient(sock).ask(controls.PING, b"x") == b"x"


# -- from systemd


def activated(program: Program, *kind: str, addresses: int = 1) -> tuple[subprocess.Popen[bytes], list[Path]]:
    """Start systemd-socket-activate(1), which starts the bus when a client connects; return it when it listens."""
    paths = [program.folder / f"activated{number}" for number in range(addresses)]
    listen = [option for path in paths for option in ("-l", str(path))]
    passed = ["-E", f"PYTHONPATH={environment()['PYTHONPATH']}"]
    process = subprocess.Popen(
        ["systemd-socket-activate", *kind, *listen, *passed, *COMMAND, "-f"],
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    assert process.stderr is not None
    for _ in paths:
        line = process.stderr.readline()
        assert b"istening" in line, line
    return process, paths


def complaints(process: subprocess.Popen[bytes]) -> list[str]:
    """Wait for the end and return what the bus itself has written to standard error."""
    _, stderr = process.communicate(timeout=30)
    return [line for line in stderr.decode().splitlines() if line.startswith(("sbusd:", "Traceback"))]


def test_a_socket_of_systemd_s_is_served_and_stays(program: Program, needs_systemd_socket_activate: None) -> None:
    process, (path,) = activated(program, "--seqpacket")
    assert is_served(path)
    process.send_signal(signal.SIGTERM)
    assert not [line for line in complaints(process) if "Traceback" in line]
    assert process.returncode == 0
    # systemd owns it and continues to listen on it.
    assert path.exists()


@pytest.mark.parametrize(("option", "kind"), [((), socket.SOCK_STREAM), (("--datagram",), socket.SOCK_DGRAM)])
def test_another_kind_of_socket_from_systemd_is_one_clear_line(
    program: Program, needs_systemd_socket_activate: None, option: tuple[str, ...], kind: socket.SocketKind
) -> None:
    process, (path,) = activated(program, *option)
    with socket.socket(socket.AF_UNIX, kind) as client:
        client.connect(str(path))
        client.send(b"x")
        (line,) = complaints(process)
    assert process.returncode == 1
    assert kind.name.removeprefix("SOCK_") in line
    assert "ListenSequentialPacket=" in line


def test_two_sockets_from_systemd_are_one_clear_line(program: Program, needs_systemd_socket_activate: None) -> None:
    process, (path, _) = activated(program, "--seqpacket", addresses=2)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
        client.connect(str(path))
        (line,) = complaints(process)
    assert process.returncode == 1
    assert "2 sockets" in line


def test_sockets_that_are_not_for_this_process_are_left_alone(program: Program) -> None:
    path = program.folder / "socket"
    process = program.start("-f", "-a", str(path), env={"LISTEN_FDS": "1", "LISTEN_PID": "1"})
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.read() == b""
    assert is_served(path)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0
