"""``make bench-store``: sbus-store compared with Redis streams and NATS JetStream, all with each acknowledged message on disk.

0: every bound holds; 1: one does not; 2: it could not be measured. Each server has its own Python client for asyncio, the publishers are
tasks of one process, each with a connection, and all programs share the machine. The servers take turns in each round.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.bench.programs import BenchError
from tests.bench.store.clients.contract import TIMER_SECONDS
from tests.bench.store.contenders import LOADING, client_of
from tests.bench.store.results import Results, bound_lines, table
from tests.bench.store.servers import MAKERS, reason_missing, running, version
from tests.bench.store.starting import start_seconds
from tests.bench.store.work import (
    close_all,
    connected,
    jobs_per_second,
    late_value_seconds,
    late_value_turns,
    lost_after_kill,
    puts_per_second,
    redelivery_seconds,
)

FAILED = 1
NOT_MEASURED = 2

PUBLISHERS = 16
GROUP = 64


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured."""

    rounds: int
    seconds: float
    jobs: int
    trips: int
    keys: int


FULL = Plan(rounds=3, seconds=3.0, jobs=20_000, trips=100, keys=1_000_000)
QUICK = Plan(rounds=1, seconds=0.3, jobs=300, trips=3, keys=10_000)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the bench and return its exit status."""
    parser = argparse.ArgumentParser(prog="bench-store", description="Compare sbus-store with Redis streams and NATS JetStream.")
    parser.add_argument("--quick", action="store_true", help="short runs: shows that the bench works, says nothing about speed")
    options = parser.parse_args(arguments)
    plan = QUICK if options.quick else FULL
    missing = {name: reason for name in MAKERS if (reason := reason_missing(name))}
    for name, reason in missing.items():
        print(f"bench-store: {name} is not measured: {reason}", file=sys.stderr)
    names = [name for name in MAKERS if name not in missing]
    results = Results()
    try:
        with tempfile.TemporaryDirectory(prefix="sbusd-bench-") as directory:
            folder = Path(directory)
            for number in range(plan.rounds):
                begin = time.monotonic()
                for name in names:
                    _measure(name, folder / f"{name}-{number}", plan, results)
                print(f"bench-store: round {number + 1}: {time.monotonic() - begin:.0f} s", file=sys.stderr)
            results.add("start", "sbus-store", start_seconds(folder / "start", plan.keys))
    except BenchError as error:
        print(f"bench-store: {error}", file=sys.stderr)
        return NOT_MEASURED
    print(", ".join(map(version, names)))
    print(table(results, plan.keys))
    print(f"ratio: how many times better sbus-store is; timer of the peers' jobs: {TIMER_SECONDS:g} s")
    lines = bound_lines(results)
    print("\n".join(line for line, _ in lines))
    return 0 if options.quick or all(holds for _, holds in lines) else FAILED


def _measure(name: str, folder: Path, plan: Plan, results: Results) -> None:
    """Measure one server in one round. Raises BenchError."""
    make = partial(client_of, name)
    with running(name, folder) as server:

        async def work() -> None:
            clients = await connected(make, server, 1)
            await clients[0].prepare()
            await close_all(clients)
            results.add("put", name, await puts_per_second(make, server, 1, 1, plan.seconds))
            results.add("puts", name, await puts_per_second(make, server, PUBLISHERS, 1, plan.seconds))
            results.add("groups", name, await puts_per_second(make, server, PUBLISHERS, GROUP, plan.seconds))
            results.add("jobs", name, await jobs_per_second(make, server, plan.jobs))
            results.add("value", name, await late_value_seconds(make, server, plan.trips))
            is_packets = name == "sbus-store"
            results.add("turns", name, await late_value_turns(make, server, folder, is_packets=is_packets))
            if is_packets:
                loading = partial(client_of, LOADING)
                results.add("loaded", name, await late_value_seconds(loading, server, plan.trips))
                results.add("loaded turns", name, await late_value_turns(loading, server, folder, is_packets=True))
            results.add("redelivery", name, await redelivery_seconds(make, server, name))
            acknowledged, lost = await lost_after_kill(make, server, PUBLISHERS, plan.seconds)
            results.add("acknowledged", name, acknowledged)
            results.add("lost", name, lost)

        asyncio.run(work())


if __name__ == "__main__":
    sys.exit(main())
