"""A service of this project as a process: what the modules about blobs, links, the store and the trigger have in common."""

from __future__ import annotations

import signal
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.forked_programs import StartedProgram

STOP_SECONDS = 60.0


class ServiceProgram:
    """A program that writes its standard error into the file *log*; a context, which ends it without an error."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self.process: StartedProgram | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            status = self.stop()
            assert kind is not None or status == 0, self.log
        if kind is None:
            assert "Traceback" not in self.log, self.log
            assert "internal error" not in self.log, self.log

    @property
    def log(self) -> str:
        """What it has written to standard error."""
        return self._log.read_text(errors="replace")

    def check_running(self) -> StartedProgram:
        """Return the process, which has not ended."""
        assert self.process is not None
        assert self.process.poll() is None, self.log
        return self.process

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self.process is not None
        return self.process.pid

    def start(self) -> None:
        """Start the process."""
        raise NotImplementedError

    def stop(self) -> int:
        """End the process by SIGTERM; return its status."""
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(STOP_SECONDS)

    def kill(self) -> None:
        """End the process by SIGKILL."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(STOP_SECONDS)
