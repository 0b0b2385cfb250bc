"""Runs the project's programs as users would, and captures their output."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tools.demo.narrator import DemoError, Narrator
from tools.demo.users import DemoUser
from tools.stage import Stage

TIMEOUT_SECONDS = 60.0
"""Timeout of a program, long enough for any machine."""

PAUSE_SECONDS = 0.02
"""Polling interval."""


class Programs:
    """The programs, on one bus; every command is shown as a user would type it."""

    def __init__(self, stage: Stage, address: str, narrator: Narrator) -> None:
        self._stage = stage
        self._narrator = narrator
        # Java that compiles less: the demonstration has a few thousand records.
        self.env = stage.env | {"SBUS_ADDRESS": address, "SBUS_PIPELINE_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}

    def run(self, user: DemoUser | None, *words: str, status: int = 0, seconds: float = TIMEOUT_SECONDS) -> str:
        """Run the program ``words[0]`` with its arguments, as *user* or as root, and return its output.

        Raises:
            DemoError: its exit status differs from *status*, or it did not exit in time.
        """
        self._narrator.command(_name(user), list(words))
        with self._started(user, words) as process:
            return self.finish(process, status=status, seconds=seconds)

    @contextmanager
    def running(self, user: DemoUser | None, *words: str) -> Iterator[subprocess.Popen[str]]:
        """Start a program in the background, as *user* or as root; stop it in the end if it is still running."""
        self._narrator.command(_name(user), list(words), background=True)
        with self._started(user, words) as process:
            yield process

    @contextmanager
    def _started(self, user: DemoUser | None, words: tuple[str, ...]) -> Iterator[subprocess.Popen[str]]:
        """Start a program, and stop it in the end."""
        process = subprocess.Popen(
            self._stage.program(*words),
            cwd="/",
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            user=None if user is None else user.uid,
            group=None if user is None else user.gid,
            extra_groups=None if user is None else [],
        )
        try:
            yield process
        finally:
            stop(process)

    def wait_beside(self, process: subprocess.Popen[str], source: subprocess.Popen[str]) -> None:
        """Wait for the end of *process*, which depends on *source*. Raises DemoError if *source* ends first."""
        pause = threading.Event()
        while process.poll() is None:
            if source.poll() is not None:
                raise DemoError(f"the program ended with status {source.returncode}: {''.join(source.communicate())}")
            pause.wait(PAUSE_SECONDS)

    def finish(self, process: subprocess.Popen[str], *, status: int = 0, shown: bool = True, seconds: float = TIMEOUT_SECONDS) -> str:
        """Wait for the program to exit and return its standard output followed by its standard error, *shown* or not.

        Raises:
            DemoError: its exit status differs from *status*, or it did not exit in time.
        """
        try:
            output, errors = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            raise DemoError(f"the program has not ended within {seconds:g} s") from None
        said = output + errors
        if shown or process.returncode != status:
            self._narrator.answer(said)
        if process.returncode != status:
            raise DemoError(f"the program ended with status {process.returncode} instead of {status}")
        return said


def _name(user: DemoUser | None) -> str:
    """Return the name of the user in the prompt."""
    return "root" if user is None else user.name


def stop(process: subprocess.Popen[str]) -> None:
    """Stop *process* by SIGTERM, after a timeout by SIGKILL, and close its pipes."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
