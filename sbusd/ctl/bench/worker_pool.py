"""The worker processes of one run."""

from __future__ import annotations

import mmap
import multiprocessing
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from types import TracebackType
from typing import Self

from sbusd.client import Bus
from sbusd.ctl.bench.workers import (
    FINAL,
    BenchError,
    Plan,
    PublisherReport,
    SubscriberReport,
    WorkerContext,
    WorkerFailure,
    WorkerReport,
    publish,
    run_worker,
    subscribe,
)

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
