"""The feeds of D-Bus as programs: on a real bus and a real D-Bus bus, with an imitation of systemd, and what other users can do."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sbus import Bus, Message, Subscription
from sbus_services.feeds.dbus.program import STORED
from tests.support.daemons import Daemon, StartDaemon
from tests.support.dbus_services import DBusDaemon, dbus_daemon
from tests.support.relays import wait_for
from tests.support.service_managers import ManagerThread
from tests.support.skips import require_program
from tests.support.store_programs import StoreProgram
from tools.stage import ROOT

SECONDS = 60.0


@pytest.fixture
def dbus(tmp_path: Path) -> Iterator[DBusDaemon]:
    require_program("dbus-daemon", "dbus-daemon")
    with dbus_daemon(tmp_path) as running:
        yield running


@pytest.fixture
def manager(dbus: DBusDaemon) -> Iterator[ManagerThread]:
    made = ManagerThread(dbus.address, a="active", b="active")
    yield made
    made.close()


class Feed:
    """A running feed, with a socket in place of the service manager's."""

    def __init__(self, folder: Path, *options: str) -> None:
        self._notifications = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._notifications.bind(str(folder / "notify"))
        self._notifications.settimeout(SECONDS)
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", "from sbus_services.feeds.main import main; main()", *options],
            env={**os.environ, "PYTHONPATH": str(ROOT), "NOTIFY_SOCKET": str(folder / "notify")},
            cwd="/",
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait_ready(self) -> str:
        """Return the next status that it sends to the service manager."""
        return self._notifications.recv(4096).decode()

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """End it, and return its status and what it has said."""
        self.process.send_signal(number)
        _, said = self.process.communicate(timeout=SECONDS)
        return self.process.returncode, said

    def close(self) -> None:
        """Clean up."""
        self.process.kill()
        self.process.communicate(timeout=SECONDS)
        self._notifications.close()


@contextmanager
def feeding(folder: Path, *options: str) -> Iterator[Feed]:
    """Run a feed that is ready."""
    feed = Feed(folder, *options)
    try:
        assert feed.wait_ready().startswith("READY=1\n")
        yield feed
    finally:
        feed.close()


def wait_message(messages: Subscription, key: str, **values: object) -> dict[str, Any]:
    """Return the next message to *key* that has *values*."""
    while True:
        item = messages.receive(timeout=SECONDS)
        if isinstance(item, Message) and item.key == key:
            payload: dict[str, Any] = item.json()
            if payload.items() >= values.items():
                return payload


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_units_are_published_and_a_signal_ends_the_feed(
    bus: Daemon, dbus: DBusDaemon, manager: ManagerThread, tmp_path: Path, number: int
) -> None:
    options = ["systemd", "--address", bus.path, "--dbus-address", dbus.address]
    with Bus.connect(bus.path) as client, client.subscribe("systemd/") as messages, feeding(tmp_path, *options) as feed:
        assert wait_message(messages, "systemd/snapshot/end", reason="start")["entries"] == 2
        manager.do(lambda each: each.change("a.service", active="failed", sub="failed", result="core-dump"))
        wait_message(messages, "systemd/unit/a.service", active="failed", result="core-dump")
        client.publish("systemd/request")
        wait_message(messages, "systemd/snapshot/end", reason="request", requests=1)
        assert feed.end(number) == (0, "")


def test_a_bus_that_is_killed_is_waited_for_and_gets_a_snapshot(
    daemon: StartDaemon, dbus: DBusDaemon, manager: ManagerThread, tmp_path: Path
) -> None:
    bus = daemon()
    with feeding(tmp_path, "systemd", "--address", bus.path, "--dbus-address", dbus.address) as feed:
        bus.process.kill()
        bus.process.wait()
        bus.expected_status = -signal.SIGKILL
        manager.do(lambda each: each.change("a.service", active="inactive", sub="dead"))
        command = [sys.executable, "-m", "sbusd.daemon.main", "-f", "-g", "-o", "-r", "-a", bus.path]
        with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE) as again:
            try:
                assert again.stdout is not None
                again.stdout.read()
                with Bus.connect(bus.path) as client, client.subscribe("systemd/") as messages:
                    client.publish("systemd/request")
                    wait_message(messages, "systemd/unit/a.service", active="inactive")
                    client.publish("systemd/request")
                    reconnects = wait_message(messages, "systemd/snapshot/end")["reconnects"]
                # A bus that is just starting can close a connection once more.
                assert reconnects >= 1
                assert feed.end() == (0, "sbus-feed: reconnected to the bus\n" * reconnects)
            finally:
                again.terminate()


