"""Runs a program for each job of a queue, for ``sbusctl store work``."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence

from sbusd.client import Bus, Job, StoreError
from sbusd.ctl.errors import print_error
from sbusd.ctl.formatting import human_plural
from sbusd.protocol.errors import SbusError

TERMINATE_SECONDS = 5.0
"""How long a program may take to end after SIGTERM."""


class NoJobError(SbusError):
    """The timeout expired before there was a job."""


def run_jobs(bus: Bus, queue: str, command: Sequence[str], count: int | None, timeout: float | None) -> None:
    """Run *command* for each job. Raises NoJobError if there was none at all."""
    done = 0
    while count is None or done < count:
        jobs = bus.store.take_many(queue, timeout=timeout)
        if not jobs:
            if not done or count is not None:
                raise NoJobError(f"timed out after {timeout or 0:g} s: ran {human_plural(done, 'job')} of queue {queue!r}")
            return
        with jobs[0] as job:
            status = _run(command, job)
            if status != 0:
                print_error(f"job {job.message.seq}: {command[0]} ended with status {status}; the job is tried again")
                try:
                    job.retry()
                except StoreError:
                    if not job.is_lost:
                        raise
        if job.is_lost:
            print_error(f"job {job.message.seq}: its lease ended before {command[0]} did; the job is tried again")
        done += 1


def _run(command: Sequence[str], job: Job) -> int:
    """Run *command* with the payload of *job*, and return its status. Raises SbusError if it cannot be run."""
    surroundings = os.environ | {
        "SBUS_KEY": job.key,
        "SBUS_QUEUE": job.queue,
        "SBUS_SEQ": str(job.message.seq),
        "SBUS_TRIES": str(job.tries),
        "SBUS_UID": str(job.message.uid),
    }
    try:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, env=surroundings)
    except OSError as error:
        raise SbusError(f"cannot run {command[0]!r}: {error.strerror}") from None
    with _ended(process):
        process.communicate(job.payload)
    return process.returncode


@contextlib.contextmanager
def _ended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Terminate *process* if this program is interrupted."""
    try:
        yield
    except BaseException:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(TERMINATE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(TERMINATE_SECONDS)
        raise
