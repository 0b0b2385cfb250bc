"""The two relays that are compared, the daemon and the floor: started, weighed, stopped."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.bench.programs import BenchError

READY_SECONDS = 20.0
STOP_SECONDS = 20.0

DAEMON = (sys.executable, "-m", "sbusd.daemon.main")


def relay_cpus() -> set[int]:
    """The CPU that relays are kept on: the first, if there is another for the load."""
    first, *others = sorted(os.sched_getaffinity(0))
    return {first} if others else set()


def load_cpus() -> set[int]:
    """The CPU that the load is kept on: the second.

    Left to the scheduler, the three processes of a 1:1 run settle now on two, now on one CPU, and a round trip takes 60 µs or 10 µs,
    whatever the relay does. Two CPUs and no more, so that a machine with many measures the same.
    """
    _, *others = sorted(os.sched_getaffinity(0))
    return set(others[:1])


@dataclass(frozen=True, slots=True)
class Relay:
    """A running relay. *ready_ns* is the time from before its exec until it said that it was ready."""

    process: subprocess.Popen[bytes]
    path: Path
    words: Path
    ready_ns: int

    @property
    def pid(self) -> int:
        """Process id of the relay itself, never of a wrapper around it."""
        return self.process.pid

    def proportional_bytes(self) -> int:
        """Memory, with what it shares with other processes divided among them: Pss of proc_pid_smaps_rollup(5)."""
        return rollup_bytes(self._rollup(), ("Pss",))

    def private_bytes(self) -> int:
        """Memory that would be free if the relay ended: its private pages, in memory or swapped out."""
        return rollup_bytes(self._rollup(), ("Private_Clean", "Private_Dirty", "SwapPss"))

    def _rollup(self) -> str:
        """Read the sums of the relay's mappings."""
        return Path(f"/proc/{self.pid}/smaps_rollup").read_text(encoding="ascii")


def rollup_bytes(rollup: str, fields: Sequence[str]) -> int:
    """Add up *fields* of the text of a smaps_rollup file, which counts in kB of 1,024 bytes.

    Raises: KeyError if a field is not there.
    """
    rows = (line.split() for line in rollup.splitlines()[1:])
    sizes = {row[0].rstrip(":"): int(row[1]) for row in rows}
    return sum(sizes[field] for field in fields) * 1024


def daemon_command(daemon: Sequence[str], path: Path, config: Path | None) -> list[str]:
    """Return how to start the daemon at *path*, in the foreground, so that it is the process that is measured."""
    return [*daemon, "-f", "-a", str(path), *(["-C", str(config)] if config else [])]


@contextlib.contextmanager
def confined(cpus: set[int]) -> Iterator[None]:
    """Keep this process, and whatever it starts meanwhile, on *cpus*; an empty set confines nothing."""
    everywhere = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus or everywhere)  # a child inherits it before it begins
    try:
        yield
    finally:
        os.sched_setaffinity(0, everywhere)


Ready = Callable[[subprocess.Popen[bytes], Sequence[str]], None]
"""Waits until a process that was started with a command is ready."""


@contextlib.contextmanager
def started(command: Sequence[str], path: Path, ready: Ready | None = None) -> Iterator[Relay]:
    """Start a relay that listens at *path*, wait until it is ready, and stop it at the end.

    Without *ready* it is so when it closes its standard output.

    Raises: BenchError if it does not get ready, dies meanwhile, or does not stop when asked to.
    """
    words = path.with_suffix(".err")
    with words.open("wb") as errors:
        start = time.monotonic_ns()
        try:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors)
        except OSError as error:
            raise BenchError(f"cannot run {command[0]}: {error.strerror}") from None
    try:
        (ready or _wait_until_ready)(process, command)
        relay = Relay(process, path, words, time.monotonic_ns() - start)
        _check_alive(relay)
        if cpus := relay_cpus():
            os.sched_setaffinity(relay.pid, cpus)
        yield relay
        _check_alive(relay)
    finally:
        _stop(process)


def _wait_until_ready(process: subprocess.Popen[bytes], command: Sequence[str]) -> None:
    """Wait until the relay closes its standard output, as it does when it is ready or dies."""
    output = process.stdout
    if output is None:
        raise AssertionError("the relay was started without a pipe")
    with output:
        while True:
            readable, _, _ = select.select([output], [], [], READY_SECONDS)
            if not readable:
                raise BenchError(f"not ready after {READY_SECONDS:g} s: {' '.join(command)}")
            if not os.read(output.fileno(), 4096):
                return


def _check_alive(relay: Relay) -> None:
    """Fail with the relay's own last words if it has ended; one that closed its output by dying may need a moment to be a corpse."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        status = relay.process.wait(timeout=0.02)
        words = relay.words.read_text(encoding="utf-8", errors="replace").strip()
        raise BenchError(f"the relay ended with status {status}: {words[-400:] or 'it said nothing'}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the relay: politely, then not."""
    process.terminate()
    try:
        process.wait(timeout=STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise BenchError(f"process {process.pid} did not end within {STOP_SECONDS:g} s of SIGTERM") from None
