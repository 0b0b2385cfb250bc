"""Two hosts of the demonstration, each with a bus, a Redis and a relay of its own, and calls from one to the other."""

from __future__ import annotations

import base64
import json
import secrets
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyroute2 import NetlinkError

from tools.demo.activation import wait_for_subscriber
from tools.demo.narrator import DemoError, Narrator
from tools.demo.programs import PAUSE_SECONDS, TIMEOUT_SECONDS, Programs, stop
from tools.netns_hosts import Village
from tools.stage import Stage

FIRST, SECOND = 1001, 1002

_NEEDED = ("redis-server", "redis-cli")

_REDIS = {"port": "0", "appendonly": "yes", "appendfsync": "always", "save": "", "loglevel": "warning"}
"""Everything is on the disk before it is said to be there."""

_SETTINGS = """\
twin = {twin}
redis = "{redis}"
bus = "{bus}"
retry_interval = "1s"
request_timeout = "1s"

[[peers]]
twin = {other}
address = "{address}"
key_file = "{key}"
"""


class Host:
    """A twin: a network namespace, a bus, a Redis, a relay, and programs that speak with the Redis alone."""

    def __init__(self, twin: int, namespace: str, folder: Path, narrator: Narrator, bus: Path | None = None) -> None:
        """*folder* is its disk; *bus* a bus that is there, else it gets one."""
        self.twin = twin
        self.bus = bus or folder / "sbus.socket"
        self._has_bus = bus is not None
        self.redis = folder / "redis.sock"
        self.configuration = folder / "relay.toml"
        self._folder = folder
        self._log = folder / "relay.log"
        self._within = ["ip", "netns", "exec", namespace]
        self._narrator = narrator
        folder.mkdir()

    @contextmanager
    def running(self, stage: Stage) -> Iterator[None]:
        """Run its Redis, and by *stage* its bus, if it needs one, and its relay."""
        redis = {"unixsocket": str(self.redis), "dir": str(self._folder), **_REDIS}
        words = ["redis-server", *(word for name, value in redis.items() for word in (f"--{name}", value))]
        relay = ["sbus-relay", "-C", str(self.configuration)]
        with self._running_bus(stage), self._started(words, words, self._folder / "redis.log") as server:
            self._await(server, self._answers, f"the Redis server of host {self.twin}")
            with self._started(relay, stage.program(*relay), self._log, stage.env) as process:
                self._await(process, lambda: "started relaying for host" in self.told, f"the relay of host {self.twin}")
                yield

    @contextmanager
    def _running_bus(self, stage: Stage) -> Iterator[None]:
        """Run its bus, if it needs one."""
        if self._has_bus:
            yield
            return
        configuration = self._folder / "sbusd.toml"
        configuration.touch()
        words = ["sbusd", "-f", "-a", str(self.bus), "-C", str(configuration)]
        with self._started(words, stage.program(*words), self._folder / "bus.log", stage.env) as process:
            self._await(process, self.bus.is_socket, f"the bus of host {self.twin}")
            yield

    @property
    def told(self) -> str:
        """What the relay has told."""
        return self._log.read_text(errors="replace")

    def ask(self, *words: str) -> str:
        """Return what redis-cli(1) says to a command; shown."""
        command = ["redis-cli", "-s", str(self.redis), *words]
        self._narrator.command("root", command)
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=2 * TIMEOUT_SECONDS)
        self._narrator.answer(done.stdout + done.stderr)
        if done.returncode != 0:
            raise DemoError(f"redis-cli ended with status {done.returncode}")
        return done.stdout

    def fetch(self, queue: str) -> dict[str, Any]:
        """Return the next message of *queue*, which a program waits for."""
        said = self.ask("BLPOP", queue, f"{TIMEOUT_SECONDS:g}").splitlines()
        if len(said) != 2:
            raise DemoError(f"no message arrived in {queue}; the relay logged: {self.told}")
        message: dict[str, Any] = json.loads(said[1])
        return message

    def wait_told(self, words: str) -> str:
        """Return the line of the relay with *words* when it has told it."""
        end = time.monotonic() + TIMEOUT_SECONDS
        while (line := next((line for line in self.told.splitlines() if words in line), None)) is None:
            if time.monotonic() > end:
                raise DemoError(f"the relay of host {self.twin} should have logged {words!r}: {self.told}")
            threading.Event().wait(PAUSE_SECONDS)
        return line

    def _answers(self) -> bool:
        """Return whether Redis answers."""
        done = subprocess.run(["redis-cli", "-s", str(self.redis), "PING"], capture_output=True, text=True, check=False)
        return done.stdout == "PONG\n"

    @contextmanager
    def _started(self, shown: list[str], words: list[str], log: Path, env: dict[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
        """Start a program within the namespace; what it says goes into *log*."""
        self._narrator.command("root", [*self._within, *shown], background=True)
        with log.open("w") as output:
            process = subprocess.Popen(
                [*self._within, *words], cwd="/", env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output, text=True
            )
        try:
            yield process
        finally:
            stop(process)

    def _await(self, process: subprocess.Popen[str], is_ready: Callable[[], bool], what: str) -> None:
        """Wait until *process* is ready."""
        end = time.monotonic() + TIMEOUT_SECONDS
        while not is_ready():
            if process.poll() is not None or time.monotonic() > end:
                said = "".join(file.read_text(errors="replace") for file in sorted(self._folder.glob("*.log")))
                raise DemoError(f"{what} has not started, status {process.returncode}: {said}")
            threading.Event().wait(PAUSE_SECONDS)


class Hosts:
    """The scene of the two."""

    def __init__(self, bus: Path, stage: Stage, programs: Programs, narrator: Narrator, folder: Path) -> None:
        """*bus* is that of the first host. The relays are run by *stage*, which has what they need, as are *programs*."""
        self._bus = bus
        self._stage = stage
        self._programs = programs
        self._narrator = narrator
        self._folder = folder

    def show(self) -> None:
        """Show it, or say why that is left out."""
        narrator = self._narrator
        narrator.step("Two hosts: a program on one calls a program on the other, while the network cable is unplugged")
        if missing := [name for name in _NEEDED if shutil.which(name) is None]:
            narrator.remark(f"skipped: this machine has no {' and no '.join(missing)}")
            return
        try:
            village = Village(FIRST, SECOND, stem="sbus-demo")
        except (OSError, NetlinkError) as error:
            narrator.remark(f"skipped: cannot create network namespaces: {error}")
            return
        with village:
            places = " and ".join(f"host {twin} at {village.address(twin)}" for twin in (FIRST, SECOND))
            narrator.remark(f"two network namespaces represent the hosts: {places}")
            first = Host(FIRST, village.name(FIRST), self._folder / str(FIRST), narrator, self._bus)
            second = Host(SECOND, village.name(SECOND), self._folder / str(SECOND), narrator)
            self._introduce(first, second, village)
            with first.running(self._stage), second.running(self._stage):
                self._call(first, second, village)
                self._call_over_buses(first, second)
                self._programs.run(None, "sbusctl", "relay", "status", "--redis", str(first.redis))

    def _introduce(self, first: Host, second: Host, village: Village) -> None:
        """Let the two know each other by a key that they share."""
        key = self._folder / "relay.key"
        key.touch(0o600)
        key.write_text(secrets.token_hex(32))
        for host, other in ((first, second), (second, first)):
            places = {"redis": host.redis, "bus": host.bus, "address": village.address(other.twin), "key": key}
            host.configuration.write_text(_SETTINGS.format(twin=host.twin, other=other.twin, **places))

    def _call(self, caller: Host, callee: Host, village: Village) -> None:
        """Call through the pulled cable, put it back, and answer."""
        narrator = self._narrator
        village.cut(callee.twin)
        narrator.remark(f"host {callee.twin} is unplugged; a program on host {caller.twin} calls the command greet of host {callee.twin}")
        request = {"cmd": "greet", "dst": [callee.twin], "ret": "answers", "try": 100, "dat": _encoded(f"hello from {caller.twin}")}
        caller.ask("RPUSH", "msgbus.system.local", json.dumps(request))
        narrator.answer(caller.wait_told(f"remote host {callee.twin} unreachable"))
        village.join(callee.twin)
        narrator.remark("the cable is plugged in again: the relay retries, and a program on the other host receives the request")
        asked = callee.fetch("msgbus.greet")
        said = base64.b64decode(asked["dat"]).decode()
        narrator.remark(f'the data of the request is "{said}"; the program responds, with src and dst swapped')
        answer = {**asked, "src": callee.twin, "dst": [caller.twin], "dat": _encoded(f"{said}, and back from {callee.twin}")}
        callee.ask("RPUSH", asked["ret"], json.dumps(answer))
        got = caller.fetch("answers")
        words = base64.b64decode(got["dat"]).decode()
        if got["err"] or words != f"hello from {caller.twin}, and back from {callee.twin}":
            raise DemoError(f"unexpected response: {got}")
        narrator.remark(f'the caller received "{words}" once, although the host was unreachable when it called')

    def _call_over_buses(self, caller: Host, callee: Host) -> None:
        """Call from the bus of one to a service on that of the other."""
        narrator, twin = self._narrator, str(callee.twin)
        narrator.remark(
            f"from bus to bus: a service on the bus of host {twin} allows calls of host {caller.twin}, and is called from there"
        )
        for host, other in ((caller, callee), (callee, caller)):
            wait_for_subscriber(host.bus, f"relay/{other.twin}/hello")  # its relay has joined it
        script = 'echo "hello host $SBUS_CALLER_TWIN"; cat'
        words = ["--address", str(callee.bus), "--allow-twin", str(caller.twin), "--exec", "sh", "--", "-c", script]
        with self._programs.running(None, "sbusctl", "serve", "hello", *words):
            wait_for_subscriber(callee.bus, "relayed/hello")
            said = self._programs.run(None, "sbusctl", "call", "--twin", twin, "hello", "and goodbye")
        if said != f"hello host {caller.twin}\nand goodbye":
            raise DemoError(f"unexpected response of the service: {said!r}")
        narrator.remark("the service knows the calling host: the two hosts share a key")


def _encoded(words: str) -> str:
    """Return *words* as a message carries them."""
    return base64.b64encode(words.encode()).decode()
