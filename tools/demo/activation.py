"""The bus of the demonstration, started by systemd's socket activation, which needs no booted systemd."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sbusd.client import Bus
from sbusd.protocol import controls
from tools.demo.narrator import DemoError, Narrator
from tools.demo.programs import PAUSE_SECONDS, TIMEOUT_SECONDS
from tools.stage import Stage


class ActivatedBus:
    """A socket on which a bus starts when somebody connects."""

    def __init__(self, process: subprocess.Popen[str], path: Path) -> None:
        self.path = path
        self.configuration = path.with_name("sbusd.toml")
        """Its configuration, at first an empty file."""
        self.log: list[str] = []
        """What the process has written to standard error: first systemd's words, then the bus's."""
        self._process = process
        self._listens = threading.Event()
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()

    @property
    def program(self) -> str:
        """The program that has the socket now: the listener's process becomes the bus's."""
        words = Path(f"/proc/{self._process.pid}/cmdline").read_bytes().split(b"\0")
        return " ".join(Path(word.decode()).name for word in words[:2])

    @property
    def is_started(self) -> bool:
        """Whether the bus itself runs."""
        return not self.program.startswith("systemd-socket-activate")

    def wait_until_it_listens(self) -> None:
        """Wait for the listener, and open its socket to all users."""
        if not self._listens.wait(TIMEOUT_SECONDS) or not self.path.is_socket():
            raise DemoError(f"systemd-socket-activate does not listen on {self.path}: {self.words}")
        self.path.chmod(0o666)

    def wait_for_subscriber(self, key: str, count: int = 1) -> None:
        """Wait until *count* connections would get a message with *key*, as the bus tells its owner."""
        wait_for_subscriber(self.path, key, count)

    def wait_for_tap(self, process: subprocess.Popen[str]) -> None:
        """Wait until *process* is told of everything, as the bus tells its owner."""
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
        """Wait until a connection of a user has so many subscriptions, as the bus tells its owner."""
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
        """Its log as one text."""
        return "\n".join(self.log)

    def _read_log(self) -> None:
        """Keep what the process writes, so that it never waits for a reader."""
        if self._process.stderr is None:
            return
        for line in self._process.stderr:
            self.log.append(line.rstrip("\n"))
            if line.startswith("Listening on "):
                self._listens.set()
        self._listens.set()

    def let_rules_hold(self, rules: str) -> None:
        """Have the bus read its configuration anew, which is then *rules*, and wait until it holds."""
        pause = threading.Event()
        self.configuration.write_text(rules)
        self._process.send_signal(signal.SIGHUP)
        for _ in range(int(TIMEOUT_SECONDS / PAUSE_SECONDS)):
            if any("reloaded configuration: " in line for line in list(self.log)):
                return
            pause.wait(PAUSE_SECONDS)
        raise DemoError("the bus has not reloaded its rules")

    def start_anew(self) -> None:
        """Have the bus start anew in its process, by SIGUSR2; it may not be done when this returns."""
        self._process.send_signal(signal.SIGUSR2)

    def wait_until_continued(self, times: int) -> None:
        """Wait until the bus has gone on so often where the program before it left off."""
        pause = threading.Event()
        for _ in range(int(TIMEOUT_SECONDS / PAUSE_SECONDS)):
            if sum(" connections after a " in line for line in list(self.log)) >= times:
                return
            pause.wait(PAUSE_SECONDS)
        raise DemoError(f"the bus has not restarted {times} times")

    def end(self) -> int:
        """End the bus by SIGTERM, read its log to the end, and return its status; more than once is allowed."""
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
    """Wait until *count* connections to the bus at *path* would get a message with *key*, as the bus tells its owner."""
    pause = threading.Event()
    with Bus.connect(str(path), timeout=TIMEOUT_SECONDS) as bus:
        for _ in range(int(TIMEOUT_SECONDS / PAUSE_SECONDS)):
            if len(json.loads(bus.control(controls.TRACE, key))["recipients"]) >= count:
                return
            pause.wait(PAUSE_SECONDS)
    raise DemoError(f"no client has subscribed to {key}")


@contextmanager
def activated_bus(stage: Stage, folder: Path, narrator: Narrator) -> Iterator[ActivatedBus]:
    """Have a bus started on a socket in *folder* by the first client; it has ended when the context is left."""
    path = folder / "sbus.socket"
    configuration = folder / "sbusd.toml"
    configuration.touch()
    listen = ["systemd-socket-activate", "--seqpacket", "-l", str(path), "--fdname=bus"]
    # systemd-socket-activate keeps hardly anything of its environment but what it is told to.
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
        bus.wait_until_it_listens()
        yield bus
    finally:
        bus.end()