def test_last_values_in_the_store_are_those_that_exist(bus: Daemon, dbus: DBusDaemon, manager: ManagerThread, tmp_path: Path) -> None:
    streams = (ROOT / "etc/store.toml.d/50-dbus-feeds.toml").read_text()
    with StoreProgram(tmp_path, bus.path, streams), Bus.connect(bus.path) as client:

        def values() -> dict[str, str]:
            return {each.key: each.json()["active"] for each in client.store.last(*STORED["systemd"])}

        with feeding(tmp_path, "systemd", "--address", bus.path, "--dbus-address", dbus.address) as feed:
            wait_for(lambda: values() == {"systemd/unit/a.service": "active", "systemd/unit/b.service": "active"}, "all units are stored")
            assert feed.end() == (0, "")
        (tmp_path / "notify").unlink()
        manager.do(lambda each: each.unload("a.service"))
        manager.do(lambda each: each.change("b.service", active="failed", sub="failed"))
        with feeding(tmp_path, "systemd", "--address", bus.path, "--dbus-address", dbus.address):
            wait_for(lambda: values() == {"systemd/unit/b.service": "failed"}, "the unit that is gone is removed")


def test_the_streams_of_the_package_are_those_of_the_program(bus: Daemon, tmp_path: Path) -> None:
    import tomllib

    tables = tomllib.loads((ROOT / "etc/store.toml.d/50-dbus-feeds.toml").read_text())["stream"]
    assert {table["name"]: tuple(table["keys"]) for table in tables} == STORED


def test_the_feed_of_signals(bus: Daemon, dbus: DBusDaemon, manager: ManagerThread, tmp_path: Path) -> None:
    table = '[[signal]]\nkey = "dbus/jobs/{member}/{arg2}"\nsender = "org.freedesktop.systemd1"\n'
    (tmp_path / "feed.toml").write_text(f'{table}interface = "org.freedesktop.systemd1.Manager"\n')
    options = ["dbus", "--address", bus.path, "--dbus-address", dbus.address, "--config", str(tmp_path / "feed.toml")]
    with Bus.connect(bus.path) as client, client.subscribe("dbus/") as messages, feeding(tmp_path, *options) as feed:
        wait_message(messages, "dbus/state", event="state")
        manager.do(lambda each: each.queue(5, "a.service"))
        found = wait_message(messages, "dbus/jobs/JobNew/a.service")
        assert found["args"] == [5, "/org/freedesktop/systemd1/job/5", "a.service"]
        assert feed.end() == (0, "")


@pytest.mark.parametrize(
    ("options", "status", "said"),
    [
        (["systemd", "--dbus-address", "unix:path=/nonexistent"], 1, "cannot connect to the D-Bus bus at unix:path=/nonexistent: "),
        (["logind", "--dbus-address", "nonsense"], 1, "cannot connect to the D-Bus bus at nonsense: "),
        (["dbus", "--config", "/nonexistent"], 78, "/nonexistent: no such file"),
    ],
)
def test_errors_are_one_line(bus: Daemon, options: list[str], status: int, said: str) -> None:
    code = "from sbus_services.feeds.main import main; main()"
    command = [sys.executable, "-W", "error", "-c", code, *options, "--address", bus.path]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False, timeout=SECONDS
    )
    assert done.returncode == status
    assert done.stderr.startswith(f"sbus-feed: {said}")
    assert done.stderr.count("\n") == 1


def test_an_example_prints_units_that_fail(bus: Daemon, dbus: DBusDaemon, manager: ManagerThread, tmp_path: Path) -> None:
    manager.do(lambda each: each.change("b.service", active="failed", sub="failed", result="timeout"))
    with feeding(tmp_path, "systemd", "--address", bus.path, "--dbus-address", dbus.address):
        env = {**os.environ, "PYTHONPATH": str(ROOT), "SBUS_ADDRESS": bus.path}
        command = [sys.executable, str(ROOT / "examples/failed_units.py")]
        with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as example:
            assert example.stdout is not None
            assert example.stdout.readline() == "b.service has failed: timeout\n"
            assert example.stdout.readline() == "watching 2 units and jobs\n"
            manager.do(lambda each: each.change("b.service", active="active", sub="running", result="success"))
            assert example.stdout.readline() == "b.service is active\n"
            example.kill()
