"""The bus of the demonstration, started by systemd's socket activation, which works without a booted systemd."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sbus import Bus
from sbus.protocol import controls
from tools.demo.narrator import DemoError, Narrator
from tools.demo.programs import PAUSE_SECONDS, TIMEOUT_SECONDS
from tools.stage import Stage

RIGHTS = """
[rights]
vouch = { users = ["root"] }
deliver = { users = ["root"] }
"""
"""What the package sbus-store configures for the user of the store; here it runs as root."""


class ActivatedBus:
    """A socket on which a bus starts when a client connects."""

    def __init__(self, process: subprocess.Popen[str], path: Path) -> None:
        self.path = path
        self.configuration = path.with_name("sbusd.toml")
        """Its configuration file, initially with RIGHTS."""
        self.log: list[str] = []
        """Standard error of the process: first of systemd, then of the bus."""
        self._process = process
        self._listens = threading.Event()
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()

    @property
    def program(self) -> str:
        """The program that has the socket now: the listener executes the bus in its process."""
        words = Path(f"/proc/{self._process.pid}/cmdline").read_bytes().split(b"\0")
        return " ".join(Path(word.decode()).name for word in words[:2])

    @property
    def is_started(self) -> bool:
        """Whether the bus is running."""
        return not self.program.startswith("systemd-socket-activate")

    def wait_until_listening(self) -> None:
        """Wait for the listener, then let all users connect to its socket."""
        if not self._listens.wait(TIMEOUT_SECONDS) or not self.path.is_socket():
            raise DemoError(f"systemd-socket-activate does not listen on {self.path}: {self.words}")
        self.path.chmod(0o666)

    def wait_for_subscriber(self, key: str, count: int = 1) -> None:
        """Wait until *count* connections are subscribed to *key*, as the bus reports to its owner."""
        wait_for_subscriber(self.path, key, count)

    def wait_for_tap(self, process: subprocess.Popen[str]) -> None:
        """Wait until *process* has a tap, as the bus reports to its owner."""
        pause = threading.Event()
        with Bus.connect(str(self.path), timeout=TIMEOUT_SECONDS) as bus:
            for _ in range(int(TIMEOUT_SECONDS / PAUSE_SECONDS)):
                connections = json.loads(bus.control(controls.CONNECTIONS))["connections"]
                if any(each["tap"] and each["pid"] == process.pid for each in connections):
                    return
                if process.poll() is not None:
                    raise DemoError(f"the program ended with status {process.returncode}: {''.join(process.communicate())}")
                pause.wait(PAUSE_SECONDS)
        raise DemoError("the recorder has not started")

    def wait_for_subscriptions(self, uid: int, count: int) -> None:
        """Wait until a connection of *uid* has *count* subscriptions, as the bus reports to its owner."""
        pause = threading.Event()
        with Bus.connect(str(self.path), timeout=TIMEOUT_SECONDS) as bus:
            for _ in range(int(TIMEOUT_SECONDS / PAUSE_SECONDS)):
                connections = json.loads(bus.control(controls.CONNECTIONS))["connections"]
                if any(each["uid"] == uid and each["subscriptions"] >= count for each in connections):
                    return
                pause.wait(PAUSE_SECONDS)
        raise DemoError(f"user {uid} has not subscribed")

    @property
    def words(self) -> str:
        """The log as text."""
        return "\n".join(self.log)

    def _read_log(self) -> None:
        """Read the output of the process continuously, so that it never blocks."""
        if self._process.stderr is None:
            return
        for line in self._process.stderr:
            self.log.append(line.rstrip("\n"))
            if line.startswith("Listening on "):
                self._listens.set()
        self._listens.set()

    def reload_rules(self, rules: str) -> None:
        """Add *rules* to the configuration of the bus, and wait until the bus has reloaded it."""
        pause = threading.Event()
        self.configuration.write_text(RIGHTS + rules)
        self._process.send_signal(signal.SIGHUP)
        for _ in range(int(TIMEOUT_SECONDS / PAUSE_SECONDS)):
            if any("reloaded configuration: " in line for line in list(self.log)):
                return
            pause.wait(PAUSE_SECONDS)
        raise DemoError("the bus has not reloaded its rules")

    def restart(self) -> None:
        """Restart the bus in its process by SIGUSR2; returns before it is complete."""
        self._process.send_signal(signal.SIGUSR2)

    def wait_for_restarts(self, times: int) -> None:
        """Wait until the bus has taken over connections *times* times."""
        pause = threading.Event()
        for _ in range(int(TIMEOUT_SECONDS / PAUSE_SECONDS)):
            if sum(" connections after a " in line for line in list(self.log)) >= times:
                return
            pause.wait(PAUSE_SECONDS)
        raise DemoError(f"the bus has not restarted {times} times")

    def end(self) -> int:
        """Stop the bus by SIGTERM, read its log to the end, and return its status; may be called repeatedly."""
        if self._process.poll() is None:
            self._process.terminate()
        try:
            self._process.wait(TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(TIMEOUT_SECONDS)
        if self._process.stderr is not None:
            self._process.stderr.close()
        return self._process.returncode


def wait_for_subscriber(path: Path, key: str, count: int = 1) -> None:
    """Wait until *count* connections to the bus at *path* are subscribed to *key*, as the bus reports to its owner."""
    pause = threading.Event()
    with Bus.connect(str(path), timeout=TIMEOUT_SECONDS) as bus:
        for _ in range(int(TIMEOUT_SECONDS / PAUSE_SECONDS)):
            if len(json.loads(bus.control(controls.TRACE, key))["recipients"]) >= count:
                return
            pause.wait(PAUSE_SECONDS)
    raise DemoError(f"no client has subscribed to {key}")


@contextmanager
def activated_bus(stage: Stage, folder: Path, narrator: Narrator) -> Iterator[ActivatedBus]:
    """Create a socket in *folder* on which the first client starts a bus; stop the bus at the end of the context."""
    path = folder / "sbus.socket"
    configuration = folder / "sbusd.toml"
    configuration.write_text(RIGHTS)
    listen = ["systemd-socket-activate", "--seqpacket", "-l", str(path), "--fdname=bus"]
    # systemd-socket-activate passes on few environment variables unless asked to.
    keep = [word for name in stage.env if name not in ("PATH", "HOME") for word in ("-E", name)]
    narrator.command("root", [*listen, "sbusd", "-f", "-C", str(configuration)], background=True)
    process = subprocess.Popen(
        [*listen, *keep, *stage.program("sbusd", "-f", "-C", str(configuration))],
        cwd="/",
        env=stage.env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    bus = ActivatedBus(process, path)
    try:
        bus.wait_until_listening()
        yield bus
    finally:
        bus.end()
