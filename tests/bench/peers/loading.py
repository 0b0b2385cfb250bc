"""The loads on a daemon: the C load, and Python programs that use the usual client libraries. Losses are counted."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.bench.loads import Churn, Trip, failure_text
from tests.bench.peers.daemons import Running
from tests.bench.programs import BenchError
from tests.bench.relays import confined, load_cpus

RUN_SECONDS = 60
"""After which a run is given up; none takes a tenth of it on a quiet machine."""


@dataclass(frozen=True, slots=True)
class Flow:
    """What a throughput run measured."""

    deliveries: int
    lost: int
    wall_ns: int
    cpu_ns: int
    """Of the daemon, all its threads."""
    publisher_cpu_ns: int = 0
    """Of the program that published, and below of the one that received; measured of programs in Python."""
    receiver_cpu_ns: int = 0

    @property
    def rate(self) -> float:
        """Deliveries per second."""
        return self.deliveries / self.wall_ns * 1e9

    @property
    def cpu(self) -> float:
        """Nanoseconds of the daemon's CPU per delivery."""
        return self.cpu_ns / self.deliveries

    @property
    def busy(self) -> float:
        """For which part of the time the daemon worked; where it is well below 1, the load was what limited the rate."""
        return self.cpu_ns / self.wall_ns


@dataclass(frozen=True, slots=True)
class Traffic:
    """What is sent: of *payload* bytes each, *group* messages with one system call, to *receivers*, with *window* in flight at most."""

    payload: int = 64
    receivers: int = 1
    group: int = 1
    window: int = 128


@dataclass(frozen=True, slots=True)
class CLoad:
    """The load that speaks each protocol by itself."""

    program: Path
    cpus: frozenset[int] = field(default_factory=lambda: frozenset(load_cpus()))
    """On which it runs; none: on all."""

    def pump(self, protocol: str, daemon: Running, traffic: Traffic, seconds: float) -> Flow:
        """Publish for *seconds* as fast as the window allows."""
        options = {"b": traffic.payload, "r": traffic.receivers, "g": traffic.group, "W": traffic.window, "m": round(seconds * 1000)}
        flow = Flow(**self._run(protocol, "pump", daemon, options))
        if not flow.deliveries:
            raise BenchError(f"{protocol}: nothing came")
        return flow

    def trip(self, protocol: str, daemon: Running, trips: int) -> Trip:
        """Send *trips* messages one after the other, each when the one before it has come."""
        return Trip(**self._run(protocol, "trip", daemon, {"n": trips}))

    def churn(self, protocol: str, daemon: Running, clients: int) -> Churn:
        """Let *clients* connect, subscribe and close, one after the other."""
        return Churn(**self._run(protocol, "churn", daemon, {"n": clients}))

    def _run(self, protocol: str, mode: str, daemon: Running, options: dict[str, int]) -> dict[str, int]:
        """Run the load to its end on its CPU, and return what it measured."""
        command = [str(self.program), protocol, mode, "-s", daemon.address, "-p", str(daemon.pid)]
        command += ["-d", daemon.drain, "-c", daemon.settled] if daemon.drain else []
        for name, value in options.items():
            command += [f"-{name}", str(value)]
        with confined(set(self.cpus)):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise BenchError(f"{protocol}, {mode}: {failure_text(done.stderr)}")
        result: dict[str, int] = json.loads(done.stdout)
        return result


class PythonLoad:
    """Two programs in Python, left to the scheduler as programs are: one publishes, one receives."""

    def pump(self, client: str, daemon: Running, seconds: float) -> Flow:
        """Publish for *seconds* as fast as the library lets a program, and wait until all has come, or nothing more comes."""
        with self._program(client, "receive", daemon) as receiver:
            self._line(receiver, client)  # it is subscribed
            begin_cpu = cpu_ns(daemon.pid)
            with self._program(client, "publish", daemon, seconds) as publisher:
                sent = self._line(publisher, client)
                received = self._line(receiver, client)
            cpu = cpu_ns(daemon.pid) - begin_cpu
        if not received["received"] or received["received"] > sent["sent"]:
            raise BenchError(f"{client}: {sent['sent']} messages were sent and {received['received']} came")
        return Flow(
            received["received"],
            sent["sent"] - received["received"],
            received["end_ns"] - sent["begin_ns"],
            cpu,
            sent["cpu_ns"],
            received["cpu_ns"],
        )

    def trip(self, client: str, daemon: Running, trips: int) -> Trip:
        """Send *trips* messages one after the other, from one connection of a program to another."""
        with self._program(client, "trip", daemon, trips) as process:
            return Trip(**self._line(process, client))

    @contextlib.contextmanager
    def _program(self, client: str, role: str, daemon: Running, amount: float = 0) -> Iterator[subprocess.Popen[str]]:
        """Run a client program in *role*; it is killed at the end, because a publisher repeats its end message forever."""
        address = daemon.drain if role == "receive" and daemon.drain else daemon.address
        command = [sys.executable, "-m", "tests.bench.peers.clients.run", client, role, address, str(amount)]
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8"
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def _line(self, process: subprocess.Popen[str], client: str) -> dict[str, Any]:
        """Return the next line that a program says, which is a JSON object."""
        if process.stdout is None or process.stderr is None:
            raise AssertionError("a client was started without pipes")
        line = process.stdout.readline()
        if not line:
            words = process.stderr.read().strip().splitlines()
            raise BenchError(f"{client}: {words[-1] if words else 'it failure_text nothing'}")
        result: dict[str, Any] = json.loads(line)
        return result


def cpu_ns(pid: int) -> int:
    """Return the nanoseconds of CPU that all threads of process *pid* have used.

    Source: clock_getcpuclockid(3); the number is how Linux names that clock.
    """
    return time.clock_gettime_ns((~pid << 3) | 2)
