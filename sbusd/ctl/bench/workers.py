"""The publisher and the subscriber of a benchmark, each in its own process, and their reports to the pool.

A worker sends :class:`Ready` when it is connected, and finally :class:`PublisherReport`, :class:`SubscriberReport` or
:class:`WorkerFailure`. Its progress is a counter in shared memory.
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
from sbusd.ctl.errors import error_text
from sbusd.ctl.exit_signals import EXIT_SIGNALS
from sbusd.protocol.errors import SbusError
from sbusd.protocol.packets import MAX_PACKET_BYTES

LEAST_BYTES = 16
"""The smallest payload: it has room for a mark and a time."""

MOST_BYTES = MAX_PACKET_BYTES - 1024
"""The largest payload: the key, with the longest prefix of credentials, must also fit into the packet."""

PLAIN, TIMED, END, FINAL = range(4)
"""The first byte of a payload: a message; a message with the time of publication; the end of this publisher; the end of all publishers,
sent by the pool to a subscriber that has lost an end mark.
"""

_STAMP = struct.Struct("=Bq")
_LOOK_EVERY = 64
"""Messages between checks of the clock and the stop flag, and updates of the counter."""
_SETTLE_TRIES = 1_000
"""More refusals than a client keeps; each ping reports one of them."""
_TIMED_EVERY = 16
"""One message of this number has a time, because reading the clock for each would slow down the publisher."""

MOST_SAMPLES = 65_536
"""Size of the sample: half a megabyte per subscriber, enough for 600 values above the 99th percentile."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One run: number of publishers and subscribers, payload size in bytes, and messages per publisher, or seconds if ``count`` is
    None."""

    clients: int
    subscribers: int
    size: int
    count: int | None
    seconds: float
    coalesce: bool = False
    """Whether publishers send several messages in one packet."""


class BenchError(SbusError):
    """A worker failed; the text names the worker and the reason."""


class TimeSample:
    """An evenly thinned sample: every nth added time is kept, and n doubles when the sample is full."""

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
    """A worker is connected, and subscribed if it is a subscriber."""


@dataclass(frozen=True, slots=True)
class PublisherReport:
    """The report of a publisher, from its first message until the bus had routed the last; times are nanoseconds of CLOCK_MONOTONIC."""

    count: int
    begin_ns: int
    end_ns: int
    cpu_seconds: float
    refusals: int
    """Number of messages that the bus refused; *refusal* is the first reason."""
    refusal: str


@dataclass(frozen=True, slots=True)
class SubscriberReport:
    """The report of a subscriber; *lost* is the number of lost messages in loss notices."""

    count: int
    last_ns: int
    cpu_seconds: float
    lost: int
    times: array[int]
    """Times from publish to receive, of a sample, in nanoseconds."""


@dataclass(frozen=True, slots=True)
class WorkerFailure:
    """A worker failed."""

    words: str


WorkerReport = Ready | PublisherReport | SubscriberReport | WorkerFailure


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """The environment of a worker: how it connects, its key, the pipe to the pool, and the shared memory."""

    connect: Callable[[], Bus]
    key: bytes
    pipe: Connection
    progress: memoryview
    """A counter for each worker, and a stop flag, which is not 0 if publishers must stop."""
    slot: int


def run_worker(work: Callable[[WorkerContext, Plan], None], context: WorkerContext, plan: Plan) -> None:
    """Run *work* in this process; exit if the process of the pool is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the pool, which collects the results
    for number in EXIT_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    _exit_with_parent()
    try:
        work(context, plan)
    except (SbusError, OSError) as error:
        context.pipe.send(WorkerFailure(error_text(error)))
    except Exception as error:  # as in sbusctl: errors are reported in one line
        context.pipe.send(WorkerFailure(f"internal error, please report it: {type(error).__name__}: {error}"))


def publish(context: WorkerContext, plan: Plan) -> None:
    """Publish as planned, or until the stop flag is set."""
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
        refusals = min(count, bus.statistics.refusals)  # the end mark may have been refused as well
        context.pipe.send(PublisherReport(count, begin_ns, end_ns, time.process_time() - begin_cpu, refusals, refusal))


def _publish_all(bus: Bus, context: WorkerContext, plan: Plan) -> int:
    """Publish, and return the number of messages."""
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
    """Wait until all messages are routed; return the first reason if the bus refused some."""
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
    """Receive until the end mark."""
    with context.connect() as bus, bus.subscribe(context.key) as subscription:
        # The benchmark measures the rate of delivery, not of discarding: publishers wait for this subscriber.
        bus.tell(b"blocking/hard/block")
        bus.ping()
        context.pipe.send(Ready())
        sample, count, lost, ends = TimeSample(), 0, 0, 0
        begin_cpu = time.process_time()
        for item in subscription.items():
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
    """Exit when the process of the pool exits for any reason: a subscriber would wait forever."""
    pool = os.getppid()

    def watch() -> None:
        while os.getppid() == pool:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
