"""A publisher and a subscriber of the bench, each in a process of its own, and what they tell the process that started them.

A worker says :class:`Ready` once it is connected, and at the end :class:`Published` or :class:`Heard`; or :class:`Failed`. What it has
done until now stands in a slot of memory that it shares with its crew.
"""

from __future__ import annotations

import contextlib
import os
import signal
import struct
import threading
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection

from sbusd.client import Bus, Gap, Message, RemoteRefusal
from sbusd.ctl.bench.plan import Plan
from sbusd.ctl.output import words_of
from sbusd.protocol.errors import SbusError

PLAIN, TIMED, END, FINAL = range(4)
"""The first byte of a payload: nothing but a message; one with the time of its sending; nothing more comes from this publisher; nothing
more comes from anyone, told by the crew to a subscriber that has missed an end."""

_STAMP = struct.Struct("=Bq")
_LOOK_EVERY = 64
"""Messages between two looks at the clock, at the order to stop, and at the progress that is told."""
_SETTLE_TRIES = 1_000
"""More refusals than a client keeps; each ping tells one of them."""
_TIMED_EVERY = 16
"""Of so many messages one has a time: to read the clock for each would slow down what is measured."""


MOST_SAMPLES = 65_536
"""Kept at a time: half a megabyte for each subscriber, and enough for 600 beyond the 99th percentile."""


class BenchError(SbusError):
    """A worker failed; the text names the worker and says why."""


class Samples:
    """Every so many-th of the times that are added; the gap doubles whenever there are too many."""

    def __init__(self, most: int = MOST_SAMPLES) -> None:
        self.times = array("q")
        self._most = most
        self._gap = 1
        self._seen = 0

    def add(self, nanoseconds: int) -> None:
        """Add a time."""
        if self._seen % self._gap == 0:
            if len(self.times) >= self._most:
                self.times = self.times[::2]
                self._gap *= 2
            if self._seen % self._gap == 0:
                self.times.append(nanoseconds)
        self._seen += 1


@dataclass(frozen=True, slots=True)
class Ready:
    """A worker is connected, and subscribed if that is its work."""


@dataclass(frozen=True, slots=True)
class Published:
    """What a publisher did, from its first message until the bus had routed the last: times of CLOCK_MONOTONIC in nanoseconds."""

    count: int
    begin_ns: int
    end_ns: int
    cpu_seconds: float
    refusals: int
    """Messages that the bus refused; *refusal* says why it did so first."""
    refusal: str


@dataclass(frozen=True, slots=True)
class Heard:
    """What a subscriber received; *told_lost* is what the bus said that it lost."""

    count: int
    last_ns: int
    cpu_seconds: float
    told_lost: int
    times: array[int]
    """From sending to receiving, of a sample, in nanoseconds."""


@dataclass(frozen=True, slots=True)
class Failed:
    """A worker could not go on."""

    words: str


Report = Ready | Published | Heard | Failed


@dataclass(frozen=True, slots=True)
class Desk:
    """Where a worker works: how it connects, its key, the pipe to its crew, and what it shares with it."""

    connect: Callable[[], Bus]
    key: bytes
    pipe: Connection
    progress: memoryview
    """A number for each worker, and one behind them that is not 0 once publishers shall stop."""
    slot: int


def run_worker(work: Callable[[Desk, Plan], None], desk: Desk, plan: Plan) -> None:
    """Do *work* in this process, which was made for it, and end the process if its crew is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the crew, which asks for what was measured
    _end_with_crew()
    try:
        work(desk, plan)
    except (SbusError, OSError) as error:
        desk.pipe.send(Failed(words_of(error)))
    except Exception as error:  # as sbusctl itself: a person is told in a line
        desk.pipe.send(Failed(f"internal error, please report it: {type(error).__name__}: {error}"))


def publish(desk: Desk, plan: Plan) -> None:
    """Publish as the plan says, or until told to stop."""
    with desk.connect() as bus:
        bus.ping()
        desk.pipe.send(Ready())
        desk.pipe.recv()
        begin_ns, begin_cpu = time.monotonic_ns(), time.process_time()
        with bus.coalesce() if plan.coalesce else contextlib.nullcontext():
            count = _publish_all(bus, desk, plan)
        bus.publish(desk.key, bytes((END,)))
        refusal = _settle(bus)
        end_ns = time.monotonic_ns()
        refusals = min(count, bus.statistics.refusals)  # the end may have been refused as well
        desk.pipe.send(Published(count, begin_ns, end_ns, time.process_time() - begin_cpu, refusals, refusal))


def _publish_all(bus: Bus, desk: Desk, plan: Plan) -> int:
    """Publish, and return how many messages it were."""
    plain = bytes(plan.size)
    rest = plain[_STAMP.size :]
    end = None if plan.count is not None else time.monotonic() + plan.seconds
    most = plan.count if plan.count is not None else 1 << 62
    for count in range(most):
        if count % _TIMED_EVERY == 0:
            if count % _LOOK_EVERY == 0:
                desk.progress[desk.slot] = count
                if desk.progress[-1] or (end is not None and time.monotonic() >= end):
                    return count
            bus.publish(desk.key, _STAMP.pack(TIMED, time.monotonic_ns()) + rest)
        else:
            bus.publish(desk.key, plain)
    return most


def _settle(bus: Bus) -> str:
    """Wait until all is routed, and return why the bus refused something, if it did."""
    first = ""
    for _ in range(_SETTLE_TRIES):
        try:
            bus.ping()
        except RemoteRefusal as error:
            first = first or words_of(error)
        else:
            return first
    raise BenchError(f"cannot wait for the bus to route all messages: {first}")


def subscribe(desk: Desk, plan: Plan) -> None:
    """Receive until the end is told."""
    with desk.connect() as bus, bus.subscribe(desk.key) as subscription:
        # What is measured is how fast messages arrive, not how fast they are discarded: the publishers wait for this subscriber.
        bus.tell(b"blocking/hard/block")
        bus.ping()
        desk.pipe.send(Ready())
        samples, count, lost, ends = Samples(), 0, 0, 0
        begin_cpu = time.process_time()
        for item in subscription:
            if not isinstance(item, Message):
                lost += item.lost if isinstance(item, Gap) else 0
                continue
            mark = item.payload[0]
            if mark >= END:
                ends += 1
                if mark == FINAL or ends == plan.clients:
                    break
                continue
            count += 1
            if mark == TIMED:
                samples.add(time.monotonic_ns() - _STAMP.unpack_from(item.payload)[1])
                desk.progress[desk.slot] = count
        desk.pipe.send(Heard(count, time.monotonic_ns(), time.process_time() - begin_cpu, lost, samples.times))


def _end_with_crew() -> None:
    """Have this process end when the crew's has, however that ended: a subscriber would wait for ever."""
    crew = os.getppid()

    def watch() -> None:
        while os.getppid() == crew:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
