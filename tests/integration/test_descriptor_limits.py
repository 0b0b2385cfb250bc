"""A program whose limit of descriptors leaves none for its clients does not start. With one more, it serves."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from sbus.protocol import controls
from sbus.protocol.packets import control_packet
from sbus_programs.exhaustion import descriptor_shortage
from sbus_services.blob import service as blob
from sbus_services.metrics import main as metrics
from sbusd.broker import quotas as bus_quotas
from tests.support.blob_programs import BlobProgram
from tests.support.daemons import Daemon
from tests.support.program import environment
from tests.support.users import FIRST
from tests.support.wire import RawClient
from tools.stage import Stage

SECONDS = 60.0

PROGRAMS = {
    "sbusd -f -go -a FOLDER/bus": (bus_quotas.LEAST_DESCRIPTORS, 1),
    "sbus-blob -C FOLDER/empty.toml --listen FOLDER/blob": (blob.LEAST_DESCRIPTORS, os.EX_CONFIG),
    "sbus-metrics -C FOLDER/empty.toml --listen FOLDER/metrics": (metrics.LEAST_DESCRIPTORS, os.EX_CONFIG),
}
"""The programs that compute how many descriptors clients may have: what each needs, and its exit status with fewer."""


@contextmanager
def started(folder: Path, command: Sequence[str], limit: int) -> Iterator[tuple[subprocess.Popen[bytes], socket.socket]]:
    """Start *command* with *limit* descriptors; give the process, and the socket on which it reports READY=1."""
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as manager:
        manager.settimeout(SECONDS)
        manager.bind(str(folder / "manager"))
        process = subprocess.Popen(
            ["prlimit", f"--nofile={limit}", "--", *command],
            cwd="/",
            env=environment() | {"NOTIFY_SOCKET": str(folder / "manager"), "HOME": str(folder)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        try:
            yield process, manager
        finally:
            process.kill()
            process.communicate()


def command_of(program: str, folder: Path, stage: Stage) -> list[str]:
    """Return the command that runs *program* in *folder*."""
    (folder / "empty.toml").touch()
    name, *arguments = program.replace("FOLDER", str(folder)).split()
    return stage.program(name, *arguments)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_without_room_for_clients_does_not_start(program: str, folder: Path, stage: Stage) -> None:
    least, status = PROGRAMS[program]
    with started(folder, command_of(program, folder, stage), least - 1) as (process, _):
        written = process.communicate(timeout=SECONDS)[1].decode()
    name = program.partition(" ")[0]
    assert (process.returncode, written) == (status, f"{name}: {descriptor_shortage(least - 1, least)}\n")
    assert [each.name for each in folder.iterdir() if each.is_socket()] == ["manager"], "it has left a socket"


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_with_the_least_limit_starts(program: str, folder: Path, stage: Stage) -> None:
    with started(folder, command_of(program, folder, stage), PROGRAMS[program][0]) as (_, manager):
        while b"READY=1" not in (said := manager.recv(4_096)).split(b"\n"):
            assert b"cannot start" not in said


def test_a_bus_with_the_least_limit_admits_any_user(folder: Path, stage: Stage, needs_root: None) -> None:
    program = next(iter(PROGRAMS))
    with started(folder, command_of(program, folder, stage), PROGRAMS[program][0]) as (_, manager):
        while b"READY=1" not in manager.recv(4_096).split(b"\n"):
            pass
        with closing(RawClient(FIRST.connect(str(folder / "bus")))) as client:
            client.send(control_packet(controls.WHOAMI))
            assert client.receive().startswith(b"CMSG " + controls.WHOAMI)


def test_blobs_are_served_with_the_least_limit(bus: Daemon, folder: Path, needs_root: None) -> None:
    with BlobProgram(folder, bus.path, max_descriptors=blob.LEAST_DESCRIPTORS) as service:
        service.check_others(FIRST)
