"""A publisher and a subscriber of the bench, each in a process of its own, and what they tell the process that started them.

A worker says :class:`Ready` once it is connected, and at the end :class:`PublisherReport` or :class:`SubscriberReport`; or :class:`WorkerFailure`. What it has
done until now stands in a slot of memory that it shares with its pool.
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
from sbusd.ctl.output import error_text
from sbusd.protocol.errors import SbusError

PLAIN, TIMED, END, FINAL = range(4)
"""The first byte of a payload: nothing but a message; one with the time of its sending; nothing more comes from this publisher; nothing
more comes from anyone, told by the pool to a subscriber that has missed an end."""

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


class TimeSample:
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
class PublisherReport:
    """What a publisher did, from its first message until the bus had routed the last: times of CLOCK_MONOTONIC in nanoseconds."""

    count: int
    begin_ns: int
    end_ns: int
    cpu_seconds: float
    refusals: int
    """Messages that the bus refused; *refusal* says why it did so first."""
    refusal: str


@dataclass(frozen=True, slots=True)
class SubscriberReport:
    """What a subscriber received; *lost* is what the bus said that it lost."""

    count: int
    last_ns: int
    cpu_seconds: float
    lost: int
    times: array[int]
    """From sending to receiving, of a sample, in nanoseconds."""


@dataclass(frozen=True, slots=True)
class WorkerFailure:
    """A worker could not go on."""

    words: str


WorkerReport = Ready | PublisherReport | SubscriberReport | WorkerFailure


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """Where a worker works: how it connects, its key, the pipe to its pool, and what it shares with it."""

    connect: Callable[[], Bus]
    key: bytes
    pipe: Connection
    progress: memoryview
    """A number for each worker, and one behind them that is not 0 once publishers shall stop."""
    slot: int


def run_worker(work: Callable[[WorkerContext, Plan], None], context: WorkerContext, plan: Plan) -> None:
    """Do *work* in this process, which was made for it, and end the process if its pool is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the pool, which asks for what was measured
    _exit_with_parent()
    try:
        work(context, plan)
    except (SbusError, OSError) as error:
        context.pipe.send(WorkerFailure(error_text(error)))
    except Exception as error:  # as sbusctl itself: a person is told in a line
        context.pipe.send(WorkerFailure(f"internal error, please report it: {type(error).__name__}: {error}"))


def publish(context: WorkerContext, plan: Plan) -> None:
    """Publish as the plan says, or until told to stop."""
    with context.connect() as bus:
        bus.ping()
        context.pipe.send(Ready())
        context.pipe.recv()
        begin_ns, begin_cpu = time.monotonic_ns(), time.process_time()
        with bus.coalesce() if plan.coalesce else contextlib.nullcontext():
            count = _publish_all(bus, context, plan)
        bus.publish(context.key, bytes((END,)))
        refusal = _settle(bus)
        end_ns = time.monotonic_ns()
        refusals = min(count, bus.statistics.refusals)  # the end may have been refused as well
        context.pipe.send(PublisherReport(count, begin_ns, end_ns, time.process_time() - begin_cpu, refusals, refusal))


def _publish_all(bus: Bus, context: WorkerContext, plan: Plan) -> int:
    """Publish, and return how many messages it were."""
    plain = bytes(plan.size)
    rest = plain[_STAMP.size :]
    end = None if plan.count is not None else time.monotonic() + plan.seconds
    most = plan.count if plan.count is not None else 1 << 62
    for count in range(most):
        if count % _TIMED_EVERY == 0:
            if count % _LOOK_EVERY == 0:
                context.progress[context.slot] = count
                if context.progress[-1] or (end is not None and time.monotonic() >= end):
                    return count
            bus.publish(context.key, _STAMP.pack(TIMED, time.monotonic_ns()) + rest)
        else:
            bus.publish(context.key, plain)
    return most


def _settle(bus: Bus) -> str:
    """Wait until all is routed, and return why the bus refused something, if it did."""
    first = ""
    for _ in range(_SETTLE_TRIES):
        try:
            bus.ping()
        except RemoteRefusal as error:
            first = first or error_text(error)
        else:
            return first
    raise BenchError(f"cannot wait for the bus to route all messages: {first}")


def subscribe(context: WorkerContext, plan: Plan) -> None:
    """Receive until the end is told."""
    with context.connect() as bus, bus.subscribe(context.key) as subscription:
        # What is measured is how fast messages arrive, not how fast they are discarded: the publishers wait for this subscriber.
        bus.tell(b"blocking/hard/block")
        bus.ping()
        context.pipe.send(Ready())
        sample, count, lost, ends = TimeSample(), 0, 0, 0
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
                sample.add(time.monotonic_ns() - _STAMP.unpack_from(item.payload)[1])
                context.progress[context.slot] = count
        context.pipe.send(SubscriberReport(count, time.monotonic_ns(), time.process_time() - begin_cpu, lost, sample.times))


def _exit_with_parent() -> None:
    """Have this process end when the pool's has, however that ended: a subscriber would wait for ever."""
    pool = os.getppid()

    def watch() -> None:
        while os.getppid() == pool:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
