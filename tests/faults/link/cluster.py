"""Three hosts in network namespaces, each with a bus, a link and a NATS server; the servers form a cluster.

With a server on each host, a pulled cable cuts routes between servers as well as connections of links, depending on which server each
link has chosen. A single server as hub would test the second alone; and a route that breaks loses messages silently.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from pyroute2 import NetNS, netns

from sbus import Bus, SbusError
from sbus_services.link.permissions import ServerSettings, server_configuration
from tests.faults.link.lossy_cable import Impairment, complete_checksums
from tests.support.authority import Authority
from tests.support.link_programs import ENV, LinkProgram
from tests.support.nats_servers import NatsServer
from tools.netns_hosts import NetnsHosts

NAMES = ("alpha", "beta", "gamma")

WAIT_SECONDS = 120.0
"""When an event that has not come is a failure."""

_RULES = '[[export]]\nkeys = "load/"\n[[import]]\nkeys = ""\n'

_CLUSTER = """
http: "0.0.0.0:8222"
cluster {{
  name: "R"
  listen: "0.0.0.0:6222"
  routes: [{routes}]
}}
"""


class BusProcess:
    """A bus that can be killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "sbus.socket")
        self._config = folder / "sbusd.toml"
        uid = os.geteuid()
        self._config.write_text(f"[rights.vouch]\nusers = [{uid}]\n[rights.presence]\nusers = [{uid}]\n")
        self._log = folder / "sbusd.log"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> str:
        """What all starts have written."""
        return self._log.read_text(errors="replace")

    def start(self) -> None:
        """Start it, and wait until it accepts clients."""
        command = [sys.executable, "-m", "sbusd.daemon.main", "-f", "-r", "-g", "-o", "-a", self.path, "-C", str(self._config)]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=ENV, cwd="/")
        wait_until(self._accepts, lambda: f"the bus {self.path}: {self.log}")

    def kill(self) -> None:
        """End it by SIGKILL, without its state."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def _accepts(self) -> bool:
        try:
            Bus.connect(self.path).close()
        except SbusError:
            return False
        return True


class ClusterHost:
    """One host."""

    def __init__(self, name: str, bus: BusProcess, server: NatsServer, link: LinkProgram) -> None:
        self.name = name
        self.bus = bus
        self.server = server
        self.link = link

    def status(self) -> dict[str, Any]:
        """Return the state of the link. Raises SbusError."""
        with Bus.connect(self.bus.path) as bus:
            state: dict[str, Any] = json.loads(bus.call("link/status", timeout=60))
            return state

    def synchronize(self) -> None:
        """Wait until all live hosts know what the clients of this host want. Raises SbusError."""
        with Bus.connect(self.bus.path) as bus:
            bus.call("link/sync", timeout=60)

    def is_linked(self) -> bool:
        """Return whether the link is connected, and sees the other two hosts."""
        try:
            state = self.status()
        except SbusError:
            return False
        return bool(state["network"]["connected"]) and sum(host["alive"] for host in state["hosts"]) == len(NAMES) - 1

    def describe(self) -> str:
        """Return what is known about the link, for an error."""
        return f"the link of {self.name} does not see the other hosts: {self.link.log[-2_000:]}"

    def signal(self, process: str, number: signal.Signals) -> None:
        """Send a signal to its ``bus``, ``link`` or ``server``."""
        if process == "server":
            (self.server.pause if number == signal.SIGSTOP else self.server.resume)()
            return
        running = self.bus.process if process == "bus" else self.link.process
        assert running is not None
        running.send_signal(number)


class Cluster:
    """The hosts and their network; a context."""

    def __init__(self, programs: Sequence[Path], folder: Path) -> None:
        """*programs* are NATS servers, which the hosts use in turns: those of different versions form a cluster too."""
        self._stack = ExitStack()
        self._folder = folder
        self._programs = programs
        self.hosts: dict[str, ClusterHost] = {}
        self.network: NetnsHosts

    def __enter__(self) -> Cluster:
        try:
            self._begin()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def wait_for_links(self) -> None:
        """Wait until all links see each other, and know what is wanted."""
        for host in self.hosts.values():
            wait_until(host.is_linked, host.describe)
        for host in self.hosts.values():
            host.synchronize()

    @contextlib.contextmanager
    def lossy(self, name: str, impairment: Impairment, seed: int) -> Iterator[None]:
        """Impair the cable of the host *name* within the context."""
        twin = NAMES.index(name)
        port, ends, space = self.network.port(twin), (f"wire{twin}", f"inner{twin}"), self.network.bridge_namespace
        with NetNS(space) as bridge:
            bridge.link("add", ifname=ends[0], kind="veth", peer={"ifname": ends[1]})
            index = {each: bridge.link_lookup(ifname=each)[0] for each in (*ends, port, "bridge")}
            for end in ends:
                bridge.link("set", index=index[end], state="up")
            command = ["ip", "netns", "exec", space, sys.executable, "-m", "tests.faults.link.lossy_cable", port, ends[0]]
            options = [*impairment.options(), f"--seed={seed}"]
            with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, env=ENV, cwd="/") as copier:
                try:
                    assert copier.stdout is not None
                    assert copier.stdout.readline() == b"ready\n"
                    bridge.link("set", index=index[ends[1]], master=index["bridge"])
                    bridge.link("set", index=index[port], master=0)
                    yield
                finally:
                    copier.terminate()
                    copier.wait()
                    bridge.link("set", index=index[port], master=index["bridge"])
                    bridge.link("del", index=index[ends[0]])

    def _begin(self) -> None:
        authority = Authority(self._folder)
        self.network = self._stack.enter_context(NetnsHosts(*range(len(NAMES)), stem="sbus-link"))
        addresses = [self.network.address(twin).partition(":")[0] for twin in range(len(NAMES))]
        for twin in range(len(NAMES)):
            _within(self.network.name(twin), partial(complete_checksums, "eth0"))
            _within(self.network.bridge_namespace, partial(complete_checksums, self.network.port(twin)))
        for twin, name in enumerate(NAMES):
            folder = self._folder / name
            folder.mkdir()
            bus = BusProcess(folder)
            certificate = authority.sign("localhost", addresses=addresses[twin : twin + 1], file=f"{name}-server")
            settings = ServerSettings(
                "R",
                NAMES,
                listen="0.0.0.0:4222",
                certificate=str(certificate.certificate),
                key=str(certificate.key),
                authority=str(authority.certificate),
            )
            routes = ", ".join(f'"nats://{address}:6222"' for address in addresses if address != addresses[twin])
            text = server_configuration(settings) + _CLUSTER.format(routes=routes)
            server = NatsServer(self._programs[twin % len(self._programs)], folder, text, self.network.name(twin))
            servers = json.dumps([f"tls://{address}:4222" for address in addresses])
            tls = authority.settings(authority.sign(name))
            prefix = ["ip", "netns", "exec", self.network.name(twin)]
            link = LinkProgram(folder, name, bus.path, f"servers = {servers}\n{tls}{_RULES}", prefix)
            self.hosts[name] = ClusterHost(name, bus, server, link)
        for host in self.hosts.values():
            self._stack.callback(host.bus.kill)
            host.bus.start()
            self._stack.enter_context(host.server)
        for host in self.hosts.values():
            self._stack.enter_context(host.link)
        self.wait_for_links()


def wait_until(condition: Callable[[], object], what: Callable[[], str], seconds: float = WAIT_SECONDS) -> None:
    """Wait until *condition* holds. Raises AssertionError with *what* after *seconds*."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, what()
        time.sleep(0.02)


def _within(namespace: str, act: Callable[[], object]) -> None:
    """Call *act* in a thread whose network namespace is *namespace*."""
    errors: list[BaseException] = []

    def main() -> None:
        try:
            netns.setns(namespace)
            act()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=main)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
