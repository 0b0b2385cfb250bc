"""Two hosts with a bus, a Redis and a relay each, and calls from one to the other."""

from __future__ import annotations

import base64
import json
import secrets
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyroute2 import NetlinkError

from tools.demo.activation import wait_for_subscriber
from tools.demo.host_processes import HostProcesses
from tools.demo.narrator import DemoError, Narrator
from tools.demo.programs import PAUSE_SECONDS, TIMEOUT_SECONDS, Programs
from tools.netns_hosts import NetnsHosts
from tools.stage import Stage

FIRST, SECOND = 1001, 1002

_NEEDED = ("redis-server", "redis-cli")

_REDIS = {"port": "0", "appendonly": "yes", "appendfsync": "always", "save": "", "loglevel": "warning"}
"""Write everything to the disk before responding."""

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


class DemoHost:
    """A host: a network namespace with a bus, a Redis and a relay; its programs use only Redis."""

    def __init__(self, twin: int, namespace: str, folder: Path, narrator: Narrator, bus: Path | None = None) -> None:
        """*folder* is its disk; *bus* is an existing bus, None to start one."""
        self.twin = twin
        self.bus = bus or folder / "sbus.socket"
        self._has_bus = bus is not None
        self.redis = folder / "redis.sock"
        self.configuration = folder / "relay.toml"
        self._folder = folder
        self._log = folder / "relay.log"
        self._processes = HostProcesses(namespace, folder, narrator)
        self._narrator = narrator
        folder.mkdir()

    @contextmanager
    def running(self, stage: Stage) -> Iterator[None]:
        """Run its Redis, and from *stage* its relay and its bus, if it needs one."""
        redis = {"unixsocket": str(self.redis), "dir": str(self._folder), **_REDIS}
        words = ["redis-server", *(word for name, value in redis.items() for word in (f"--{name}", value))]
        relay = ["sbus-relay", "-C", str(self.configuration)]
        with self._running_bus(stage), self._processes.started(words, words, self._folder / "redis.log") as server:
            self._processes.wait(server, self._answers, f"the Redis server of host {self.twin}")
            with self._processes.started(relay, stage.program(*relay), self._log, stage.env) as process:
                self._processes.wait(process, lambda: "started relaying for host" in self.relay_log, f"the relay of host {self.twin}")
                yield

    @contextmanager
    def _running_bus(self, stage: Stage) -> Iterator[None]:
        """Run its bus, if it needs one."""
        if self._has_bus:
            yield
            return
        with self._processes.bus(stage, self.bus, f"host {self.twin}"):
            yield

    @property
    def relay_log(self) -> str:
        """The log of the relay."""
        return self._log.read_text(errors="replace")

    def redis_command(self, *words: str) -> str:
        """Run redis-cli(1), show it, and return its output."""
        command = ["redis-cli", "-s", str(self.redis), *words]
        self._narrator.command("root", command)
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=2 * TIMEOUT_SECONDS)
        self._narrator.answer(done.stdout + done.stderr)
        if done.returncode != 0:
            raise DemoError(f"redis-cli ended with status {done.returncode}")
        return done.stdout

    def receive(self, queue: str) -> dict[str, Any]:
        """Return the next message of *queue*."""
        said = self.redis_command("BLPOP", queue, f"{TIMEOUT_SECONDS:g}").splitlines()
        if len(said) != 2:
            raise DemoError(f"no message arrived in {queue}; the relay logged: {self.relay_log}")
        message: dict[str, Any] = json.loads(said[1])
        return message

    def wait_for_log(self, words: str) -> str:
        """Wait until the relay has logged a line with *words*; return the line."""
        end = time.monotonic() + TIMEOUT_SECONDS
        while (line := next((line for line in self.relay_log.splitlines() if words in line), None)) is None:
            if time.monotonic() > end:
                raise DemoError(f"the relay of host {self.twin} should have logged {words!r}: {self.relay_log}")
            threading.Event().wait(PAUSE_SECONDS)
        return line

    def _answers(self) -> bool:
        """Return whether Redis responds."""
        done = subprocess.run(["redis-cli", "-s", str(self.redis), "PING"], capture_output=True, text=True, check=False)
        return done.stdout == "PONG\n"


