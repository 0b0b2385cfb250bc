"""Runs the project's programs as people would, and notes what they did."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tools.demo.narrator import DemoError, Narrator
from tools.demo.users import Person
from tools.stage import Stage

TIMEOUT_SECONDS = 60.0
"""When a program that has not answered never will, on a machine however slow."""

PAUSE_SECONDS = 0.02
"""Between two looks at something that does not tell by itself."""


class Programs:
    """The programs, on one bus; every call is shown as it would be typed."""

    def __init__(self, stage: Stage, address: str, narrator: Narrator) -> None:
        self._stage = stage
        self._narrator = narrator
        self.env = stage.env | {"SBUS_ADDRESS": address}

    def run(self, person: Person | None, *words: str, status: int = 0, seconds: float = TIMEOUT_SECONDS) -> str:
        """Run the program ``words[0]`` with its arguments, as *person* or as root, and return what it wrote.

        Raises:
            DemoError: it ended with another status than *status*, or not at all.
        """
        self._narrator.command(_name(person), list(words))
        with self._started(person, words) as process:
            return self.finish(process, status=status, seconds=seconds)

    @contextmanager
    def running(self, person: Person | None, *words: str) -> Iterator[subprocess.Popen[str]]:
        """Start a program in the background, as *person* or as root; in the end it is stopped, if it has not ended."""
        self._narrator.command(_name(person), list(words), background=True)
        with self._started(person, words) as process:
            yield process

    @contextmanager
    def _started(self, person: Person | None, words: tuple[str, ...]) -> Iterator[subprocess.Popen[str]]:
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
            user=None if person is None else person.uid,
            group=None if person is None else person.gid,
            extra_groups=None if person is None else [],
        )
        try:
            yield process
        finally:
            stop(process)

    def wait_beside(self, process: subprocess.Popen[str], source: subprocess.Popen[str]) -> None:
        """Wait for the end of *process*, which depends on *source*. Raises DemoError as soon as *source* has ended before it."""
        pause = threading.Event()
        while process.poll() is None:
            if source.poll() is not None:
                raise DemoError(f"the program ended with status {source.returncode}: {''.join(source.communicate())}")
            pause.wait(PAUSE_SECONDS)

    def finish(self, process: subprocess.Popen[str], *, status: int = 0, shown: bool = True, seconds: float = TIMEOUT_SECONDS) -> str:
        """Wait for a program's own end and return what it wrote to standard output and then to standard error, *shown* or not.

        Raises:
            DemoError: it ended with another status than *status*, or not at all.
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


def _name(person: Person | None) -> str:
    """Return who is said to type."""
    return "root" if person is None else person.name


def stop(process: subprocess.Popen[str]) -> None:
    """End *process* by SIGTERM, by SIGKILL if it does not heed that, and close the pipes to it."""
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
