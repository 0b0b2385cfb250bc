"""The load generator, run against a relay; it fails loudly if a message is lost, doubled or out of order."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.bench.programs import BenchError
from tests.bench.relays import Relay, confined, load_cpus

RUN_SECONDS = 60
"""After which a run is given up; none takes a tenth of it."""
PAYLOAD_BYTES = 64
BATCH_WINDOW = 1_024
"""The same where batches are sent: of 64 messages, which the daemon handles in a turn, two on each of the ways, and as many to spare."""

LARGE_PAYLOAD_BYTES = 65_400
"""With the key nearly the largest packet."""

KEY_PATTERN = "bench/load/"
"""Takes every message of the load generator, as in message.h."""

TOGETHER = 64
"""Messages in each batch of a publisher that sends batches."""

WINDOW = 128
"""Messages in flight: two batches, one on its way in and one on its way out. A socket holds 277, so neither the daemon's queue nor the
floor's blocking is measured. Of 128 to 2,048 it is the one whose rounds differ least; the rates are the same for all."""


@dataclass(frozen=True, slots=True)
class Flow:
    """What a throughput run measured, without its warm-up."""

    deliveries: int
    wall_ns: int
    relay_cpu_ns: int

    @property
    def rate(self) -> float:
        """Deliveries per second."""
        return self.deliveries / self.wall_ns * 1e9

    @property
    def cpu(self) -> float:
        """Nanoseconds of the relay's CPU per delivery."""
        return self.relay_cpu_ns / self.deliveries


@dataclass(frozen=True, slots=True)
class Churn:
    """What a run of clients that come and go measured, without its warm-up."""

    clients: int
    wall_ns: int
    relay_cpu_ns: int

    @property
    def rate(self) -> float:
        """Clients per second, one after the other."""
        return self.clients / self.wall_ns * 1e9

    @property
    def cpu(self) -> float:
        """Nanoseconds of the relay's CPU per client."""
        return self.relay_cpu_ns / self.clients


@dataclass(frozen=True, slots=True)
class Trip:
    """Percentiles of the time from send(2) until recv(2) of the same message has returned on another socket."""

    p50_ns: int
    p99_ns: int


@dataclass(frozen=True, slots=True)
class Generator:
    """The load generator's program."""

    program: Path

    def pump(
        self, relay: Relay, messages: int, *, receivers: int = 1, keys: int = 1, into_batches: bool = False, in_batches: bool = False
    ) -> Flow:
        """Publish *messages* on *keys* keys in turns to *receivers* subscribers of them all.

        *into_batches*: these want batches; *in_batches*: the publisher sends some of :data:`TOGETHER`, and not single packets.
        """
        options = {"r": receivers, "k": keys, "b": PAYLOAD_BYTES, "B": int(into_batches), "W": WINDOW}
        if in_batches:
            options |= {"g": TOGETHER, "W": BATCH_WINDOW}
        return Flow(**self._run("pump", relay, n=messages, w=messages // 10, **options))

    def trip(self, relay: Relay, messages: int) -> Trip:
        """Send *messages* one after the other, each when the one before it has come."""
        return Trip(**self._run("trip", relay, n=messages, w=messages // 10, b=PAYLOAD_BYTES))

    def flood(self, relay: Relay, messages: int, *, blocks: bool) -> Flow:
        """Publish *messages* as large as a packet can be, without a window; *blocks*: the receiver has to ask that its publisher waits."""
        warm_up = messages // 10
        options = {"b": LARGE_PAYLOAD_BYTES, "W": 2 * messages, "L": int(blocks)}
        return Flow(**self._run("pump", relay, n=messages, w=warm_up, **options))

    def churn(self, relay: Relay, clients: int) -> Churn:
        """Let *clients* come one after the other: each asks `whoami`, subscribes, waits for a barrier, and closes."""
        return Churn(**self._run("churn", relay, n=clients, w=clients // 10))

    def burst(self, relay: Relay, messages: int, payload: int, uid: int) -> int:
        """Publish *messages* at full speed as the user *uid*, 0 for the own one, to a reader in Python; return how many that one got."""
        reader = [sys.executable, "-m", "tests.bench.reader", str(relay.path), KEY_PATTERN, str(messages)]
        with confined(load_cpus()), subprocess.Popen(reader, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            if process.stdout is None or process.stdout.readline() != "ready\n":
                raise BenchError("the reader of a burst did not begin")
            try:
                self._run("burst", relay, n=messages, b=payload, u=uid)
                answer, words = process.communicate(timeout=RUN_SECONDS)
            except (BenchError, subprocess.TimeoutExpired):
                process.kill()
                raise
        if process.returncode:
            raise BenchError(f"the reader of a burst failed: {words.strip()[-300:]}")
        found: dict[str, int] = json.loads(answer)
        if found["received"] + found["lost"] != messages:
            raise BenchError(f"of {messages} messages {found['received']} were received and {found['lost']} reported as lost")
        return found["received"]

    @contextlib.contextmanager
    def held(self, relay: Relay, connections: int, patterns: int) -> Iterator[None]:
        """Hold *connections* with *patterns* each, that no message of the bench matches; all are in force inside the block."""
        command = self._command("hold", relay, c=connections, P=patterns)
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        with process:
            output, words = process.stdout, process.stderr
            if output is None or words is None:
                raise AssertionError("the load generator was started without pipes")
            if output.read() != "ready\n":
                raise BenchError(f"{failure_text(words.read())} (while it opened {connections} connections with {patterns} patterns each)")
            yield

    def _command(self, mode: str, relay: Relay, **options: int) -> list[str]:
        """Return the command line of a run."""
        command = [str(self.program), mode, "-s", str(relay.path)]
        for name, value in {"p": relay.pid, "t": RUN_SECONDS, **options}.items():
            command += [f"-{name}", str(value)]
        return command

    def _run(self, mode: str, relay: Relay, **options: int) -> dict[str, int]:
        """Run the load generator to its end on its CPU, and return what it measured."""
        with confined(load_cpus()):
            done = subprocess.run(self._command(mode, relay, **options), capture_output=True, text=True, check=False)
        if done.returncode:
            raise BenchError(f"{mode}: {failure_text(done.stderr)}")
        result: dict[str, int] = json.loads(done.stdout)
        return result


def failure_text(words: str) -> str:
    """Return the error message of the load generator without the program's name."""
    return words.strip().removeprefix("bench: ") or "it said nothing"
