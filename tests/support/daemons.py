"""Real daemons for tests: started, waited for, watched and ended."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import IO, Protocol

from tests.support.forked_programs import StartedProgram, start_program
from tests.support.users import User, command_as
from tests.support.wire import RawClient
from tools.stage import ROOT, Stage

READY_SECONDS = 30.0
"""When a daemon that is not ready is a failure, on a machine however slow."""

_MODULE = "sbusd.daemon.main"

_OF_THE_CALLER = ("SBUS_ADDRESS", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "NOTIFY_SOCKET", "JOURNAL_STREAM", "WATCHDOG_USEC")


class Daemon:
    """A daemon in the foreground, ready or ended."""

    def __init__(self, process: StartedProgram, path: str, errors: Path) -> None:
        self.process = process
        self.path = path
        """Path of its socket."""
        self.expected_status = 0
        """What it must end with; a test that makes it fail sets this."""
        self._errors = errors
        self._clients: list[RawClient] = []

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    @property
    def stderr(self) -> str:
        """All that it has written to standard error so far."""
        return self._errors.read_text(errors="replace")

    def client(self, user: User | None = None) -> RawClient:
        """Return a new client, connected as *user* or as the test itself; it is closed with the daemon."""
        if user is None:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            sock.connect(self.path)
        else:
            sock = user.connect(self.path)
        client = RawClient(sock)
        self._clients.append(client)
        return client

    def wait_ready(self) -> None:
        """Wait until it closes its standard output, as it does when it is ready; fail when it ends instead or takes too long."""
        stdout = self.process.stdout
        assert stdout is not None
        said = _read_to_end(stdout)
        assert said == b"", f"standard output should be empty: {said!r}"
        # A daemon that has ended has closed its standard output too; one that serves takes a connection.
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
            try:
                probe.connect(self.path)
            except OSError as error:
                self.process.kill()
                raise AssertionError(
                    f"the daemon does not serve {self.path}: {error}; status {self.process.wait()}; {self.stderr}"
                ) from None

    def stop(self) -> int:
        """End it by SIGTERM, close its clients, and return its status; more than once is allowed."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(READY_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"the daemon has not ended {READY_SECONDS} s after SIGTERM; it said: {self.stderr}") from None
        finally:
            self.close()

    def close_clients(self) -> None:
        """Close the clients."""
        while self._clients:
            self._clients.pop().close()

    def close(self) -> None:
        """Close the clients and the pipe to it."""
        self.close_clients()
        if self.process.stdout is not None:
            self.process.stdout.close()

    def check(self) -> None:
        """Stop it and fail unless it ended as it must, without a traceback."""
        status = self.stop()
        assert "Traceback" not in self.stderr, self.stderr
        assert status == self.expected_status, f"the daemon ended with {status}: {self.stderr}"


class StartDaemon(Protocol):
    """The fixture ``daemon``: each call starts one more."""

    def __call__(self, *options: str, config: str | None = None, user: User | None = None, env: dict[str, str] | None = None) -> Daemon:
        """Return a ready daemon, run with *options* behind those that place its socket, open to all users, and the configuration *config*.

        *env* is added to its environment. With *user* it runs as that one, else as the test itself. It ends with the test.
        """


def start_daemon(
    folder: Path, number: int, options: tuple[str, ...], *, stage: Stage, user: User | None, env: dict[str, str] | None
) -> Daemon:
    """Start the daemon *number* of a test with its socket in *folder*, and wait until it is ready."""
    home = folder / f"bus{number}"
    home.mkdir()
    if user is not None:
        os.chown(home, user.uid, user.gid)
    path, errors = str(home / "socket"), folder / f"stderr{number}"
    arguments = ("-f", "-g", "-o", "-a", path, *options)
    surroundings = {name: value for name, value in os.environ.items() if name not in _OF_THE_CALLER} | {"PYTHONPATH": str(ROOT)}
    process: StartedProgram
    with errors.open("wb") as stderr:
        # A library to load before others, such as a sanitizer's, needs a start of an interpreter.
        if user is None and not env and "LD_PRELOAD" not in os.environ:
            process = start_program(_MODULE, *arguments, env=surroundings, stdout=subprocess.PIPE, stderr=stderr.fileno())
        else:
            process = subprocess.Popen(
                command_as(user, [sys.executable if user is None else stage.python, "-m", _MODULE, *arguments]),
                cwd="/",
                env=(surroundings if user is None else stage.env) | (env or {}),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
            )
    daemon = Daemon(process, path, errors)
    try:
        daemon.wait_ready()
    except BaseException:
        process.kill()
        process.wait()
        daemon.close()
        raise
    return daemon


def _read_to_end(pipe: IO[bytes]) -> bytes:
    """Return what *pipe* holds until its end. Raises TimeoutError when that does not come in time."""
    parts: list[bytes] = []
    while True:
        ready, _, _ = select.select([pipe], [], [], READY_SECONDS)
        if not ready:
            raise TimeoutError(f"not ready after {READY_SECONDS} s; it wrote {b''.join(parts)!r}")
        part = os.read(pipe.fileno(), 65_536)
        if not part:
            return b"".join(parts)
        parts.append(part)
