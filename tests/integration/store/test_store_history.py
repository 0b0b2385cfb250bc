"""Random kills of the store, the bus, publishers and workers: what those that are left saw is a possible history."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.context import ForkProcess
from pathlib import Path

import pytest

from tests.support.fdstore import Manager
from tests.support.killed_store import command
from tests.support.relays import wait_for
from tests.support.store_history import History, check, check_published, publish, start, watch, work, work_subscribed
from tests.support.store_programs import StoreCaller, StoreProgram

TRIES = 60
ROUNDS = 14
LEASE_SECONDS = 10
SECONDS = 60.0
CONFIG = f"""
[[stream]]
name = "work"
keys = ["work/"]
[[queue]]
name = "work"
stream = "work"
tries = {TRIES}
lease = "{LEASE_SECONDS}s"
in_order = "key"
"""


class Party:
    """Publishers and workers, each a process that is started again when it was killed."""

    def __init__(self, functions: list[Callable[[], None]]) -> None:
        self._functions = functions
        self._processes: list[ForkProcess] = [start(each) for each in functions]
        self.killed: dict[int, int] = {}

    def kill(self, number: int) -> None:
        """Kill a process, and start another in its place."""
        process = self._processes[number]
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        self.killed[process.pid] = time.monotonic_ns()
        self._processes[number] = start(self._functions[number])

    def join(self) -> None:
        """Wait until all have ended by themselves."""
        for process in self._processes:
            process.join(60)
            assert not process.is_alive()

    def __len__(self) -> int:
        return len(self._processes)


def alone(bus: Manager, function: Callable[[], None]) -> None:
    """Run *function* in a process that does not keep the connections of the bus open, which it has inherited from the manager."""
    bus.empty_store()
    function()


def break_bus(bus: Manager, rng: random.Random) -> None:
    """Restart the bus: with its connections, or without them, as after a crash without a service manager."""
    kind = rng.choice(["handover", "restart", "kill", "lose"])
    if kind == "handover":
        bus.reload()
    elif kind == "restart":
        bus.restart()
    else:
        bus.end(signal.SIGKILL)
        if kind == "lose":
            bus.empty_store()  # new connections get the numbers of the former ones again
        bus.start()


def break_store(store: StoreProgram, rng: random.Random, order: Path) -> None:
    """Restart the store, at any time or between a commit and the publication; *order* is that of tests/support/killed_store.py."""
    kind = rng.choice(["kill", "kill before publication", "stop"])
    if kind == "kill before publication":
        order.write_bytes(b"MSG work/")
        assert store.process is not None
        store.process.wait(SECONDS)
    elif kind == "kill":
        store.kill()
    else:
        assert store.stop() == 0
    store.start()


@pytest.fixture
def bus(folder: Path) -> Iterator[Manager]:
    """A bus with a service manager, where the store has its rights."""
    config = folder / "sbusd.toml"
    rights = "".join(f"{right} = {{ users = [{os.geteuid()}] }}\n" for right in ("vouch", "presence", "deliver"))
    config.write_text(f"[rights]\n{rights}")
    with Manager(folder, options=("-C", str(config))) as made:
        made.start()
        yield made
        assert "Traceback" not in made.stderr, made.stderr


# With each of these seeds, all ten kinds of faults happen: publishers, both kinds of workers, and those of break_store and break_bus.
@pytest.mark.parametrize("seed", [249, 1790])
def test_kills_lose_nothing_that_was_acknowledged(bus: Manager, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    history, stop, end, order = History(tmp_path / "history"), tmp_path / "stop", tmp_path / "end", tmp_path / "order"
    with StoreProgram(tmp_path, bus.path, CONFIG, command(order)) as store:
        watcher = start(partial(alone, bus, partial(watch, bus.path, history, end)))
        publishers = [partial(publish, bus.path, history, f"p{number}", stop) for number in range(2)]
        workers = [partial(each, bus.path, history, stop) for each in (work, work, work_subscribed, work_subscribed)]
        party = Party([partial(alone, bus, each) for each in (*publishers, *workers)])
        try:
            for _ in range(ROUNDS):
                before = len(history.events())
                wait_for(lambda before=before: len(history.events()) > before + 20, "progress")  # type: ignore[misc]
                victim = rng.randrange(len(party) + 4)
                if victim < len(party):
                    party.kill(victim)
                elif victim < len(party) + 2:
                    break_store(store, rng, order)
                else:
                    break_bus(bus, rng)
        finally:
            stop.touch()
        party.join()
        store.wait_ready()
        with StoreCaller(bus.path) as caller:
            caller.put("work/0", b"end")  # published after all others
        wait_for(end.exists, "the last message")
        watcher.join(SECONDS)
        acknowledged, begun = check(history, jobs_left(bus.path), TRIES, party.killed, LEASE_SECONDS)
    assert acknowledged > 50
    assert begun > 20
    assert check_published(history) > 50


def test_a_connection_with_the_number_of_a_lost_worker_does_not_have_its_jobs(bus: Manager, tmp_path: Path) -> None:
    """A bus that lost its connections gives the same numbers again: those of workers, too."""
    with StoreProgram(tmp_path, bus.path, CONFIG.replace(f"{LEASE_SECONDS}s", "1h")) as store:
        with StoreCaller(bus.path) as worker:
            worker.put("work/a", b"job")
            (lost,) = worker.call("take", queue="work").leases
            store.kill()
            bus.end(signal.SIGKILL)
            bus.empty_store()
            bus.start()
        others = [StoreCaller(bus.path) for _ in range(40)]  # one of them has the number
        try:
            store.start()
            for each in others:
                assert "errors" in each.call("ack", queue="work", leases=[lost]).head
            assert others[0].call("take", queue="work", wait=30).payloads == [b"job"]
        finally:
            for each in others:
                each.bus.close()


def jobs_left(bus: str) -> list[tuple[int, str]]:
    """Return numbers and payloads of all jobs that are stored.

    No worker takes any now, but leases and delays end: such a job is ready, or dead, when the states before that have been listed.
    """
    left: dict[tuple[int, str], None] = {}
    with StoreCaller(bus) as caller:
        for state in ("leased", "delayed", "ready", "dead"):
            after = 0
            while (page := caller.call("peek", queue="work", state=state, after=after)).messages:
                left |= {(head["seq"], text.decode()): None for head, (_, text) in zip(page["messages"], page.messages, strict=True)}
                after = page["messages"][-1]["seq"]
    return list(left)
