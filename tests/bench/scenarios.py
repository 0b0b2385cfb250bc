"""The lines of the table: one function for each thing that is promised of the daemon's speed and size.

Whatever is compared is measured in turns, each round's order the reverse of the one before it, and judged by the median of the rounds'
ratios: a machine that is faster or slower for a while is so for both.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median
from typing import TypeVar

from tests.bench.figures import Bound, Line, Unit
from tests.bench.loads import Churn, Flow, Generator
from tests.bench.pacing import QUEUE_BYTES, Recipients, transfer
from tests.bench.peers.daemons import REDIS, SBUSD, Daemon
from tests.bench.peers.loading import CLoad
from tests.bench.peers.programs import compile_load
from tests.bench.programs import BenchError
from tests.bench.relays import Relay, daemon_command, started

Figure = TypeVar("Figure")


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured."""

    rounds: int
    deliveries: int
    """Of one throughput run."""
    trips: int
    wildcards: int
    holders: int
    """Connections that the wildcards are spread over."""
    idle: int
    starts: int
    clients: int
    """Of one churn run."""
    bursts: int
    burst_bytes: int
    """Payload of one burst."""


FULL = Plan(
    rounds=15,
    deliveries=150_000,
    trips=8_000,
    wildcards=100_000,
    holders=100,
    idle=1_000,
    starts=5,
    clients=4_000,
    bursts=5,
    burst_bytes=32 << 20,
)
QUICK = Plan(rounds=1, deliveries=2_000, trips=100, wildcards=500, holders=5, idle=50, starts=1, clients=50, bursts=1, burst_bytes=1 << 17)


@dataclass(frozen=True, slots=True)
class Commands:
    """What is run: the two programs of the bench's own, and the daemon with the configuration file it is given, if any."""

    load: Path
    floor: Path
    daemon: tuple[str, ...]
    config: Path | None


class Bench:
    """Everything that a scenario needs: relays to start, a load to put on them, and the plan."""

    def __init__(self, plan: Plan, commands: Commands, directory: Path) -> None:
        self.plan = plan
        self.generator = Generator(commands.load)
        self._commands = commands
        self._directory = directory
        self._numbers = count(1)

    @contextlib.contextmanager
    def daemon(self, settings: str = "") -> Iterator[Relay]:
        """Run a daemon of its own, with *settings* as its configuration file if there are any."""
        path = self._directory / f"daemon-{next(self._numbers)}"
        config = self._commands.config
        if settings:
            config = path.with_suffix(".toml")
            config.write_text(settings, encoding="utf-8")
        with started(daemon_command(self._commands.daemon, path, config), path) as relay:
            yield relay

    @contextlib.contextmanager
    def floor(self) -> Iterator[Relay]:
        """Run a floor relay of its own."""
        path = self._directory / f"floor-{next(self._numbers)}"
        with started([str(self._commands.floor), str(path)], path) as relay:
            yield relay

    def flow(self, relay: Relay, *, receivers: int = 1, keys: int = 1, into_batches: bool = False, in_batches: bool = False) -> Flow:
        """Measure throughput once, with as many messages as make the plan's deliveries."""
        messages = self.plan.deliveries // receivers
        return self.generator.pump(relay, messages, receivers=receivers, keys=keys, into_batches=into_batches, in_batches=in_batches)

    def trip(self, relay: Relay) -> float:
        """Measure the median round trip once, in nanoseconds."""
        return float(self.generator.trip(relay, self.plan.trips).p50_ns)

    def churn(self, relay: Relay) -> Churn:
        """Measure clients that come and go once."""
        return self.generator.churn(relay, self.plan.clients)


def in_turns(rounds: int, value: Callable[[], Figure], reference: Callable[[], Figure]) -> tuple[list[Figure], list[Figure]]:
    """Measure both in each round, the one that was last first in the next, and return the figures of each in the order of rounds."""
    values: list[Figure] = []
    references: list[Figure] = []
    turns = [(values, value), (references, reference)]
    for _ in range(rounds):
        for figures, measure in turns:
            figures.append(measure())
        turns.reverse()
    return values, references


