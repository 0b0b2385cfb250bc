"""``make bench-peers``: the same work through sbusd and through other daemons, in turns in one run; prints tables of medians and ratios.

0: all was measured that is installed; 2: nothing could be.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.bench.peers.contenders import IN_NODE, IN_PYTHON, LEGEND, NODE_TRIP, NODE_WORK, OVER_C, PUMPS, PYTHON, TRIP, Contender, in_node
from tests.bench.peers.daemons import DAEMONS, Daemon, Running
from tests.bench.peers.figures import (
    BUSY,
    CLIENT_CPU,
    CLIENTS,
    CPU,
    P50,
    P99,
    PUBLISH_CPU,
    RATE,
    RECEIVE_CPU,
    Cell,
    Metric,
    Row,
    bests,
    left_out,
    listing,
    losses,
    medians,
    peers_ahead,
    ratios,
    repetitions,
    spreads,
)
from tests.bench.peers.loading import IN_NODE as NODE_PROGRAMS
from tests.bench.peers.loading import CLoad, Flow, ProgramLoad
from tests.bench.peers.noise import Moment, machine, words
from tests.bench.peers.programs import compile_load
from tests.bench.programs import BenchError

NOT_MEASURED = 2


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured: rounds of each row, seconds of publishing in each, round trips, and clients that come and go."""

    rounds: int
    seconds: float
    trips: int
    clients: int
    python_rounds: int
    python_seconds: float
    python_trips: int


FULL = Plan(rounds=7, seconds=0.4, trips=4_000, clients=1_000, python_rounds=5, python_seconds=1.0, python_trips=1_000)
QUICK = Plan(rounds=1, seconds=0.05, trips=100, clients=100, python_rounds=1, python_seconds=0.1, python_trips=100)

Measure = Callable[[Contender, Running], tuple[dict[Metric, float], int]]
"""Measures a contender once: figures, and how many messages were lost."""


