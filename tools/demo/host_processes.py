"""Processes of a host that is a network namespace: shown as commands, and awaited."""

from __future__ import annotations

import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tools.demo.narrator import DemoError, Narrator
from tools.demo.programs import PAUSE_SECONDS, TIMEOUT_SECONDS, stop
from tools.stage import Stage


class HostProcesses:
    """Starts processes within the network namespace *namespace*; *folder* has their logs."""

    def __init__(self, namespace: str, folder: Path, narrator: Narrator) -> None:
        self._within = ["ip", "netns", "exec", namespace]
        self._folder = folder
        self._narrator = narrator

    @contextmanager
    def bus(self, stage: Stage, path: Path, name: str, settings: str = "") -> Iterator[None]:
        """Run a bus at *path* with *settings*, and wait until it accepts clients."""
        configuration = self._folder / "sbusd.toml"
        configuration.write_text(settings)
        words = ["sbusd", "-f", "-a", str(path), "-C", str(configuration)]
        with self.started(words, stage.program(*words), self._folder / "bus.log", stage.env) as process:
            self.wait(process, lambda: accepts_clients(path), f"the bus of {name}")
            yield

    @contextmanager
    def started(self, shown: list[str], words: list[str], log: Path, env: dict[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
        """Start a program, with its output in *log*; stop it at the end."""
        self._narrator.command("root", [*self._within, *shown], background=True)
        with log.open("w") as output:
            process = subprocess.Popen(
                [*self._within, *words], cwd="/", env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output, text=True
            )
        try:
            yield process
        finally:
            stop(process)

    def wait(self, process: subprocess.Popen[str], is_ready: Callable[[], bool], what: str) -> None:
        """Wait until *process* is ready. Raises DemoError, with all logs, if it ends before."""
        end = time.monotonic() + TIMEOUT_SECONDS
        while not is_ready():
            if process.poll() is not None or time.monotonic() > end:
                said = "".join(file.read_text(errors="replace") for file in sorted(self._folder.glob("*.log")))
                raise DemoError(f"{what} has not started, status {process.returncode}: {said}")
            threading.Event().wait(PAUSE_SECONDS)


def accepts_clients(path: Path) -> bool:
    """Return whether a process listens on the socket *path*, which a bus creates some time before it listens."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
        return client.connect_ex(str(path)) == 0
