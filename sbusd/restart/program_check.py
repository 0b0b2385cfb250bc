"""The check of the new program before a restart in place: whether it would start. Spec: sbusd(8), SIGUSR2.

A package may have installed code that does not run here, or the configuration may be wrong. So the bus first runs its own command line with
``--check-config``, and restarts only if that succeeds. Faults in drop-ins count as success, because a bus starts with them.
"""

from __future__ import annotations

import os
import subprocess

from sbus.protocol.printable import printable
from sbus_programs.systemd.service_user import CHECKS_FOR_ITSELF
from sbusd.dataplane.contract import Switch
from sbusd.state.log_file import create_memory_file

_OUTPUT_BYTES = 8_192
"""Maximum number of bytes that are read of the output of a program that failed."""

FAULTY = os.EX_DATAERR
"""Exit status of ``--check-config`` for a configuration with faults that the bus would start with. Source: sysexits.h(3head)."""


class ProgramCheck:
    """A check of the program *command*, started in *folder*; *switch* waits for its end. Call :meth:`close` at the end."""

    def __init__(self, switch: Switch, command: list[str], folder: str) -> None:
        self._switch = switch
        self._command = [*command, "--check-config"]
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._pidfd = -1
        self._output = -1
        self._result: str | None = None

    def start(self) -> None:
        """Start a check, in place of a running one; :meth:`take_result` returns its result. Never raises."""
        self.close()
        self._result = None
        try:
            self._output = create_memory_file("sbusd-check")
            self._process = subprocess.Popen(
                self._command,
                cwd=self._folder,
                env={**os.environ, CHECKS_FOR_ITSELF: "1"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._output,
            )
            self._pidfd = os.pidfd_open(self._process.pid)
            self._switch.watch(self._pidfd, self._ended)
        except OSError as error:
            self.close()
            self._result = f"cannot run the new program: {error.strerror}"

    def take_result(self) -> str | None:
        """Return the reason why the program would not start, or an empty text if it would; None without a new result."""
        result, self._result = self._result, None
        return result

    def close(self) -> None:
        """Stop a running check."""
        process, self._process = self._process, None
        if self._pidfd >= 0:
            self._switch.unwatch(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1
        if process is not None and process.poll() is None:
            process.kill()
            process.wait()
        if self._output >= 0:
            os.close(self._output)
            self._output = -1

    def _ended(self) -> None:
        """Store the result of the program that has ended."""
        if self._process is None:
            return
        status = self._process.wait()
        output = os.pread(self._output, _OUTPUT_BYTES, max(0, os.fstat(self._output).st_size - _OUTPUT_BYTES))
        self._result = "" if status in (0, FAULTY) else _reason(status, output)
        self.close()


def _reason(status: int, output: bytes) -> str:
    """Return in one line why a program failed: the last line of its output."""
    lines = [line for line in output.decode("utf-8", "replace").splitlines() if line.strip()]
    last = printable(lines[-1].removeprefix("sbusd: ")) if lines else "no output"
    how = f"by signal {-status}" if status < 0 else f"with status {status}"
    return f"the new program ended {how}: {last}"
