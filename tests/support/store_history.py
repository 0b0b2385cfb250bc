"""What publishers and workers of a store saw, written by themselves, and whether it is a possible history."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import time
from collections import defaultdict
from collections.abc import Callable
from multiprocessing.context import ForkProcess
from pathlib import Path

from sbus import Bus, Message, SbusError, TimedOut
from sbus.sync.streams import Subscription
from tests.support.store_programs import StoreCaller

KEYS = 3
QUEUE = "work"


class History:
    """Lines of several processes in one file: each line is one event, with its time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.touch()

    def note(self, *words: object) -> None:
        """Add an event: it is in the file when this returns, even if the process is killed then."""
        line = " ".join(map(str, (time.monotonic_ns(), os.getpid(), *words)))
        with open(self._path, "ab", buffering=0) as stream:
            stream.write(f"{line}\n".encode())

    def events(self) -> list[tuple[int, int, list[str]]]:
        """Return time, process and words of all events, in order."""
        lines = [line.split() for line in self._path.read_text().splitlines()]
        return sorted((int(line[0]), int(line[1]), line[2:]) for line in lines)


def start(function: Callable[[], None]) -> ForkProcess:
    """Run *function* in a process until it is killed."""
    process = multiprocessing.get_context("fork").Process(target=function, daemon=True)
    process.start()
    return process


def publish(bus: str, history: History, name: str, stop: Path) -> None:
    """Put numbered jobs until *stop* exists; note those that are acknowledged. A put without a response is repeated with its id."""
    number = 0
    while not stop.exists():
        try:
            with StoreCaller(bus) as caller:
                while not stop.exists():
                    job = f"{name}.{os.getpid()}.{number}"
                    found = caller.call("put", [(f"work/{number % KEYS}".encode(), job.encode())], messages=[{"id": job}])
                    if "errors" not in found.head:
                        history.note("acknowledged", job, found["seqs"][0])
                        number += 1
        except (SbusError, OSError):
            time.sleep(0.02)


def work(bus: str, history: History, stop: Path) -> None:
    """Do jobs until *stop* exists; note when each begins and is acknowledged."""
    while not stop.exists():
        try:
            with StoreCaller(bus) as caller:
                _work_on(caller, history, stop)
        except (SbusError, OSError):
            time.sleep(0.02)


def _work_on(caller: StoreCaller, history: History, stop: Path) -> None:
    while not stop.exists():
        found = caller.call("take", queue="work", wait=1)
        for head, (key, payload) in zip(found["jobs"], found.messages, strict=True):
            history.note("begin", payload.decode(), head["seq"], key.decode(), head["tries"])
            while True:
                try:
                    result = caller.call("ack", queue="work", leases=[head["lease"]])
                    break
                except (SbusError, OSError):
                    if caller.bus.state != "connected":
                        history.note("left", payload.decode(), head["seq"])
                        raise
                    time.sleep(0.02)
            # A response that was lost makes the second ack of a job that is done stale.
            history.note("end", payload.decode(), head["seq"], "stale" if "errors" in result.head else "done")


def work_subscribed(bus: str, history: History, stop: Path) -> None:
    """Do as :func:`work` with ordinary messages only. Whether the store gets the last one is not known."""
    while not stop.exists():
        try:
            with StoreCaller(bus) as caller, caller.bus.subscribe(f"queue/{QUEUE}/") as jobs:
                _work_subscribed_on(caller, jobs, history, stop)
        except (SbusError, OSError):
            time.sleep(0.02)


def _work_subscribed_on(caller: StoreCaller, jobs: Subscription, history: History, stop: Path) -> None:
    while not stop.exists():
        try:
            item = jobs.receive(0.2)
        except TimedOut:
            continue
        if not isinstance(item, Message):
            continue
        _, _, lease, key = item.key.split("/", 3)
        if lease == "0":
            raise TimedOut(item.payload.decode(), 0)  # an error: subscribe again
        # A job has no number here, and no count of tries; its payload is unique.
        history.note("begin", item.payload.decode(), 0, key, 0)
        history.note("end", item.payload.decode(), 0, "sent")
        caller.bus.publish(f"store/job/{QUEUE}/{lease}/ack")


