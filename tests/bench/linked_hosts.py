"""``make bench-link``: messages from one linked host to another, compared with a publisher and a subscriber of one NATS server.

0: every line holds; 1: one does not; 2: it could not be measured. Both hosts, the server and all clients share the machine, so a message
between hosts needs the processor time of two buses, two links and the server, where NATS needs that of the server alone.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sbus import Bus, SbusError
from tests.bench.figures import Bound, Line, Unit, table
from tests.bench.peers.daemons import NATS, Running
from tests.bench.peers.loading import CLoad, ProgramLoad, Traffic
from tests.bench.peers.programs import compile_load
from tests.bench.programs import BenchError
from tests.bench.relays import DAEMON, READY_SECONDS, daemon_command, started
from tests.support.link_programs import LinkProgram

FAILED = 1
NOT_MEASURED = 2

BURSTS = Traffic(group=64, window=8192)
SINGLES = Traffic(window=8192)

_RULES = '[[export]]\nkeys = "bench/"\n[[import]]\nkeys = ""\n'


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured: rounds, seconds of publishing in each, and round trips."""

    rounds: int
    seconds: float
    trips: int


FULL = Plan(rounds=5, seconds=1.0, trips=2_000)
QUICK = Plan(rounds=1, seconds=0.1, trips=100)


@dataclass(slots=True)
class Rates:
    """Deliveries per second in each round, by kind of client."""

    linked_bursts: list[float] = field(default_factory=list)
    linked_singles: list[float] = field(default_factory=list)
    linked_python: list[float] = field(default_factory=list)
    linked_lists: list[float] = field(default_factory=list)
    nats_bursts: list[float] = field(default_factory=list)
    nats_python: list[float] = field(default_factory=list)
    linked_trips: list[float] = field(default_factory=list)
    local_trips: list[float] = field(default_factory=list)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the bench and return its exit status."""
    parser = argparse.ArgumentParser(prog="bench-link", description="Compare linked hosts with NATS.")
    parser.add_argument("--quick", action="store_true", help="short runs: shows that the bench works, says nothing about speed")
    options = parser.parse_args(arguments)
    try:
        with tempfile.TemporaryDirectory(prefix="sbusd-bench-") as directory:
            rates = _measure(QUICK if options.quick else FULL, Path(directory))
    except BenchError as error:
        print(f"bench-link: {error}", file=sys.stderr)
        return NOT_MEASURED
    lines = _lines(rates)
    print(table(lines))
    broken = [line.name for line in lines if not line.holds]
    print(f"{len(broken)} of {len(lines)} lines do not hold" if broken else f"all {len(lines)} lines hold")
    return FAILED if broken else 0


def _lines(rates: Rates) -> list[Line]:
    """Return what is judged."""
    added = tuple(linked - local for linked, local in zip(rates.linked_trips, rates.local_trips, strict=True))
    return [
        _rate("64 B in bursts of 64, C clients, to NATS C to C", rates.linked_bursts, rates.nats_bursts, 0.3),
        _rate("the same, to nats-py to nats-py", rates.linked_bursts, rates.nats_python, 2.0),
        _rate("64 B singly, C clients, to nats-py to nats-py", rates.linked_singles, rates.nats_python, 1.0),
        # The Python client decodes messages on a machine that two buses, two links and the server share with it.
        _rate("64 B, Bus with coalesce to lists, to nats-py to nats-py", rates.linked_lists, rates.nats_python, 0.5),
        _rate("64 B singly, Bus to Bus, to nats-py to nats-py", rates.linked_python, rates.nats_python, 0.5),
        Line("added to a round trip on the local bus, p50", Unit.MICROSECONDS, added, Bound(500_000)),
    ]


def _rate(name: str, values: list[float], references: list[float], least: float) -> Line:
    return Line(name, Unit.PER_SECOND, tuple(values), Bound(least, at_least=True), tuple(references))


def _measure(plan: Plan, folder: Path) -> Rates:
    """Measure all in turns. Raises BenchError."""
    c_load, python_load = CLoad(compile_load(), frozenset()), ProgramLoad()
    rates = Rates()
    with NATS.started(folder) as server, _linked(folder, server) as hosts:
        everywhere = os.sched_getaffinity(0)
        os.sched_setaffinity(server.pid, everywhere)
        local = Running(hosts.pid, hosts.address)
        for number in range(plan.rounds):
            begin = time.monotonic()
            rates.linked_bursts.append(c_load.pump("sbus-link", hosts, BURSTS, plan.seconds).rate)
            rates.nats_bursts.append(c_load.pump("nats", server, BURSTS, plan.seconds).rate)
            rates.linked_singles.append(c_load.pump("sbus-link", hosts, SINGLES, plan.seconds).rate)
            rates.linked_python.append(python_load.pump("sbus_link", hosts, plan.seconds).rate)
            rates.linked_lists.append(python_load.pump("sbus_link:together", hosts, plan.seconds).rate)
            rates.nats_python.append(python_load.pump("nats_py", server, plan.seconds).rate)
            rates.linked_trips.append(c_load.trip("sbus-link", hosts, plan.trips).p50_ns)
            rates.local_trips.append(c_load.trip("sbus", local, plan.trips).p50_ns)
            print(f"bench-link: round {number + 1}: {time.monotonic() - begin:.0f} s", file=sys.stderr)
    return rates


@contextlib.contextmanager
def _linked(folder: Path, server: Running) -> Iterator[Running]:
    """Run two linked hosts; the address is that of alpha, the receivers are on beta."""
    config = folder / "bus.toml"
    config.write_text(f"[rights.vouch]\nusers = [{os.geteuid()}]\n[rights.presence]\nusers = [{os.geteuid()}]\n")
    with contextlib.ExitStack() as stack:
        paths = {}
        for host in ("alpha", "beta"):
            path = folder / f"{host}.socket"
            bus = stack.enter_context(started(daemon_command(DAEMON, path, config), path))
            os.sched_setaffinity(bus.pid, os.sched_getaffinity(0))
            text = f'servers = ["nats://127.0.0.1:{server.address}"]\n{_RULES}'
            link = stack.enter_context(LinkProgram(folder, host, str(path), text, ["env"]))
            paths[host] = path, link
        for path, link in paths.values():
            _wait_for_other_host(path, link)
        (publishers, _), (receivers, _) = paths.values()
        command = shlex.join([sys.executable, "-m", "sbusctl.main", "--address", str(receivers), "link", "sync"])
        yield Running(paths["alpha"][1].pid, str(publishers), str(receivers), command)


def _wait_for_other_host(path: Path, link: LinkProgram) -> None:
    """Wait until the link sees the other host. Raises BenchError."""
    end = time.monotonic() + READY_SECONDS
    while time.monotonic() < end:
        with contextlib.suppress(SbusError), Bus.connect(str(path)) as bus:
            if any(host["alive"] for host in json.loads(bus.call("link/status", timeout=5))["hosts"]):
                return
        time.sleep(0.1)
    raise BenchError(f"the link of {path.stem} sees no other host: {link.log[-400:]}")


if __name__ == "__main__":
    sys.exit(main())
