"""sbusctl(1) on a real bus, as a shell runs it."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from sbus import Bus
from sbus.protocol import controls
from tests.support.daemons import Daemon
from tests.support.users import User, command_as
from tools.stage import Stage

TIMEOUT_SECONDS = 60.0
"""When a command that has not ended is a failure."""


class Shell:
    """Runs sbusctl on one bus."""

    def __init__(self, stage: Stage, daemon: Daemon) -> None:
        self.stage = stage
        self.daemon = daemon
        self.env = {**stage.env, "SBUS_ADDRESS": daemon.path}

    def run(self, *arguments: str, user: User | None = None, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        """Run one command to its end."""
        return subprocess.run(
            command_as(user, self.stage.program("sbusctl", *arguments)),
            input=stdin,
            capture_output=True,
            check=False,
            cwd="/",
            env=self.env,
            timeout=TIMEOUT_SECONDS,
        )

    def succeed(self, *arguments: str, user: User | None = None, stdin: bytes = b"") -> bytes:
        """Run one command, which must succeed and say nothing on standard error, and return its output."""
        done = self.run(*arguments, user=user, stdin=stdin)
        assert (done.returncode, done.stderr) == (0, b"")
        return done.stdout

    def fail(self, *arguments: str, user: User | None = None, stdin: bytes = b"") -> str:
        """Run one command, which must fail with one line, and return the line."""
        done = self.run(*arguments, user=user, stdin=stdin)
        said = done.stderr.decode()
        assert done.returncode == 1, said
        assert said.startswith("sbusctl: ")
        assert said.count("\n") == 1
        assert done.stdout == b""
        return said

    @contextmanager
    def subscriber(self, key: bytes, *arguments: str, stdout: int | IO[bytes] = subprocess.PIPE) -> Iterator[subprocess.Popen[bytes]]:
        """Start ``sub`` with *arguments*, wait until it is subscribed to *key*, and stop it at the end of the context."""
        process = subprocess.Popen(
            self.stage.program("sbusctl", "sub", *arguments),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.PIPE,
            cwd="/",
            env=self.env,
        )
        try:
            self._await_recipient(key, process)
            yield process
        finally:
            process.kill()
            process.communicate()

    def _await_recipient(self, key: bytes, process: subprocess.Popen[bytes]) -> None:
        """Wait until the bus reports a recipient of *key*."""
        observer = self.daemon.client()
        end = time.monotonic() + TIMEOUT_SECONDS
        while not json.loads(observer.ask(controls.TRACE, key))["recipients"]:
            assert process.poll() is None, f"sub ended with {process.returncode}"
            assert time.monotonic() < end, "sub has not subscribed"


@contextmanager
def running(shell: Shell, *arguments: str, user: User | None = None, until: str = "") -> Iterator[subprocess.Popen[bytes]]:
    """Start a command, wait until the key *until* has a subscriber, and stop the command at the end of the context."""
    process = subprocess.Popen(
        command_as(user, shell.stage.program("sbusctl", *arguments)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd="/",
        env=shell.env,
    )
    try:
        end = time.monotonic() + TIMEOUT_SECONDS
        with Bus.connect(shell.daemon.path) as observer:
            while until and not observer.members(until):
                assert process.poll() is None, process.communicate()
                assert time.monotonic() < end, f"no client has subscribed to {until}"
        yield process
    finally:
        process.kill()
        process.communicate()


def ended(process: subprocess.Popen[bytes]) -> tuple[int, bytes, bytes]:
    """Return the status and the rest of the output of *process*, which must end by itself."""
    out, err = process.communicate(timeout=TIMEOUT_SECONDS)
    return process.returncode, out, err