@dataclass(slots=True)
class Task:
    """A row that is still being measured."""

    row: Row
    contenders: Sequence[Contender]
    measure: Measure
    rounds: int


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the bench and return its exit status."""
    options = _parser().parse_args(arguments)
    plan = QUICK if options.quick else FULL
    before = Moment.now()
    try:
        tasks = _tasks(plan, options.only)
        with tempfile.TemporaryDirectory(prefix="sbusd-bench-") as directory, contextlib.ExitStack() as stack:
            _measure(tasks, _start({each.daemon for task in tasks for each in task.contenders}, Path(directory), stack))
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return NOT_MEASURED
    noise = words(before, Moment.now(), os.cpu_count() or 1)
    rows = [task.row for task in tasks]
    print("\n\n".join(_report(rows, noise)))
    if options.json:
        options.json.write_text(json.dumps(_record(rows, noise), indent=1) + "\n", encoding="utf-8")
    return 0 if any(cell.rounds for row in rows for cell in row.cells.values()) else NOT_MEASURED


def _parser() -> argparse.ArgumentParser:
    """Describe the command line."""
    parser = argparse.ArgumentParser(prog="bench-peers", description="Compare sbusd with other message daemons.")
    parser.add_argument("--quick", action="store_true", help="short runs: shows that the bench works, says nothing about speed")
    parser.add_argument("--only", choices=("c", "python", "node"), help="measure the C load, the Python clients or the Node clients alone")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write every round's figures there as well")
    return parser


def _tasks(plan: Plan, only: str | None) -> list[Task]:
    """Return the rows to measure, none of them begun. Raises BenchError if the load cannot be compiled."""
    tasks = []
    if only in {None, "c"}:
        load = CLoad(compile_load())

        def work(name: str) -> Measure:
            def measure(contender: Contender, running: Running) -> tuple[dict[Metric, float], int]:
                figures, lost = _flow(load.pump(contender.way, running, PUMPS[name], plan.seconds))
                if name == TRIP:
                    times = load.trip(contender.way, running, plan.trips)
                    clients = load.churn(contender.way, running, plan.clients)
                    figures |= {P50: times.p50_ns, P99: times.p99_ns, CLIENT_CPU: clients.cpu, CLIENTS: clients.rate}
                return figures, lost

            return measure

        tasks += [Task(_row(name, OVER_C), OVER_C, work(name), plan.rounds) for name in PUMPS]
    if only in {None, "python"}:
        both = _programs(ProgramLoad(), plan, has_trips=True)
        tasks.append(Task(_row(PYTHON, IN_PYTHON), IN_PYTHON, both, plan.python_rounds))
    if only in {None, "node"}:
        for name, node_work in NODE_WORK.items():
            measure = _programs(ProgramLoad(NODE_PROGRAMS, node_work), plan, has_trips=name == NODE_TRIP)
            tasks.append(Task(_row(name, in_node(node_work)), in_node(node_work), measure, plan.python_rounds))
    return tasks


def _programs(load: ProgramLoad, plan: Plan, *, has_trips: bool) -> Measure:
    """Return what measures one program after the other."""

    def measure(contender: Contender, running: Running) -> tuple[dict[Metric, float], int]:
        run = load.calls if load.work is not None and load.work.is_calls else load.pump
        flow = run(contender.way, running, plan.python_seconds)
        figures, lost = _flow(flow)
        figures[PUBLISH_CPU] = flow.publisher_cpu_ns / (flow.deliveries + flow.lost)
        figures[RECEIVE_CPU] = flow.receiver_cpu_ns / flow.deliveries
        if has_trips:
            times = load.trip(contender.way, running, plan.python_trips)
            figures |= {P50: times.p50_ns, P99: times.p99_ns}
        return figures, lost

    return measure


def _row(name: str, contenders: Sequence[Contender]) -> Row:
    """Return a row without figures; a contender whose library is not installed will have none."""
    row = Row(name, {each.name: Cell() for each in contenders})
    for each in contenders:
        if reason := each.missing():
            row.cells[each.name].give_up(reason)
    return row


def _flow(flow: Flow) -> tuple[dict[Metric, float], int]:
    """Return the figures of a throughput run."""
    return {RATE: flow.rate, CPU: flow.cpu, BUSY: flow.busy}, flow.lost


def _start(wanted: set[Daemon], directory: Path, stack: contextlib.ExitStack) -> dict[Daemon, Running | str]:
    """Start each daemon until *stack* is left; of one that cannot be started return the reason."""
    running: dict[Daemon, Running | str] = {}
    for daemon in DAEMONS:
        if daemon in wanted:
            try:
                running[daemon] = stack.enter_context(daemon.started(directory))
            except BenchError as error:
                running[daemon] = str(error)
    return running


def _measure(tasks: Sequence[Task], running: dict[Daemon, Running | str]) -> None:
    """Measure round by round: all rows and contenders in each, in the reverse of the order of the round before."""
    for number in range(max(task.rounds for task in tasks)):
        begin = time.monotonic()
        for task in tasks:
            if number < task.rounds:
                for contender in _turn(task.contenders, number):
                    _measure_once(task, contender, running[contender.daemon])
        print(f"bench: round {number + 1}: {time.monotonic() - begin:.0f} s", file=sys.stderr)


def _turn(contenders: Sequence[Contender], number: int) -> Iterator[Contender]:
    """Yield the contenders in the order of round *number*."""
    yield from reversed(contenders) if number % 2 else contenders


def _measure_once(task: Task, contender: Contender, running: Running | str) -> None:
    """Measure one contender in one row, unless there is a reason not to."""
    cell = task.row.cells[contender.name]
    if cell.reason:
        return
    if isinstance(running, str):
        cell.give_up(running)
        return
    try:
        cell.add(*task.measure(contender, running))
    except BenchError as error:
        if cell.repeated:
            cell.give_up(str(error))
            return
        # One round may fail by chance and would discard the others of the contender: report it, and try a second time only.
        cell.repeated.append(str(error))
        _measure_once(task, contender, running)


def _report(rows: Sequence[Row], noise: str) -> Iterator[str]:
    """Yield the parts of what is printed."""
    yield f"{time.strftime('%Y-%m-%d')}, on {machine()}\n{_versions()}"
    over_c = [row for row in rows if row.name in PUMPS]
    if over_c:
        yield LEGEND
        yield medians(RATE, over_c)
        yield ratios(RATE, over_c, OVER_C[0].name)
        yield bests(RATE, over_c)
        yield medians(CPU, over_c)
        yield medians(BUSY, over_c)
        for row in over_c:
            if row.name == TRIP:
                yield listing(row, (P50, P99), OVER_C[0].name)
                yield f"connect, subscribe, close: {listing(row, (CLIENT_CPU, CLIENTS), OVER_C[0].name)}"
    for row in rows:
        if row.name not in PUMPS:
            trips = (P50, P99) if row.name in {PYTHON, NODE_TRIP} else ()
            yield listing(row, (RATE, PUBLISH_CPU, RECEIVE_CPU, CPU, *trips), next(iter(row.cells)))
    yield spreads(rows)
    yield "\n".join(["where another is ahead of the best of ours:", *(peers_ahead(rows) or ["nowhere"])])
    yield "\n".join(["lost:", *(losses(rows) or ["nothing, in any row"])])
    if repeated := repetitions(rows):
        yield "\n".join(["failed once, and measured again:", *repeated])
    if reasons := left_out(rows):
        yield "\n".join(["left out:", *reasons])
    yield noise


def _versions() -> str:
    """Return the versions of all that is installed."""
    daemons = [(daemon.name, daemon.version_words()) for daemon in DAEMONS]
    packages = {name: version for contender in (*IN_PYTHON, *IN_NODE) for name, version in contender.versions().items()}
    return ", ".join(f"{name} {version}" for name, version in [*daemons, *packages.items()] if version)


def _record(rows: Sequence[Row], noise: str) -> dict[str, object]:
    """Return all rounds as JSON has them, in nanoseconds and deliveries per second."""
    return {
        "date": time.strftime("%Y-%m-%d"),
        "machine": machine(),
        "versions": _versions(),
        "noise": noise,
        "rows": [
            {
                "name": row.name,
                "contenders": {
                    name: {
                        "lost": cell.lost,
                        "reason": cell.reason,
                        "repeated": cell.repeated,
                        **{metric.name: rounds for metric, rounds in cell.rounds.items()},
                    }
                    for name, cell in row.cells.items()
                },
            }
            for row in rows
        ],
    }


if __name__ == "__main__":
    sys.exit(main())
