"""The notifications of a real daemon to a service manager, here a socket; tests/system/ has a real one."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sbus.protocol import controls
from tests.support.daemons import Daemon, StartDaemon
from tools.stage import ROOT

WATCHDOG_SECONDS = 0.2


@pytest.fixture
def systemd(folder: Path) -> Iterator[socket.socket]:
    """The socket that $NOTIFY_SOCKET names."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as received:
        received.bind(str(folder / "notify"))
        received.settimeout(30)
        yield received


@pytest.fixture
def watched(daemon: StartDaemon, systemd: socket.socket) -> Daemon:
    """A bus that has notified the service manager, which watches it, that it is ready."""
    made = daemon(env={"NOTIFY_SOCKET": systemd.getsockname(), "WATCHDOG_USEC": f"{WATCHDOG_SECONDS * 1e6:.0f}"})
    assert hear(systemd, b"READY=1") == f"READY=1\nWATCHDOG=1\nSTATUS=serving {made.path}".encode()
    return made


def hear(systemd: socket.socket, wanted: bytes) -> bytes:
    """Return the next notification that begins with *wanted*; only watchdog, status and descriptor notifications may precede it."""
    while not (reported := systemd.recv(4096)).startswith(wanted):
        assert reported.startswith((b"WATCHDOG=1", b"STATUS=", b"FDSTORE")), reported
    return reported


def hears_any(systemd: socket.socket) -> bool:
    """Return whether a notification is sent in several watchdog intervals."""
    try:
        systemd.recv(4096)
    except TimeoutError:
        return False
    return True


def test_a_bus_notifies_the_service_manager_of_its_states(watched: Daemon, systemd: socket.socket) -> None:
    for _ in range(3):
        hear(systemd, b"WATCHDOG=1")
    client = watched.client()
    client.ask(controls.PING, b"x")
    while b"STATUS=1 client, " not in systemd.recv(4096):
        pass
    watched.process.send_signal(signal.SIGHUP)
    hear(systemd, b"RELOADING=1\nMONOTONIC_USEC=")
    assert hear(systemd, b"READY=1") == b"READY=1"
    watched.process.send_signal(signal.SIGTERM)
    # Read before the end: the bus waits for room in the socket.
    assert hear(systemd, b"STOPPING=1").startswith(b"STOPPING=1\nEXTEND_TIMEOUT_USEC=")
    assert watched.process.wait(30) == 0


def test_a_bus_ends_though_the_service_manager_does_not_read(watched: Daemon, systemd: socket.socket) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as anybody:
        anybody.setblocking(False)
        watched.process.send_signal(signal.SIGSTOP)  # else it would send its own
        with contextlib.suppress(BlockingIOError):
            while True:
                anybody.sendto(b"x", systemd.getsockname())
    watched.process.send_signal(signal.SIGTERM)
    watched.process.send_signal(signal.SIGCONT)
    assert watched.process.wait(60) == 0


def test_messages_alone_wake_the_status_of_a_bus_at_rest(daemon: StartDaemon, systemd: socket.socket) -> None:
    """Without a watchdog nothing else would: the loop is left only for what is not a message."""
    made = daemon(env={"NOTIFY_SOCKET": systemd.getsockname()})
    reader, publisher = made.client(), made.client()
    reader.subscribe(b"a")
    while not systemd.recv(4096).endswith(b"STATUS=2 clients, 0 messages/s"):
        pass
    systemd.settimeout(0.01)
    for _ in range(3_000):
        publisher.publish(b"a")
        reader.receive()
        try:
            reported = systemd.recv(4096)
        except TimeoutError:
            continue
        assert reported.startswith(b"STATUS=2 clients, ")
        assert not reported.endswith(b" 0 messages/s")
        return
    raise AssertionError("the status was not notified again")


def test_a_bus_whose_loop_hangs_gives_no_sign_of_life(watched: Daemon, systemd: socket.socket) -> None:
    hear(systemd, b"WATCHDOG=1")
    watched.process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, watched.pid, os.WSTOPPED)
    try:
        systemd.settimeout(WATCHDOG_SECONDS * 2)
        # What it sent before it hung comes first, at most as many as the socket holds.
        assert not all(hears_any(systemd) for _ in range(1_000))
    finally:
        watched.process.send_signal(signal.SIGCONT)
    systemd.settimeout(30)
    hear(systemd, b"WATCHDOG=1")


def test_a_user_who_fills_the_managers_socket_does_not_block_the_bus(watched: Daemon, systemd: socket.socket) -> None:
    hear(systemd, b"WATCHDOG=1")
    client = watched.client()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as anybody:
        anybody.setblocking(False)
        for _ in range(200):
            try:
                while True:
                    anybody.sendto(b"x", systemd.getsockname())
            except BlockingIOError:
                assert client.ask(controls.PING, b"x") == b"x"
    while systemd.recv(4096) != b"WATCHDOG=1":
        pass


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ([], "{folder}/sbusd.toml: connectoins: unknown key"),
        (["-a", "{folder}/none/socket", "-C", "/dev/null"], "{folder}/none/socket"),
    ],
    ids=["configuration", "address"],
)
def test_a_bus_that_cannot_start_sends_the_reason_as_its_status(
    folder: Path, systemd: socket.socket, options: list[str], reason: str
) -> None:
    file = folder / "sbusd.toml"
    file.write_text("connectoins = 1\n")
    command = [sys.executable, "-m", "sbusd.daemon.main", "-f", "-C", str(file), *(each.format(folder=folder) for each in options)]
    env = os.environ | {"NOTIFY_SOCKET": systemd.getsockname()}
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode in {1, os.EX_CONFIG}
    status = systemd.recv(4096).decode()
    assert status.startswith("STATUS=cannot start: ")
    assert reason.format(folder=folder) in status
    # A check is not the start of a bus.
    subprocess.run([*command, "--check-config"], env=env, cwd=ROOT, capture_output=True, check=False, timeout=60)
    systemd.setblocking(False)
    with pytest.raises(BlockingIOError):
        systemd.recv(4096)