def watch(bus: str, history: History, end: Path) -> None:
    """Note the jobs that are published, and where some may be missing, until one has the payload ``end`` or *end* exists."""
    while not end.exists():
        try:
            with Bus.connect(bus) as connection, connection.subscribe("work/") as messages:
                history.note("gap")
                while not end.exists():
                    with contextlib.suppress(TimedOut):
                        item = messages.receive(0.2)
                        if not isinstance(item, Message):
                            history.note("gap")
                        elif item.payload == b"end":
                            end.touch()
                        else:
                            history.note("published", item.payload.decode())
        except (SbusError, OSError):
            time.sleep(0.02)


def check_published(history: History) -> int:
    """Check that each acknowledged job was published, or that a gap is in its place. Return the number of jobs that were published."""
    events = [words for _, _, words in history.events()]
    numbers = {words[1]: int(words[2]) for words in events if words[0] == "acknowledged"}
    seen: set[int] = set()
    highest, gaps, last_gap = 0, [], None
    for kind, *words in events:
        if kind == "gap":
            last_gap = highest if last_gap is None else last_gap
        elif kind == "published" and (number := numbers.get(words[0])) is not None:
            seen.add(number)
            if number > highest:
                if last_gap is not None:
                    gaps.append((last_gap, number))
                highest, last_gap = number, None
    missing = [number for number in numbers.values() if number not in seen and not any(low < number < high for low, high in gaps)]
    assert not missing, f"acknowledged and not published, without a gap in their place: {missing}"
    return len(seen)


def check(history: History, left: list[tuple[int, str]], tries: int, killed: dict[int, int], lease_seconds: float) -> tuple[int, int]:
    """Check a history; *left* are numbers and payloads of jobs still stored, *killed* the times at which processes were killed.

    Return the number of acknowledged puts, and of jobs that were begun. Nothing acknowledged is lost, no job has two holders, no job has
    more than *tries* tries, and the jobs of a key begin in their order. A job may begin again after most of *lease_seconds*: a message of
    a subscribed worker can be lost with the bus or the store, and a worker notes the beginning of its lease late.
    """
    numbers: dict[str, int] = {}
    begun: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
    ended: dict[tuple[str, int], list[int]] = defaultdict(list)
    keys: dict[str, str] = {}
    for at, pid, (kind, job, number, *rest) in (event for event in history.events() if event[2][0] not in {"published", "gap"}):
        if kind == "acknowledged":
            assert numbers.setdefault(job, int(number)) == int(number)
        elif kind == "begin":
            begun[job].append((at, pid, int(rest[1])))
            keys[job] = rest[0]
        else:
            ended[job, pid].append(at)
    kept = {job for _, job in left}
    missing = {job for job in numbers if job not in begun and job not in kept}
    assert not missing, f"acknowledged and lost: {missing}"
    assert len(set(numbers.values())) == len(numbers)
    for job, holders in begun.items():
        assert len(holders) <= tries, f"job {job} was tried {len(holders)} times"
        for (since, pid, first), (at, _, second) in itertools.pairwise(holders):
            ends = [end for end in (*ended[job, pid], killed.get(pid, -1)) if end >= since]
            is_late = at - since > lease_seconds * 0.5e9
            assert is_late or any(end <= at for end in ends), f"job {job} had two holders"
            assert not (first and second) or first < second, f"try {second} of job {job} after try {first}"
    for key in set(keys.values()):
        first_tries = sorted((holders[0][0], numbers[job]) for job, holders in begun.items() if keys[job] == key and job in numbers)
        order = [number for _, number in first_tries]
        assert order == sorted(order), f"the jobs of {key} began out of order"
    return len(numbers), len(begun)
