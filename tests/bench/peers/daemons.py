"""The daemons that are compared: how each is started, at a socket of its own kind, and why one is left out."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.bench.peers.programs import compile_controller
from tests.bench.programs import BenchError
from tests.bench.relays import DAEMON, READY_SECONDS, confined, daemon_command, relay_cpus, started
from tests.support.free_ports import free_port

_PATH = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))
"""Debian keeps some of the daemons where only root looks."""

DBUS_CONFIGURATION = """\
<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <type>session</type>
  <listen>unix:path={path}</listen>
  <auth>EXTERNAL</auth>
  <policy context="default"><allow send_destination="*" eavesdrop="true"/><allow eavesdrop="true"/><allow own="*"/></policy>
</busconfig>
"""

# An unbounded queue: the window of the bench bounds its content. As root it would change to a user that cannot write here.
MOSQUITTO_CONFIGURATION = "user {user}\nlistener 0 {path}\nallow_anonymous true\nmax_queued_messages 0\nlog_dest none\n"


@dataclass(frozen=True, slots=True)
class Running:
    """A daemon that runs: the process whose CPU is measured, and its address, which is a path or a port of 127.0.0.1.

    Of two linked hosts *drain* is the address of the receivers, and *settled* a shell command that ends when publishers know of them.
    *stream* is the stream socket of sbusd, which clients in Node use.
    """

    pid: int
    address: str
    drain: str = ""
    settled: str = ""
    stream: str = ""


@dataclass(frozen=True, slots=True)
class Daemon:
    """One of those that are compared; *program* is what must be there, *version* what prints its version."""

    name: str
    program: str
    version: tuple[str, ...]
    run: Callable[[str, Path], contextlib.AbstractContextManager[Running]]

    def found(self) -> str | None:
        """Return the path of the program, or None if it is not installed."""
        return shutil.which(self.program, path=_PATH)

    @contextlib.contextmanager
    def started(self, directory: Path) -> Iterator[Running]:
        """Run it in *directory*, on the CPU that daemons are kept on.

        Raises: BenchError if it is not installed or does not start.
        """
        program = self.found()
        if program is None:
            raise BenchError(f"{self.program} is not installed: tools/prepare bench")
        with contextlib.ExitStack() as stack:
            with confined(relay_cpus()):
                running = stack.enter_context(self.run(program, directory))
            yield running

    def version_words(self) -> str:
        """Return the version that the program prints; empty if it prints none."""
        program = self.found()
        if program is None:
            return ""
        done = subprocess.run([program, *self.version], capture_output=True, text=True, timeout=60, check=False)
        match = re.search(r"\d+(\.\d+)+|(?<= )\d+$", (done.stdout or done.stderr).strip(), re.MULTILINE)
        return match[0] if match else ""


def _answers(address: str) -> Callable[[subprocess.Popen[bytes], Sequence[str]], None]:
    """Return a function that waits until a program listens at *address*."""

    def ready(process: subprocess.Popen[bytes], command: Sequence[str]) -> None:
        end = time.monotonic() + READY_SECONDS
        while process.poll() is None:
            if _is_open(address):
                return
            if time.monotonic() > end:
                raise BenchError(f"not ready after {READY_SECONDS:g} s: {' '.join(command)}")
            time.sleep(0.02)

    return ready


def _is_open(address: str) -> bool:
    """Return whether a connection to *address* is accepted."""
    family, where = (socket.AF_UNIX, address) if address.startswith("/") else (socket.AF_INET, ("127.0.0.1", int(address)))
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(where) == 0


@contextlib.contextmanager
def _sbusd(program: str, directory: Path) -> Iterator[Running]:
    """Run this tree's daemon."""
    path, stream = directory / "sbusd", directory / "sbusd-stream"
    command = [*daemon_command((program, *DAEMON[1:]), path, None), "--stream-address", str(stream)]
    with started(command, path) as relay:
        yield Running(relay.pid, str(path), stream=str(stream))


@contextlib.contextmanager
def _dbus_daemon(program: str, directory: Path) -> Iterator[Running]:
    """Run the reference D-Bus daemon, with a policy that allows everything."""
    path = directory / "dbus-daemon"
    configuration = directory / "dbus-daemon.conf"
    configuration.write_text(DBUS_CONFIGURATION.format(path=path), encoding="utf-8")
    command = [program, "--nofork", "--nopidfile", "--nosyslog", f"--config-file={configuration}"]
    with started(command, path, _answers(str(path))) as relay:
        yield Running(relay.pid, str(path))


@contextlib.contextmanager
def _dbus_broker(_program: str, directory: Path) -> Iterator[Running]:
    """Run dbus-broker under a controller of the bench's own, whose child is measured."""
    path = directory / "dbus-broker"
    with started([str(compile_controller()), str(path)], path) as controller:
        children = Path(f"/proc/{controller.pid}/task/{controller.pid}/children").read_text(encoding="ascii").split()
        yield Running(int(children[0]), str(path))


@contextlib.contextmanager
def _redis(program: str, directory: Path) -> Iterator[Running]:
    """Run Redis at a Unix socket, with nothing written to disk."""
    path = directory / "redis"
    command = [program, "--port", "0", "--unixsocket", str(path), "--save", "", "--appendonly", "no", "--dir", str(directory)]
    with started(command, path, _answers(str(path))) as relay:
        yield Running(relay.pid, str(path))


@contextlib.contextmanager
def _nats(program: str, directory: Path) -> Iterator[Running]:
    """Run NATS, which knows TCP alone."""
    port = str(free_port())
    with started([program, "-a", "127.0.0.1", "-p", port], directory / "nats", _answers(port)) as relay:
        yield Running(relay.pid, port)


@contextlib.contextmanager
def _mosquitto(program: str, directory: Path) -> Iterator[Running]:
    """Run Mosquitto at a Unix socket."""
    path = directory / "mosquitto"
    configuration = directory / "mosquitto.conf"
    user = "root" if os.geteuid() == 0 else str(os.geteuid())
    configuration.write_text(MOSQUITTO_CONFIGURATION.format(path=path, user=user), encoding="utf-8")
    with started([program, "-c", str(configuration)], path, _answers(str(path))) as relay:
        yield Running(relay.pid, str(path))


@contextlib.contextmanager
def _proxy(program: str, directory: Path) -> Iterator[Running]:
    """Run ZeroMQ's own proxy, which stands between publishers and subscribers as a bus does; its C code has all the work."""
    if importlib.util.find_spec("zmq") is None:
        raise BenchError("pyzmq is not installed: make bench-peers")
    path = directory / "zmq"
    with started([program, "-m", "tests.bench.peers.proxy", str(path)], path) as relay:
        yield Running(relay.pid, str(path))


SBUSD = Daemon("sbusd", sys.executable, ("-c", "import sbus; print(sbus.__version__)"), _sbusd)
DBUS_DAEMON = Daemon("dbus-daemon", "dbus-daemon", ("--version",), _dbus_daemon)
DBUS_BROKER = Daemon("dbus-broker", "dbus-broker", ("--version",), _dbus_broker)
REDIS = Daemon("Redis", "redis-server", ("--version",), _redis)
NATS = Daemon("NATS", "nats-server", ("--version",), _nats)
MOSQUITTO = Daemon("Mosquitto", "mosquitto", ("-h",), _mosquitto)
PROXY = Daemon("ZeroMQ proxy", sys.executable, ("-c", "import zmq; print(zmq.zmq_version())"), _proxy)

DAEMONS = (SBUSD, DBUS_DAEMON, DBUS_BROKER, REDIS, NATS, MOSQUITTO, PROXY)
"""All, in the order of the table."""
