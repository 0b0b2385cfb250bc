"""Each program that finds no descriptor, or no thread, ends with one line and a documented status, and never with a traceback."""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.daemons import Daemon, start_daemon
from tests.support.program import environment
from tests.support.users import User
from tools.stage import Stage, open_folder

WAIT_SECONDS = 60

_CONFIGURATIONS = {
    "link": 'realm = "R"\nhost = "h"\ntransport = "direct"\nlisten = "127.0.0.1:0"\nbus = "BUS"\n',
    "relay": 'twin = 1\nredis = "unix:FOLDER/redis"\nbus = "BUS"\n',
    "store": 'file = "FOLDER/store.sqlite"\nbus = "BUS"\n',
    "recorder": 'archive = "FOLDER/archive"\nspool = "FOLDER/spool"\n',
    "ship": 'archive = "FOLDER/archive"\ndestination = "file:FOLDER/copy"\n',
    "trigger": 'folder = "FOLDER/messages"\nbus = "BUS"\n',
}

_COMMANDS = [
    "sbusd -f -a FOLDER/bus",
    "sbusctl -a BUS stats",
    "sbusctl -a BUS serve nothing --exec true",
    "sbusctl -a BUS doctor",
    "sbus-blob --listen FOLDER/blob",
    "sbus-feed netlink --address BUS",
    "sbus-feed journal --address BUS --directory FOLDER",
    "sbus-feed udev --address BUS",
    "sbus-feed systemd --address BUS --dbus-address unix:path=FOLDER/none",
    "sbus-link --config FOLDER/link.toml",
    "sbus-metrics --listen 127.0.0.1:0",
    "sbus-store --config FOLDER/store.toml",
    "sbus-trigger --config FOLDER/trigger.toml",
    "sbus-pipeline --archive FOLDER/archive --tables FOLDER/tables",
    "sbus-recorder --address BUS --config FOLDER/recorder.toml",
    "sbus-ship --once --config FOLDER/ship.toml",
    "sbus-relay --config FOLDER/relay.toml",
    "sbus-web --address BUS",
]

_STATUSES = {0, 1, os.EX_CONFIG, -signal.SIGKILL}


@pytest.fixture(scope="module")
def shared_bus() -> Iterator[Daemon]:
    """One bus for all programs, which only connect to it."""
    folder = open_folder()
    made = start_daemon(folder, 0, (), stage=Stage(sys.executable, {}), user=None, env=None)
    try:
        yield made
    finally:
        made.check()
        shutil.rmtree(folder)


@dataclass(frozen=True)
class Runner:
    """Runs programs in *folder*, with the bus at *bus*."""

    folder: Path
    bus: str
    stage: Stage

    def fault(self, command: str, limit: str, user: User | None = None) -> str:
        """Start *command* with the option *limit* of prlimit(1), kill it once it is ready or has written a line. Return what is wrong."""
        for name, text in _CONFIGURATIONS.items():
            (self.folder / f"{name}.toml").write_text(text.replace("FOLDER", str(self.folder)).replace("BUS", self.bus))
        program, *arguments = command.replace("FOLDER", str(self.folder)).replace("BUS", self.bus).split()
        manager = str(self.folder / "manager")
        with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as ready:
            ready.bind(manager)
            if user is not None:
                os.chown(self.folder, user.uid, user.gid)
                os.chown(manager, user.uid, user.gid)
            process = subprocess.Popen(
                ["prlimit", limit, "--", *self.stage.program(program, *arguments)],
                cwd="/",
                env=environment() | self.stage.env | {"NOTIFY_SOCKET": manager, "SBUS_ADDRESS": self.bus, "HOME": str(self.folder)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                user=None if user is None else user.uid,
                group=None if user is None else user.gid,
            )
            assert process.stderr is not None
            is_ready, _, _ = select.select([ready.fileno(), process.stderr.fileno()], [], [], WAIT_SECONDS)
            process.kill()  # and not a signal that it handles: it may be ending already
            written = process.communicate(timeout=WAIT_SECONDS)[1].decode()
        os.unlink(manager)
        if not is_ready:
            return f"{command}, {limit}: it neither ends, nor writes a line, nor is ready"
        lines = [line for line in written.splitlines() if line and not line.startswith("<jemalloc>")]  # the allocator of pyarrow
        is_wrong = process.returncode not in _STATUSES or any(not line.startswith(f"{program}: ") for line in lines)
        return f"{command}, {limit}: status {process.returncode}: {written}" if is_wrong else ""


@pytest.mark.parametrize("command", _COMMANDS)
def test_few_descriptors_are_reported_in_one_line(command: str, folder: Path, shared_bus: Daemon, stage: Stage) -> None:
    runner = Runner(folder, shared_bus.path, stage)
    wrong = [runner.fault(command, f"--nofile={limit}") for limit in (5, 6, 8, 11)]
    assert not any(wrong), "\n".join(wrong)


@pytest.mark.parametrize("command", _COMMANDS)
def test_missing_threads_are_reported_in_one_line(command: str, folder: Path, shared_bus: Daemon, stage: Stage, needs_root: None) -> None:
    alone = User(64_123, 64_123)  # nothing else runs as this user, so that its only process has no thread left
    assert not Runner(folder, shared_bus.path, stage).fault(command, "--nproc=1", alone)
