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
from tests.bench.peers.programs import HERE
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


@dataclass(frozen=True, slots=True)
class Work:
    """What programs do: messages of *payload* bytes. *group* of them are published before the program waits for the daemon.

    0: it waits as seldom as the library allows; 1: each message leaves alone. Of calls it is the number that wait at the same time.
    """

    payload: int = 64
    group: int = 0
    is_calls: bool = False


IN_PYTHON = (sys.executable, "-m", "tests.bench.peers.clients.run")
IN_NODE = ("node", str(HERE / "node" / "run.js"))


@dataclass(frozen=True, slots=True)
class ProgramLoad:
    """Two programs, left to the scheduler as programs are: one publishes, one receives. *command* runs one.

    Programs in Python do the default work alone, so *work* is not given to them.
    """

    command: tuple[str, ...] = IN_PYTHON
    work: Work | None = None

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

    def calls(self, client: str, daemon: Running, seconds: float) -> Flow:
        """Call for *seconds*, after as long without counting; a delivery is a call, and the publisher the caller."""
        with self._program(client, "serve", daemon) as service:
            self._line(service, client)
            with self._program(client, "call", daemon, seconds) as caller:
                self._line(caller, client)
                begin_cpu, begin_service_cpu = cpu_ns(daemon.pid), cpu_ns(service.pid)
                done = self._line(caller, client)
                cpu, service_cpu = cpu_ns(daemon.pid) - begin_cpu, cpu_ns(service.pid) - begin_service_cpu
        if not done["calls"]:
            raise BenchError(f"{client}: no call was answered")
        return Flow(done["calls"], 0, done["wall_ns"], cpu, done["cpu_ns"], service_cpu)

    @contextlib.contextmanager
    def _program(self, client: str, role: str, daemon: Running, amount: float = 0) -> Iterator[subprocess.Popen[str]]:
        """Run a client program in *role*; it is killed at the end, because a publisher repeats its end message forever."""
        address = daemon.drain if role == "receive" and daemon.drain else daemon.address
        if self.command == IN_NODE:
            address = daemon.stream or address
        command = [*self.command, client, role, address, str(amount)]
        command += [str(self.work.payload), str(self.work.group)] if self.work else []
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
            raise BenchError(f"{client}: {words[-1] if words else 'it printed nothing'}")
        result: dict[str, Any] = json.loads(line)
        return result


def cpu_ns(pid: int) -> int:
    """Return the nanoseconds of CPU that all threads of process *pid* have used.

    Source: clock_getcpuclockid(3); the number is how Linux names that clock.
    """
    return time.clock_gettime_ns((~pid << 3) | 2)
