"""The program that is to take this process's place: whether it would start, found out before. Spec: sbusd(8), SIGUSR2.

A package may have brought new code that does not run here, or somebody a configuration that is wrong. So the same command is run
with ``--check-config`` beside the bus, which goes on meanwhile, and only when that ends well does the bus give its place up: also with
faults in drop-ins, with which a bus starts.
"""

from __future__ import annotations

import os
import subprocess

from sbusd.dataplane.contract import Switch
from sbusd.protocol.printable import printable

_SAID_BYTES = 8_192
"""How much is read of what a program says that fails."""


FAULTY = os.EX_DATAERR
"""Status of ``--check-config`` for a configuration with faults that the bus would start with. Source: sysexits.h(3head)."""


class Successor:
    """Examines the program of *command*, started in *folder*, for a bus with this *switch*. Call :meth:`close` at the end."""

    def __init__(self, switch: Switch, command: list[str], folder: str) -> None:
        self._switch = switch
        self._command = [*command, "--check-config"]
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._pidfd = -1
        self._said = -1
        self._verdict: str | None = None

    def examine(self) -> None:
        """Begin, or begin anew; :meth:`take_verdict` says what has come of it. Never raises."""
        self.close()
        self._verdict = None
        try:
            self._said = os.memfd_create("sbusd-check", os.MFD_CLOEXEC)
            self._process = subprocess.Popen(
                self._command, cwd=self._folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self._said
            )
            self._pidfd = os.pidfd_open(self._process.pid)
            self._switch.watch(self._pidfd, self._ended)
        except OSError as error:
            self.close()
            self._verdict = f"cannot run the new program: {error.strerror}"

    def take_verdict(self) -> str | None:
        """Return an empty text if the program would start, or why not; None while there is nothing new to say."""
        verdict, self._verdict = self._verdict, None
        return verdict

    def close(self) -> None:
        """End what is under way."""
        process, self._process = self._process, None
        if self._pidfd >= 0:
            self._switch.unwatch(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1
        if process is not None and process.poll() is None:
            process.kill()
            process.wait()
        if self._said >= 0:
            os.close(self._said)
            self._said = -1

    def _ended(self) -> None:
        """Take note of how the program has ended."""
        if self._process is None:
            return
        status = self._process.wait()
        said = os.pread(self._said, _SAID_BYTES, max(0, os.fstat(self._said).st_size - _SAID_BYTES))
        self._verdict = "" if status in (0, FAULTY) else _reason(status, said)
        self.close()


def _reason(status: int, said: bytes) -> str:
    """Return in one line why a program has failed: the last that it said."""
    lines = [line for line in said.decode("utf-8", "replace").splitlines() if line.strip()]
    last = printable(lines[-1].removeprefix("sbusd: ")) if lines else "no output"
    how = f"by signal {-status}" if status < 0 else f"with status {status}"
    return f"the new program ended {how}: {last}"
