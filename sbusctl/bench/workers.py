"""The publisher and the subscriber of a benchmark, each in its own process, the pool of them, and their reports to it.

A worker sends :class:`Ready` when it is connected, and finally :class:`PublisherReport`, :class:`SubscriberReport` or
:class:`WorkerFailure`. Its progress is a counter in shared memory.
"""

from __future__ import annotations

import contextlib
import mmap
import multiprocessing
import os
import signal
import struct
import threading
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from types import TracebackType
from typing import Self

from sbus import Bus, Gap, Message, RemoteRefusal
from sbus.protocol.errors import SbusError
from sbus.protocol.packets import MAX_PACKET_BYTES
from sbusctl.errors import EXIT_SIGNALS, error_text

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


READY_SECONDS = 60.0
"""Maximum time for all workers to connect: systemd may have to start the bus, and hundreds of processes may be started."""
LOOK_SECONDS = 0.2
"""Interval between updates of the progress."""
FINAL_SECONDS = 0.5
"""Interval between end marks for subscribers that have not received one, after everything was routed."""
SILENCE_SECONDS = 30.0
"""The run fails if no subscriber receives anything for this time after everything was routed."""
END_SECONDS = 5.0
"""Maximum time to wait for the end of a process that was killed, or has closed its pipe."""
_WORD_BYTES = 8


@dataclass(slots=True)
class _WorkerProcess:
    """A process, its pipe, and its last report."""

    name: str
    process: ForkProcess
    pipe: Connection
    report: WorkerReport | None = None


class WorkerPool:
    """Publishers and subscribers of one run, a context manager that kills all processes at its end."""

    def __init__(self, plan: Plan, connect: Callable[[], Bus], key: bytes) -> None:
        self._plan = plan
        self._connect = connect
        self._key = key
        # Shared with the workers by fork: a counter for each, followed by the stop flag.
        self._progress = memoryview(mmap.mmap(-1, (plan.clients + plan.subscribers + 1) * _WORD_BYTES)).cast("Q")
        self._workers: list[_WorkerProcess] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Kill all remaining processes."""
        for worker in self._workers:
            worker.process.kill()
            worker.process.join(END_SECONDS)
            worker.pipe.close()

    def start(self) -> None:
        """Start all workers, and wait until they are connected and subscribed.

        Raises:
            BenchError: a worker failed, for example because a quota was exceeded.
        """
        for number in range(self._plan.subscribers):
            self._start(f"subscriber {number + 1} of {self._plan.subscribers}", subscribe)
        self._await(self._workers, READY_SECONDS, "connected")
        publishers = [self._start(f"publisher {number + 1} of {self._plan.clients}", publish) for number in range(self._plan.clients)]
        self._await(publishers, READY_SECONDS, "connected")

    def run(self, show: Callable[[int, int], None]) -> tuple[list[PublisherReport], list[SubscriberReport]]:
        """Start publishing, and return all reports. *show* is called repeatedly with the numbers of published and received messages.

        Raises:
            BenchError: a worker failed.
        """
        publishers, subscribers = self._workers[self._plan.subscribers :], self._workers[: self._plan.subscribers]
        for worker in self._workers:
            worker.report = None
        for worker in publishers:
            worker.pipe.send(None)
        while any(worker.report is None for worker in publishers):
            self._collect(self._workers, LOOK_SECONDS)
            show(*self._sums())
        self._drain(subscribers, show)
        return (
            [worker.report for worker in publishers if isinstance(worker.report, PublisherReport)],
            [worker.report for worker in subscribers if isinstance(worker.report, SubscriberReport)],
        )

    def stop(self) -> None:
        """Stop the publishers; :meth:`run` then returns the results so far. Signal handlers may call it."""
        self._progress[-1] = 1

    def _start(self, name: str, work: Callable[[WorkerContext, Plan], None]) -> _WorkerProcess:
        """Start a worker."""
        fork = multiprocessing.get_context("fork")
        ours, theirs = fork.Pipe()
        context = WorkerContext(self._connect, self._key, theirs, self._progress, len(self._workers))
        process = fork.Process(target=run_worker, args=(work, context, self._plan), daemon=True)
        process.start()
        theirs.close()
        worker = _WorkerProcess(name, process, ours)
        self._workers.append(worker)
        return worker

    def _await(self, workers: Sequence[_WorkerProcess], seconds: float, what: str) -> None:
        """Wait for a report of each of *workers*. Raises BenchError after *seconds*."""
        end = time.monotonic() + seconds
        while missing := [worker for worker in workers if worker.report is None]:
            if time.monotonic() > end:
                raise BenchError(f"{missing[0].name}: not {what} within {seconds:g} s")
            self._collect(missing, LOOK_SECONDS)

    def _collect(self, workers: Sequence[_WorkerProcess], seconds: float) -> None:
        """Collect reports of *workers* for *seconds*. Raises BenchError if one failed or exited."""
        pipes = {worker.pipe: worker for worker in workers if not isinstance(worker.report, PublisherReport | SubscriberReport)}
        for ready in wait(list(pipes), seconds):
            worker = pipes[ready]  # type: ignore[index]  # wait() returns some of its arguments
            try:
                worker.report = worker.pipe.recv()
            except EOFError:
                worker.process.join(END_SECONDS)
                raise BenchError(f"{worker.name}: exited unexpectedly with status {worker.process.exitcode}") from None
            if isinstance(worker.report, WorkerFailure):
                raise BenchError(f"{worker.name}: {worker.report.words}")

    def _drain(self, subscribers: Sequence[_WorkerProcess], show: Callable[[int, int], None]) -> None:
        """Wait for the subscribers, which may have a backlog; repeat the end mark for those that lost it."""
        received, since = -1, time.monotonic()
        with self._connect() as bus:
            while missing := [worker for worker in subscribers if worker.report is None]:
                self._collect(missing, FINAL_SECONDS)
                bus.publish(self._key, bytes((FINAL,)))
                bus.ping()
                sums = self._sums()
                show(*sums)
                if sums[1] != received:
                    received, since = sums[1], time.monotonic()
                elif time.monotonic() - since > SILENCE_SECONDS:
                    raise BenchError(f"{missing[0].name}: received nothing for {SILENCE_SECONDS:g} s, and did not finish")

    def _sums(self) -> tuple[int, int]:
        """Return the numbers of published and received messages, at least."""
        received = sum(self._progress[: self._plan.subscribers])
        return sum(self._progress[self._plan.subscribers : -1]), received
