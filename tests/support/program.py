"""The program ``sbusd`` as a script starts it: with any options, in the background too, and however it ends."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.stage import ROOT

TIMEOUT_SECONDS = 30.0
"""When a program that has not ended is a failure."""

COMMAND = (sys.executable, "-m", "sbusd.daemon.main")


def environment() -> dict[str, str]:
    """Return all that the program needs of the caller's environment: nothing of systemd's, and no bus of the caller's."""
    return {"PATH": os.environ.get("PATH", os.defpath), "PYTHONPATH": str(ROOT), "LANG": "C.UTF-8"}


@dataclass(frozen=True, slots=True)
class Finished:
    """How a command ended."""

    status: int
    stdout: str
    stderr: str

    def complaint(self) -> str:
        """Return the one line on standard error; fail if it is not one line, or a traceback."""
        lines = self.stderr.splitlines()
        assert len(lines) == 1, self.stderr
        assert lines[0].startswith("sbusd: "), lines[0]
        assert self.stdout == ""
        return lines[0]


class Program:
    """Runs the program; everything that it left in the background ends with the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pid_file = folder / "pid"
        self._errors = folder / "program.stderr"
        self._pids: list[int] = []
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def stderr(self) -> str:
        """What the last command, and what it left in the background, has written to standard error so far."""
        return self._errors.read_text(errors="replace")

    def run(self, *options: str, pass_fds: Sequence[int] = (), env: dict[str, str] | None = None, umask: int = -1) -> Finished:
        """Run the program in the test's folder until the command returns."""
        with self._errors.open("wb") as errors:
            # A file and no pipe: what stays in the background keeps standard error.
            done = subprocess.run(
                [*COMMAND, *options],
                cwd=self.folder,
                env=environment() | (env or {}),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                check=False,
                timeout=TIMEOUT_SECONDS,
                pass_fds=pass_fds,
                umask=umask,
            )
        return Finished(done.returncode, done.stdout.decode(), self.stderr)

    def start(
        self, *options: str, pass_fds: Sequence[int] = (), env: dict[str, str] | None = None, stderr: int | None = None
    ) -> subprocess.Popen[bytes]:
        """Start the program with a pipe from its standard output; the test ends and waits for it, or it is killed."""
        with self._errors.open("wb") as errors:
            process = subprocess.Popen(
                [*COMMAND, *options],
                cwd=self.folder,
                env=environment() | (env or {}),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors if stderr is None else stderr,
                pass_fds=pass_fds,
            )
        self._processes.append(process)
        return process

    def run_in_background(self, *options: str, umask: int = -1) -> int:
        """Run the program with a pid file and without ``-f``, which must succeed, and return the id of the process that stays."""
        done = self.run("-p", str(self.pid_file), *options, umask=umask)
        assert done.status == 0, done
        pid = int(self.pid_file.read_text())
        self._pids.append(pid)
        return pid

    def end(self, pid: int, number: signal.Signals = signal.SIGTERM) -> None:
        """Send a signal to a process in the background, and wait for its end."""
        descriptor = os.pidfd_open(pid)
        try:
            signal.pidfd_send_signal(descriptor, number)
            ready, _, _ = select.select([descriptor], [], [], TIMEOUT_SECONDS)
            assert ready, f"process {pid} has not ended {TIMEOUT_SECONDS} s after {number.name}"
        finally:
            os.close(descriptor)
        self._pids.remove(pid)

    def close(self) -> None:
        """Stop the remaining processes: in the background, or after a failed test."""
        for process in self._processes:
            if process.poll() is None:
                process.kill()
                process.wait()
            for pipe in (process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()
        for pid in list(self._pids):
            try:
                self.end(pid)
            except ProcessLookupError:
                self._pids.remove(pid)
        assert not self._errors.exists() or "Traceback" not in self.stderr, self.stderr
