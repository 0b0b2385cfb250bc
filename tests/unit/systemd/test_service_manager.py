"""The notifications that a service manager receives; a socket of the test takes its place."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from sbusd.systemd.service_manager import EXTEND_INTERVAL_SECONDS, EXTEND_SECONDS, ServiceManager, ServiceManagerError

MINUTE = f"EXTEND_TIMEOUT_USEC={EXTEND_SECONDS * 1e6:.0f}".encode()


@pytest.fixture
def systemd(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """The socket that $NOTIFY_SOCKET names."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(str(folder / "notify"))
        heard.settimeout(30)
        monkeypatch.setenv("NOTIFY_SOCKET", str(folder / "notify"))
        yield heard


@pytest.fixture
def manager(systemd: socket.socket) -> Iterator[ServiceManager]:
    with closing(ServiceManager.of_environment()) as made:
        yield made


def fill(address: str) -> None:
    """Leave no room for another datagram at *address*."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as anybody:
        anybody.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                anybody.sendto(b"x", address)


def test_each_notification_has_its_text(systemd: socket.socket, manager: ServiceManager) -> None:
    manager.ready("it is\nready")
    assert systemd.recv(1000) == rb"READY=1" + b"\n" + rb"STATUS=it is\x0aready"
    manager.reloading()
    told, when = systemd.recv(1000).split(b"\nMONOTONIC_USEC=")
    assert told == b"RELOADING=1"
    assert int(when) > 0
    manager.reloaded()
    assert systemd.recv(1000) == b"READY=1"
    manager.stopping()
    assert systemd.recv(1000) == b"STOPPING=1\n" + MINUTE


def test_a_long_start_sends_few_notifications(systemd: socket.socket) -> None:
    now = 100.0
    with closing(ServiceManager(systemd.getsockname(), 0.0, clock=lambda: now)) as manager:
        for _ in range(1_000):
            manager.extend_timeout()
        assert systemd.recv(1000) == MINUTE + b"\nWATCHDOG=1"
        now += EXTEND_INTERVAL_SECONDS
        manager.extend_timeout()
        assert systemd.recv(1000) == MINUTE + b"\nWATCHDOG=1"
        systemd.setblocking(False)
        with pytest.raises(BlockingIOError):
            systemd.recv(1000)


def test_an_abstract_address_works() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind("")  # the kernel chooses an abstract name
        heard.settimeout(30)
        with closing(ServiceManager("@" + heard.getsockname()[1:].decode(), 0.0)) as manager:
            assert manager.offer("STATUS=well")
        assert heard.recv(1000) == b"STATUS=well"


def test_an_offer_never_blocks(systemd: socket.socket, manager: ServiceManager) -> None:
    """Every user can fill the queue of systemd's socket, and must not block the bus."""
    fill(systemd.getsockname())
    assert not manager.offer("WATCHDOG=1")
    systemd.recv(1000)
    assert manager.offer("WATCHDOG=1")


def test_an_offer_without_a_receiver_fails(systemd: socket.socket, manager: ServiceManager) -> None:
    address = systemd.getsockname()
    systemd.close()
    assert not manager.offer("WATCHDOG=1")
    os.unlink(address)
    assert not manager.offer("WATCHDOG=1")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as again:
        again.bind(address)
        assert manager.offer("WATCHDOG=1")


def test_a_missing_socket_is_an_error_of_ready_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(folder / "none"))
    with closing(ServiceManager.of_environment()) as manager:
        with pytest.raises(
            ServiceManagerError, match=r"^cannot notify systemd through \$NOTIFY_SOCKET: No such file or directory; unset it"
        ):
            manager.ready("ready")
        manager.reloading()
        manager.reloaded()
        manager.stopping()


def test_without_systemd_notifications_have_no_effect() -> None:
    manager = ServiceManager.of_environment({"WATCHDOG_USEC": "1000000"})
    assert not manager.is_there
    assert manager.watchdog_seconds == 0
    assert manager.offer("WATCHDOG=1")
    manager.extend_timeout()
    manager.close()


def test_after_close_notifications_have_no_effect(systemd: socket.socket, manager: ServiceManager) -> None:
    manager.close()
    manager.close()
    manager.stopping()
    assert not manager.is_there
    systemd.setblocking(False)
    with pytest.raises(BlockingIOError):
        systemd.recv(1000)


@pytest.mark.parametrize(
    ("environment", "seconds"),
    [
        ({}, 0.0),
        ({"WATCHDOG_USEC": "20000000"}, 20.0),
        ({"WATCHDOG_USEC": "500000", "WATCHDOG_PID": str(os.getpid())}, 0.5),
        ({"WATCHDOG_USEC": "500000", "WATCHDOG_PID": "1"}, 0.0),
        ({"WATCHDOG_USEC": "0"}, 0.0),
    ],
)
def test_the_watchdog_of_another_process_is_ignored(systemd: socket.socket, environment: dict[str, str], seconds: float) -> None:
    with closing(ServiceManager.of_environment({"NOTIFY_SOCKET": systemd.getsockname(), **environment})) as manager:
        assert manager.watchdog_seconds == seconds


@pytest.mark.parametrize("environment", [{"WATCHDOG_USEC": "soon\n"}, {"WATCHDOG_USEC": "-1"}, {"WATCHDOG_USEC": "1", "WATCHDOG_PID": "²"}])
def test_an_invalid_watchdog_is_an_error(environment: dict[str, str]) -> None:
    with pytest.raises(ServiceManagerError) as raised:
        ServiceManager.of_environment(environment)
    assert str(raised.value).startswith("invalid $WATCHDOG_")
    assert str(raised.value).isprintable()