def one_to_one(bench: Bench) -> list[Line]:
    """1:1, one packet per send: rate, and the daemon's CPU per delivery, compared with the floor."""
    with bench.daemon() as daemon, bench.floor() as floor:
        values, references = in_turns(bench.plan.rounds, lambda: bench.flow(daemon), lambda: bench.flow(floor))
    return [
        Line("1:1: rate, to the floor's", Unit.PER_SECOND, _rates(values), Bound(0.9, at_least=True), _rates(references)),
        Line("1:1: CPU per delivery, to the floor's", Unit.NANOSECONDS, _cpus(values), Bound(1.25), _cpus(references)),
    ]


def fan_out(bench: Bench) -> list[Line]:
    """1:8 and 1:64: the daemon's CPU per delivery, compared with 1:1."""
    return [_fan_out_to(bench, receivers) for receivers in (8, 64)]


def _fan_out_to(bench: Bench, receivers: int) -> Line:
    """Measure one fan-out."""
    with bench.daemon() as daemon:
        values, references = in_turns(bench.plan.rounds, lambda: bench.flow(daemon, receivers=receivers), lambda: bench.flow(daemon))
    return Line(f"1:{receivers}: CPU per delivery, to that of 1:1", Unit.NANOSECONDS, _cpus(values), Bound(0.6), _cpus(references))