class HostsDemo:
    """Shows calls between the two hosts."""

    def __init__(self, bus: Path, stage: Stage, programs: Programs, narrator: Narrator, folder: Path) -> None:
        """*bus* is the bus of the first host. *stage*, which has the dependencies of relays, runs them, and *programs* too."""
        self._bus = bus
        self._stage = stage
        self._programs = programs
        self._narrator = narrator
        self._folder = folder

    def show(self) -> None:
        """Show the calls, or a remark why they are skipped."""
        narrator = self._narrator
        narrator.step("Two hosts: a program on one calls a program on the other, while the network cable is unplugged")
        if missing := [name for name in _NEEDED if shutil.which(name) is None]:
            narrator.remark(f"skipped: this machine has no {' and no '.join(missing)}")
            return
        try:
            network = NetnsHosts(FIRST, SECOND, stem="sbus-demo")
        except (OSError, NetlinkError) as error:
            narrator.remark(f"skipped: cannot create network namespaces: {error}")
            return
        with network:
            places = " and ".join(f"host {twin} at {network.address(twin)}" for twin in (FIRST, SECOND))
            narrator.remark(f"two network namespaces represent the hosts: {places}")
            first = DemoHost(FIRST, network.name(FIRST), self._folder / str(FIRST), narrator, self._bus)
            second = DemoHost(SECOND, network.name(SECOND), self._folder / str(SECOND), narrator)
            self._configure(first, second, network)
            with first.running(self._stage), second.running(self._stage):
                self._call(first, second, network)
                self._call_over_buses(first, second)
                self._programs.run(None, "sbusctl", "relay", "status", "--redis", str(first.redis))

    def _configure(self, first: DemoHost, second: DemoHost, network: NetnsHosts) -> None:
        """Configure the hosts as peers with a shared key."""
        key = self._folder / "relay.key"
        key.touch(0o600)
        key.write_text(secrets.token_hex(32))
        for host, other in ((first, second), (second, first)):
            places = {"redis": host.redis, "bus": host.bus, "address": network.address(other.twin), "key": key}
            host.configuration.write_text(_SETTINGS.format(twin=host.twin, other=other.twin, **places))

    def _call(self, caller: DemoHost, callee: DemoHost, network: NetnsHosts) -> None:
        """Call a disconnected host, connect it again, and respond."""
        narrator = self._narrator
        network.disconnect(callee.twin)
        narrator.remark(f"host {callee.twin} is unplugged; a program on host {caller.twin} calls the command greet of host {callee.twin}")
        request = {"cmd": "greet", "dst": [callee.twin], "ret": "answers", "try": 100, "dat": _encoded(f"hello from {caller.twin}")}
        caller.redis_command("RPUSH", "msgbus.system.local", json.dumps(request))
        narrator.answer(caller.wait_for_log(f"remote host {callee.twin} unreachable"))
        network.connect(callee.twin)
        narrator.remark("the cable is plugged in again: the relay retries, and a program on the other host receives the request")
        asked = callee.receive("msgbus.greet")
        said = base64.b64decode(asked["dat"]).decode()
        narrator.remark(f'the data of the request is "{said}"; the program responds, with src and dst swapped')
        answer = {**asked, "src": callee.twin, "dst": [caller.twin], "dat": _encoded(f"{said}, and back from {callee.twin}")}
        callee.redis_command("RPUSH", asked["ret"], json.dumps(answer))
        got = caller.receive("answers")
        words = base64.b64decode(got["dat"]).decode()
        if got["err"] or words != f"hello from {caller.twin}, and back from {callee.twin}":
            raise DemoError(f"unexpected response: {got}")
        narrator.remark(f'the caller received "{words}" once, although the host was unreachable when it called')

    def _call_over_buses(self, caller: DemoHost, callee: DemoHost) -> None:
        """Call a service on the bus of one host from the bus of the other."""
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
    """Return *words* in the encoding of a message."""
    return base64.b64encode(words.encode()).decode()
