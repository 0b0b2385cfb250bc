"""SIGTERM and SIGINT end programs that wait without a limit, also if the kernel gives the signal to another thread than the waiting one."""

from __future__ import annotations

import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sbus_programs.systemd.signals import ENDING
from tests.support.daemons import Daemon
from tests.support.journals import JournalFolder
from tests.support.relays import wait_for
from tools.stage import ROOT

SECONDS = 60.0

Arguments = Callable[[Path, Daemon], list[str]]


def recorder(folder: Path, bus: Daemon) -> list[str]:
    """Return the arguments of a recorder."""
    config = folder / "recorder.toml"
    config.write_text(f'archive = "{folder}/archive"\nspool = "{folder}/spool"\nhost = "alpha"\n')
    return ["sbus_archive.recorder.main", "--address", bus.path, "--config", str(config)]


def record(folder: Path, bus: Daemon) -> list[str]:
    """Return the arguments of a recording by hand."""
    return ["sbusctl.main", "--address", bus.path, "record", "--archive", str(folder / "archive")]


def ship(folder: Path, _bus: Daemon) -> list[str]:
    """Return the arguments of a shipper that has nothing to ship, for ten minutes."""
    (folder / "archive" / "index").mkdir(parents=True)
    config = folder / "ship.toml"
    config.write_text(
        f'archive = "{folder}/archive"\nstate = "{folder}/state"\nhost = "alpha"\ndestination = "{folder}/copy"\ninterval = "10min"\n'
    )
    return ["sbus_archive.shipping.main", "--config", str(config)]


def netlink(_folder: Path, bus: Daemon) -> list[str]:
    """Return the arguments of a feed of the network of this machine."""
    return ["sbus_services.feeds.main", "netlink", "--address", bus.path]


def udev(_folder: Path, bus: Daemon) -> list[str]:
    """Return the arguments of a feed of the devices of this machine."""
    return ["sbus_services.feeds.main", "udev", "--address", bus.path]


def journal(folder: Path, bus: Daemon) -> list[str]:
    """Return the arguments of a feed of a journal without entries to come."""
    made = JournalFolder(folder / "journal")
    made.add("before")
    return ["sbus_services.feeds.main", "journal", "--address", bus.path, "--public", "--directory", str(made.path)]


class Program:
    """A running program whose signals go to another thread."""

    def __init__(self, folder: Path, arguments: list[str]) -> None:
        self._manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._manager.bind(str(folder / "notify"))
        self._manager.settimeout(SECONDS)
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "tests.support.signal_thread", *arguments],
            env={**os.environ, "PYTHONPATH": str(ROOT), "NOTIFY_SOCKET": str(folder / "notify")},
            cwd="/",
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait_ready(self) -> None:
        """Wait until the service manager would know that it is ready."""
        while not self._manager.recv(4_096).startswith(b"READY=1"):
            pass

    def rest(self) -> None:
        """Wait until the main thread waits. If it is not the last wait, the test still holds, but finds less."""
        status = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/status")
        before, same = "", 0
        while same < 10:
            assert self.process.poll() is None
            seen = "".join(line for line in status.read_text().splitlines() if line.startswith(("State", "voluntary")))
            before, same = seen, same + 1 if seen == before and "sleeping" in seen else 0
            time.sleep(0.02)

    def end(self, number: signal.Signals) -> None:
        """Send a signal, and wait until it has ended."""
        self.process.send_signal(number)
        _, said = self.process.communicate(timeout=SECONDS)
        assert self.process.returncode == 0, said
        assert "Traceback" not in said

    def close(self) -> None:
        """Kill it, if it still runs."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()
        self._manager.close()


@pytest.fixture
def start(folder: Path) -> Iterator[Callable[[list[str]], Program]]:
    """Start a program: ``start(["sbus_archive.recorder.main"])``."""
    started: list[Program] = []

    def make(arguments: list[str]) -> Program:
        started.append(Program(folder, arguments))
        return started[-1]

    yield make
    for each in started:
        each.close()


@pytest.mark.parametrize("number", ENDING)
@pytest.mark.parametrize("arguments", [recorder, record, ship, netlink, udev, journal])
def test_a_signal_that_interrupts_nothing_ends_it(
    arguments: Arguments, number: signal.Signals, bus: Daemon, folder: Path, start: Callable[[list[str]], Program]
) -> None:
    if arguments in {recorder, record, ship}:
        pytest.importorskip("pyarrow")
    program = start(arguments(folder, bus))
    if arguments is record:
        wait_for((folder / "archive" / "index").exists, "the archive")
    else:
        program.wait_ready()
    program.rest()
    program.end(number)


@pytest.mark.parametrize("number", ENDING)
def test_the_store_ends_with_status_0_while_it_opens_its_file(tmp_path: Path, number: signal.Signals) -> None:
    config, file = tmp_path / "store.toml", tmp_path / "store.sqlite"
    config.write_text(f'bus = "{tmp_path}/no.socket"\nfile = "{file}"\n')
    with sqlite3.connect(file, isolation_level=None) as other:
        other.execute("BEGIN EXCLUSIVE")  # the store waits for the end of this
        process = subprocess.Popen(
            [sys.executable, "-m", "sbus_services.store.main", "-C", str(config)], env={"PYTHONPATH": str(ROOT)}, cwd="/"
        )
        wait_for((tmp_path / "store.sqlite.lock").exists, "the lock of the store")
        process.send_signal(number)
        assert process.wait(SECONDS) == 0
    other.close()
