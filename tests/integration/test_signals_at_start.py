"""SIGTERM and SIGINT end each service with status 0 and without a traceback, also if they arrive while it starts."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sbus_programs.systemd.signals import ENDING
from tests.support.daemons import StartDaemon
from tests.support.forked_programs import StartedProgram, start_program
from tests.support.journals import JournalFolder
from tools.stage import ROOT

SECONDS = 60.0

MOMENTS = tuple(zip((1, 10, 50, 200, 800), itertools.cycle(ENDING)))
"""Numbers of audit events and the signal. A service that has fewer is stopped when it is ready."""

NEVER = 1_000_000_000

NEED_A_BUS = {"sbus_archive.recorder.main", "sbus_services.feeds.main"}
"""Services that do not become ready without a bus."""

NEEDED = {"sbus_archive.recorder.main": "pyarrow", "sbus_archive.shipping.main": "pyarrow", "sbus_services.relay.main": "aiohttp"}
"""Libraries without which a service does not start."""


ARGUMENTS = {
    "sbusd.daemon.main": "-f -a {folder}/bus.socket -C {folder}/sbusd.toml",
    "sbus_services.blob.main": "-C {folder}/blob.toml --listen {folder}/blob.socket",
    "sbus_services.link.main": "-C {folder}/link.toml",
    "sbus_services.metrics.main": "-C {folder}/metrics.toml --listen {folder}/metrics.socket",
    "sbus_archive.recorder.main": "-C {folder}/recorder.toml --address {folder}/no.socket",
    "sbus_archive.shipping.main": "-C {folder}/ship.toml",
    "sbus_services.store.main": "-C {folder}/store.toml",
    "sbus_services.trigger.main": "-C {folder}/trigger.toml",
    "sbus_services.relay.main": "-C {folder}/relay.toml",
    "sbus_services.web.main": "--address {folder}/no.socket --listen 127.0.0.1:0 --url-file {folder}/url",
    "sbus_services.feeds.main": "journal --address {folder}/no.socket --public --directory {folder}/journal",
}
"""The services. Of the feeds one, because all start in the same way."""

FILES = {
    "sbusd.toml": "",
    "blob.toml": 'bus = "{folder}/no.socket"',
    "link.toml": 'bus = "{folder}/no.socket"\nhost = "alpha"\nrealm = "R"\nservers = ["nats://127.0.0.1:1"]',
    "metrics.toml": 'bus = "{folder}/no.socket"',
    "recorder.toml": 'archive = "{folder}/archive"\nspool = "{folder}/spool"\nhost = "alpha"',
    "ship.toml": 'archive = "{folder}/archive"\nstate = "{folder}/state"\nhost = "alpha"\ndestination = "{folder}/copy"',
    "store.toml": 'bus = "{folder}/no.socket"\nfile = "{folder}/store.sqlite"',
    "trigger.toml": 'bus = "{folder}/no.socket"\nfolder = "{folder}/messages"',
    "relay.toml": 'twin = 1\nlisten = "127.0.0.1:0"\nbus = "{folder}/no.socket"\nredis = "unix://{folder}/no.redis"',
}
"""Their configurations, without a bus to connect to."""


def command_of(module: str, folder: Path, address: str) -> list[str]:
    """Return module and arguments of a service of the bus at *address*, after writing the configurations into *folder*."""
    (folder / "archive" / "index").mkdir(parents=True)
    for name, text in FILES.items():
        (folder / name).write_text(text.replace("{folder}", str(folder)))
    if module == "sbus_services.feeds.main":
        JournalFolder(folder / "journal").add("before")
    return [module, *ARGUMENTS[module].replace("{folder}/no.socket", address).replace("{folder}", str(folder)).split()]


@pytest.mark.parametrize(("events", "number"), MOMENTS)
@pytest.mark.parametrize("module", ARGUMENTS)
def test_a_signal_during_the_start_ends_it_with_status_0(module: str, events: int, number: signal.Signals, folder: Path) -> None:
    if module in NEEDED:
        pytest.importorskip(NEEDED[module])
    with started(module, folder, number, events) as (process, manager):
        stop_when_ready(process, manager, number)
        assert_that_it_ended_well(process, folder)


@pytest.mark.parametrize("module", ARGUMENTS)
def test_more_signals_while_it_ends_change_nothing(module: str, folder: Path, daemon: StartDaemon) -> None:
    if module in NEEDED:
        pytest.importorskip(NEEDED[module])
    bus = daemon().path if module in NEED_A_BUS else None
    with started(module, folder, signal.SIGTERM, NEVER, bus) as (process, manager):
        stop_when_ready(process, manager, signal.SIGTERM)
        manager.settimeout(0.001)
        notifications: list[bytes] = []
        until = time.monotonic() + SECONDS
        for number in itertools.cycle(ENDING):
            if process.poll() is not None:
                break
            assert time.monotonic() < until, "it does not end"
            process.send_signal(number)
            with contextlib.suppress(TimeoutError):
                notifications.append(manager.recv(4_096))
        assert_that_it_ended_well(process, folder)
    assert sum(b"STOPPING=1" in each for each in notifications) <= 1


@contextlib.contextmanager
def started(module: str, folder: Path, number: int, events: int, bus: str | None = None) -> Iterator[tuple[StartedProgram, socket.socket]]:
    """Start a service, without a *bus* by default, that gets the signal *number* after *events* audit events.

    Yield it, and what it notifies of its state.
    """
    service = command_of(module, folder, bus or f"{folder}/no.socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(folder / "notify"))
        manager.settimeout(0.1)
        env = {**os.environ, "PYTHONPATH": str(ROOT), "NOTIFY_SOCKET": str(folder / "notify")}
        words = ("tests.support.signal_moment", str(int(number)), str(events), *service)
        with (folder / "stdout").open("wb") as stdout, (folder / "stderr").open("wb") as stderr:
            process = start_program(*words, env=env, stdout=stdout.fileno(), stderr=stderr.fileno(), imports=[module])
        try:
            yield process, manager
        finally:
            process.kill()
            process.wait()


def assert_that_it_ended_well(process: StartedProgram, folder: Path) -> None:
    """Wait for the end of *process*, which must have status 0, say nothing unusual, and leave no socket."""
    status = process.wait(SECONDS)
    complaints = (folder / "stderr").read_text()
    assert status == 0, complaints
    assert (folder / "stdout").read_text() == ""
    for unwanted in ("Traceback", "Aborted", "never "):
        assert unwanted not in complaints
    assert [left.name for left in folder.iterdir() if left.is_socket() and left.name != "notify"] == []


def stop_when_ready(process: StartedProgram, manager: socket.socket, number: signal.Signals) -> None:
    """Wait until *process* has ended; send it a signal if it becomes ready."""
    until = time.monotonic() + SECONDS
    while process.poll() is None:
        assert time.monotonic() < until, "it neither ends nor becomes ready"
        with contextlib.suppress(TimeoutError):
            if b"READY=1" in manager.recv(4_096):
                process.send_signal(number)
                return