def large(bench: Bench) -> list[Line]:
    """1:1 with the largest packets, and no window: the publisher sends as fast as it is read. Rate and CPU, compared with the floor.

    Both copy each packet twice, and do little else: the rates are equal, and differ by a tenth from round to round.
    """
    messages = max(200, bench.plan.deliveries // 5)
    with bench.daemon() as daemon, bench.floor() as floor:
        flood = bench.generator.flood
        values, references = in_turns(
            bench.plan.rounds, partial(flood, daemon, messages, blocks=True), partial(flood, floor, messages, blocks=False)
        )
    name = "64 KiB without a window"
    return [
        Line(f"{name}: rate, to the floor's", Unit.PER_SECOND, _rates(values), Bound(0.95, at_least=True), _rates(references)),
        Line(f"{name}: CPU per delivery, to the floor's", Unit.NANOSECONDS, _cpus(values), Bound(1.1), _cpus(references)),
    ]


BATCHES = (
    ("1:1, batches out", 1, False, 1.0, 0.85),
    ("1:1, batches in and out", 1, True, 4.0, 0.15),
    ("1:8, batches out", 8, False, 3.0, 0.2),
    ("1:64, batches out", 64, False, 5.0, 0.1),
)
"""What is measured with batches: words, receivers, whether the publisher sends them too, and the bounds of rate and CPU."""


def batches(bench: Bench) -> list[Line]:
    """Receivers enable batches: deliveries and the CPU of each, compared with the floor at 1:1, which uses single packets."""
    lines = []
    for words, receivers, in_batches, rate, cpu in BATCHES:
        with bench.daemon() as daemon, bench.floor() as floor:
            measure = partial(bench.flow, daemon, receivers=receivers, into_batches=True, in_batches=in_batches)
            values, references = in_turns(bench.plan.rounds, measure, partial(bench.flow, floor))
        bound = Bound(rate, at_least=True)
        lines.append(Line(f"{words}: rate, to the floor's at 1:1", Unit.PER_SECOND, _rates(values), bound, _rates(references)))
        lines.append(Line(f"{words}: CPU per delivery, likewise", Unit.NANOSECONDS, _cpus(values), Bound(cpu), _cpus(references)))
    return lines


def wildcards(bench: Bench) -> list[Line]:
    """Others hold very many wildcard subscriptions: memory of each, and the change of the rate, on one key and on keys that no
    cache holds."""
    plan = bench.plan
    lines = []
    with contextlib.ExitStack() as stack:
        laden, free = stack.enter_context(bench.daemon()), stack.enter_context(bench.daemon())
        with bench.generator.held(laden, plan.holders, 1):
            before = laden.private_bytes()  # with as many connections
        stack.enter_context(bench.generator.held(laden, plan.holders, plan.wildcards // plan.holders))
        each = (laden.private_bytes() - before) / plan.wildcards
        lines.append(Line(f"{plan.wildcards:,} idle wildcards: memory for each", Unit.BYTES, (each,), Bound(200)))
        for keys, words in ((1, "one key"), (plan.deliveries, "each key new")):
            values, references = in_turns(plan.rounds, partial(bench.flow, laden, keys=keys), partial(bench.flow, free, keys=keys))
            name = f"{plan.wildcards:,} idle wildcards, {words}: rate, to that without"
            lines.append(Line(name, Unit.PER_SECOND, _rates(values), Bound(0.9, at_least=True), _rates(references)))
    return lines


def round_trip(bench: Bench) -> list[Line]:
    """There and back through the bus, each hop wakes a sleeping process: the median, compared with the floor.

    Each round has new processes: where its memory happens to lie makes one a twentieth faster than the next for all its life.
    """

    def once(start: Callable[[], contextlib.AbstractContextManager[Relay]]) -> float:
        with start() as relay:
            return bench.trip(relay)

    values, references = in_turns(2 * bench.plan.rounds, partial(once, bench.daemon), partial(once, bench.floor))
    return [Line("round trip: p50, to the floor's", Unit.MICROSECONDS, tuple(values), Bound(1.1), tuple(references))]


def churn(bench: Bench) -> list[Line]:
    """Clients connect, send `whoami`, subscribe, wait for a barrier and close: the CPU of each, compared with the floor.

    The floor makes the system calls that no bus can do without: accept4, SO_SNDBUF, SO_PEERCRED, epoll_ctl, and those of the packets.
    The bus makes three more for each client (its groups, the end of what it sent, epoll_ctl when it goes), and 9 us of the rest are rights,
    quotas, routes and the roster: 1.31 of the floor, of which the bound leaves room for the difference of rounds.
    Each round has new processes, so that no run is near the quota `connection_burst` of an owner of the bus.
    """

    def once(start: Callable[[], contextlib.AbstractContextManager[Relay]]) -> Churn:
        with start() as relay:
            return bench.churn(relay)

    values, references = in_turns(2 * bench.plan.rounds, partial(once, bench.daemon), partial(once, bench.floor))
    cpus, floor_cpus = tuple(each.cpu for each in values), tuple(each.cpu for each in references)
    return [
        Line("connect, whoami, SUB, ping, close: CPU, to the floor's", Unit.MICROSECONDS, cpus, Bound(1.4), floor_cpus),
        _churn_beside_redis(bench.plan),
    ]


LEAST_CLIENTS = 100
"""Of a run of the load that speaks several protocols."""


def _churn_beside_redis(plan: Plan) -> Line:
    """The same clients, each over a load that speaks its protocol: how many in a second, compared with Redis.

    Both spend most of the time asleep, and are equal: medians of several runs were 0.98 to 1.05.
    """
    load = CLoad(compile_load())

    def once(daemon: Daemon, protocol: str) -> float:
        with tempfile.TemporaryDirectory(prefix="sbusd-bench-") as directory, daemon.started(Path(directory)) as running:
            return load.churn(protocol, running, max(LEAST_CLIENTS, plan.clients)).rate

    values, references = in_turns(2 * plan.rounds, partial(once, SBUSD, "sbus"), partial(once, REDIS, "redis"))
    name = "connect, subscribe, close, one after another: rate, to Redis's"
    return Line(name, Unit.PER_SECOND, tuple(values), Bound(0.9, at_least=True), tuple(references))


def idle_connections(bench: Bench) -> list[Line]:
    """Others hold idle connections with a subscription each: memory of each, and the change of the round trip."""
    idle = bench.plan.idle
    with bench.daemon() as laden, bench.daemon() as free:
        bench.trip(laden)  # what the first traffic takes is not the idle connections'
        before = laden.private_bytes()
        with bench.generator.held(laden, idle, 1):
            each = (laden.private_bytes() - before) / idle
            values, references = in_turns(bench.plan.rounds, lambda: bench.trip(laden), lambda: bench.trip(free))
    name = f"{idle:,} idle connections"
    return [
        Line(f"{name}: memory for each", Unit.BYTES, (each,), Bound(4096)),
        Line(f"{name}: round trip p50, to that without", Unit.MICROSECONDS, tuple(values), Bound(1.1), tuple(references)),
    ]


STOPPED = (1, 8, 64)
"""Subscribers that do not read."""


def stopped_readers(bench: Bench) -> list[Line]:
    """Subscribers of the same user stand still: the rate of a healthy one, to that without them, and how soon a new client is served."""
    lines = []
    for stopped in STOPPED:
        with bench.daemon() as laden, bench.daemon() as free, stopped_at(laden, stopped):
            values, references = in_turns(bench.plan.rounds, partial(bench.flow, laden), partial(bench.flow, free))
            served = [newcomer(bench, laden) for _ in range(min(bench.plan.rounds, 5))]
        name = f"{stopped} stopped {'subscriber' if stopped == 1 else 'subscribers'} of the same user"
        lines.append(Line(f"{name}: rate, to that without", Unit.PER_SECOND, _rates(values), Bound(0.9, at_least=True), _rates(references)))
        lines.append(Line(f"{name}: a new client is served", Unit.MILLISECONDS, tuple(served), Bound(1e6)))
    return lines


def newcomer(bench: Bench, relay: Relay) -> float:
    """Return the median time in nanoseconds from connect until the answer to ``whoami``, while messages flow at full speed."""
    times: list[int] = []
    with ThreadPoolExecutor(1) as pool:
        flow = pool.submit(bench.flow, relay)
        while not (flow.done() and times):
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
                begun = time.monotonic_ns()
                client.connect(str(relay.path))
                client.send(b"CMSG !/cred/whoami")
                client.recv(1 << 16)
                times.append(time.monotonic_ns() - begun)
            time.sleep(0.001)
        flow.result()
    return median(times)


PACED_ROUNDS = 5


def paced(bench: Bench) -> list[Line]:
    """A paced publisher to 8 recipients, 2 of them slow and of its user, 6 of another user: its rate, to that with the slow ones alone.

    That nothing is lost, and all comes in order, is checked in each round.
    """
    messages = bench.plan.deliveries // 15
    settings = f"[limits]\nqueue_bytes = {QUEUE_BYTES}\n"
    with bench.daemon(settings) as all_of_them, bench.daemon(settings) as slow_ones:
        values, references = in_turns(
            min(bench.plan.rounds, PACED_ROUNDS),
            partial(transfer, all_of_them, messages, Recipients(slow=2, fast=6)),
            partial(transfer, slow_ones, messages, Recipients(slow=2, fast=0)),
        )
    name = "paced to 8 recipients, 2 slow, two users, nothing lost: rate, to that of the slow ones"
    return [Line(name, Unit.PER_SECOND, tuple(values), Bound(0.9, at_least=True), tuple(references))]


@contextlib.contextmanager
def stopped_at(relay: Relay, count: int) -> Iterator[None]:
    """Subscribe *count* connections to everything, and never read from them."""
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            reader = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            reader.connect(str(relay.path))
            # The answer says that the subscription is there; it is the last thing that is read.
            for packet in (b"SUB ", b"CMSG !/bus/ping\0"):
                reader.send(packet)
            if not reader.recv(1 << 16).startswith(b"CMSG !/bus/ping"):
                raise BenchError(f"the bus at {relay.path} did not answer a stopped subscriber")
        yield


BURST_PAYLOADS = (64, 1024)
"""Bytes of payload in each message of a burst."""

BURST_UID = 61_001
"""Another user, who need not have a name."""


def bursts(bench: Bench) -> list[Line]:
    """A burst at full speed from a C publisher to a healthy subscriber in Python that reads by ``batches()``: how much of it comes.

    All bursts are added up: a median would hide what one of them lost. The publisher is another user if root runs this. Only then is the
    line about what is promised, so its name says whose it is.
    """
    is_root = os.geteuid() == 0
    whose = "another user's" if is_root else "the same user's"
    lines = []
    for payload in BURST_PAYLOADS:
        count = bench.plan.burst_bytes // payload
        received = 0
        for _ in range(bench.plan.bursts):
            with bench.daemon() as daemon:
                if is_root:
                    daemon.path.parent.chmod(0o711)  # the directory is the bench's own
                    daemon.path.chmod(0o666)
                received += bench.generator.burst(daemon, count, payload, BURST_UID if is_root else 0)
        size = f"{bench.plan.burst_bytes / (1 << 20):g} MiB, {payload} B each"
        name = f"burst of {size}, {whose}: received by batches(), of all"
        lines.append(Line(name, Unit.MESSAGES, (float(received),), Bound(1.0, at_least=True), (float(count * bench.plan.bursts),)))
    return lines


def rest(bench: Bench) -> list[Line]:
    """The daemon's memory when it does nothing: as it started, and after traffic."""
    with bench.daemon() as daemon:
        fresh = daemon.proportional_bytes()
        bench.flow(daemon)
        worked = daemon.proportional_bytes()
    bound = Bound(32 << 20)
    return [
        Line("at rest, as started: memory", Unit.MEBIBYTES, (float(fresh),), bound),
        Line("at rest, after 1:1 traffic: memory", Unit.MEBIBYTES, (float(worked),), bound),
    ]


def start(bench: Bench) -> list[Line]:
    """From exec until the bus is ready, once the machine has its files in memory."""
    times = []
    for _ in range(bench.plan.starts + 1):
        with bench.daemon() as daemon:
            times.append(float(daemon.ready_ns))
    return [Line("start: exec until ready", Unit.MILLISECONDS, tuple(times[1:]), Bound(150e6))]


def command_start(bench: Bench) -> list[Line]:
    """``sbusctl whoami`` compared with the import of typer, from exec to exit; with everything compiled and in the page cache."""
    with bench.daemon() as daemon:
        whoami = [sys.executable, "-c", "from sbusctl.main import main; main()", "-a", str(daemon.path), "whoami"]
        typer = [sys.executable, "-c", "import typer"]
        _run_ns(whoami)
        values, references = in_turns(bench.plan.rounds, partial(_run_ns, whoami), partial(_run_ns, typer))
    return [Line("sbusctl whoami: exec until end, to 'import typer'", Unit.MILLISECONDS, tuple(values), Bound(1.6), tuple(references))]


def _run_ns(command: list[str]) -> float:
    """Run *command*, and return how long it took."""
    begin = time.monotonic_ns()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchError(f"{command[-1]}: {done.stderr.strip()}")
    return float(time.monotonic_ns() - begin)


SCENARIOS: dict[str, Callable[[Bench], list[Line]]] = {
    "start": start,
    "command-start": command_start,
    "rest": rest,
    "one-to-one": one_to_one,
    "large": large,
    "fan-out": fan_out,
    "batches": batches,
    "wildcards": wildcards,
    "round-trip": round_trip,
    "churn": churn,
    "idle-connections": idle_connections,
    "stopped-readers": stopped_readers,
    "bursts": bursts,
    "paced": paced,
}
"""All scenarios by the name that ``--only`` takes, in the order of the table."""


def _rates(flows: list[Flow]) -> tuple[float, ...]:
    """Return the rate of each."""
    return tuple(flow.rate for flow in flows)


def _cpus(flows: list[Flow]) -> tuple[float, ...]:
    """Return the CPU per delivery of each."""
    return tuple(flow.cpu for flow in flows)
