"""Three hosts whose buses are linked by a NATS server: network events of all appear on one, also after its cable was pulled."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from pyroute2 import NetlinkError

from sbus import Bus, SbusError, TimedOut
from sbus_services.link.permissions import ServerSettings, server_configuration
from tools.demo.activation import wait_for_subscriber
from tools.demo.host_processes import HostProcesses
from tools.demo.narrator import DemoError, Narrator
from tools.demo.programs import PAUSE_SECONDS, TIMEOUT_SECONDS, Programs
from tools.netns_hosts import NetnsHosts
from tools.stage import Stage

NAMES = ("alpha", "beta", "gamma")

_NEEDED = ("nats-server", "openssl")

_PORT = 4222

_BUS = "[rights.vouch]\nusers = [0]\n[rights.presence]\nusers = [0]\n"

_LINK = """\
realm = "demo"
host = "{name}"
bus = "{bus}"
servers = ["tls://{server}:{port}"]

[tls]
certificate = "{folder}/{name}.pem"
key = "{folder}/{name}.key"
authority = "{folder}/authority.pem"

[[export]]
keys = "net/"

[[import]]
keys = ""
"""


class LinkedHost:
    """A host with a bus, a feed of its network, and a link."""

    def __init__(self, name: str, namespace: str, folder: Path, narrator: Narrator) -> None:
        self.name = name
        self.namespace = namespace
        self.bus = folder / "sbus.socket"
        self.processes = HostProcesses(namespace, folder, narrator)
        self._folder = folder
        self._log = folder / "link.log"
        folder.mkdir()

    @contextmanager
    def running(self, stage: Stage, settings: str) -> Iterator[None]:
        """Run its bus, its feed, and a link with *settings*."""
        configuration = self._folder / "link.toml"
        configuration.write_text(settings)
        link = ["sbus-link", "-C", str(configuration)]
        with (
            self.processes.bus(stage, self.bus, f"host {self.name}", _BUS),
            self._feed(stage),
            self.processes.started(link, stage.program(*link), self._log, stage.env) as process,
        ):
            self.processes.wait(process, lambda: self._lives(()) is not None, f"the link of host {self.name}")
            yield

    @contextmanager
    def _feed(self, stage: Stage) -> Iterator[None]:
        """Run the feed, whose snapshot ends when it is ready."""
        words = ["sbus-feed", "netlink", "--address", str(self.bus)]
        with (
            Bus.connect(str(self.bus), timeout=TIMEOUT_SECONDS) as bus,
            bus.subscribe("net/snapshot/end") as snapshot,
            self.processes.started(words, stage.program(*words), self._folder / "feed.log", stage.env) as process,
        ):

            def has_ended() -> bool:
                with contextlib.suppress(TimedOut):
                    return snapshot.receive(timeout=PAUSE_SECONDS) is not None
                return False

            self.processes.wait(process, has_ended, f"the feed of host {self.name}")
            yield

    def wait_for(self, *names: str) -> None:
        """Wait until the link sees exactly these other hosts alive."""
        _wait(lambda: self._lives(names) is True, lambda: f"host {self.name} should see {names}: {self._log.read_text()}")

    def wait_for_interest_of(self, name: str) -> None:
        """Wait until the link knows what the host *name* wants."""

        def is_known() -> bool:
            state = self._state() or {"hosts": []}
            return any(host["name"] == name and host["alive"] and host["patterns_there"] for host in state["hosts"])

        _wait(is_known, lambda: f"host {self.name} should know what {name} wants: {self._log.read_text()}")

    def _lives(self, names: tuple[str, ...]) -> bool | None:
        """Return whether the link sees exactly *names* alive, None if it does not answer."""
        state = self._state()
        return None if state is None else sorted(host["name"] for host in state["hosts"] if host["alive"]) == sorted(names)

    def _state(self) -> dict[str, Any] | None:
        """Return the state of the link, None if it does not answer."""
        try:
            with Bus.connect(str(self.bus), timeout=TIMEOUT_SECONDS) as bus:
                state: dict[str, Any] = json.loads(bus.call("link/status", timeout=TIMEOUT_SECONDS))
        except SbusError:
            return None
        return state


class LinkedHostsDemo:
    """Shows publish and subscribe between the hosts."""

    def __init__(self, stage: Stage, programs: Programs, narrator: Narrator, folder: Path) -> None:
        """*stage*, which has the dependencies of links, runs them, and *programs* too."""
        self._stage = stage
        self._programs = programs
        self._narrator = narrator
        self._folder = folder / "linked"

    def show(self) -> None:
        """Show it, or a remark why it is skipped."""
        narrator = self._narrator
        narrator.step("Three hosts: a subscriber on gamma receives network events of alpha and beta, and a loss notice")
        if missing := [name for name in _NEEDED if shutil.which(name) is None]:
            narrator.remark(f"skipped: this machine has no {' and no '.join(missing)}")
            return
        try:
            network = NetnsHosts(*range(len(NAMES)), stem="sbus-demo-link")
        except (OSError, NetlinkError) as error:
            narrator.remark(f"skipped: cannot create network namespaces: {error}")
            return
        with network, ExitStack() as stack:
            self._folder.mkdir()
            hosts = [LinkedHost(name, network.name(twin), self._folder / name, narrator) for twin, name in enumerate(NAMES)]
            server = network.address(0).partition(":")[0]
            self._start_server(stack, hosts[0], server)
            for host in hosts:
                settings = _LINK.format(name=host.name, bus=host.bus, server=server, port=_PORT, folder=self._folder)
                stack.enter_context(host.running(self._stage, settings))
            for host in hosts:
                host.wait_for(*(name for name in NAMES if name != host.name))
            self._subscribe(hosts, network)

    def _start_server(self, stack: ExitStack, host: LinkedHost, address: str) -> None:
        """Start a NATS server on *host*, with certificates of an authority of its own."""
        authority = _Authority(self._folder)
        authority.sign("server", f"IP:{address}")
        for name in NAMES:
            authority.sign(name, f"DNS:{name}")
        listen = f"{address}:{_PORT}"
        certificate, key, signers = (str(self._folder / file) for file in ("server.pem", "server.key", "authority.pem"))
        settings = ServerSettings("demo", NAMES, listen, certificate, key, signers)
        configuration, log = self._folder / "nats.conf", self._folder / "nats.log"
        configuration.write_text(server_configuration(settings))
        self._narrator.command("root", ["sbusctl", "link", "config", "--realm", "demo", "--listen", listen, *NAMES])
        self._narrator.remark("this prints the configuration of the server: a host can only publish under its own name")
        words = ["nats-server", "-c", str(configuration)]
        process = stack.enter_context(host.processes.started(words, words, log))
        host.processes.wait(process, lambda: "Server is ready" in log.read_text(), "the NATS server")

    def _subscribe(self, hosts: list[LinkedHost], network: NetnsHosts) -> None:
        """Let a subscriber on gamma receive events, pull gamma's cable, and connect it again."""
        alpha, beta, gamma = hosts
        narrator, twin = self._narrator, NAMES.index("gamma")
        pattern = "host/*/net/link/"
        words = ["sbusctl", "--address", str(gamma.bus), "sub", pattern, "--timeout", "120"]
        with self._programs.running(None, *words) as reader:
            lines = _Lines(reader)
            self._synchronize(gamma)
            for host in (alpha, beta):
                self._create_link(host, "demo0")
                narrator.answer(lines.wait_for(f"host/{host.name}/net/link/demo0"))
            network.disconnect(twin)
            narrator.remark("the cable of gamma is pulled, and alpha goes on; after three heartbeats alpha does not send to gamma any more")
            self._create_link(alpha, "demo1")
            alpha.wait_for("beta")
            self._programs.run(None, "sbusctl", "--address", str(alpha.bus), "link", "status")
            network.connect(twin)
            narrator.remark("the cable is connected again: the subscriber gets a loss notice, and then the next event")
            narrator.answer(lines.wait_for("messages may be lost"))
            alpha.wait_for_interest_of("gamma")
            self._create_link(alpha, "demo2")
            narrator.answer(lines.wait_for("host/alpha/net/link/demo2"))
        narrator.remark("no message is lost silently, and none waits without limit for a host that is away")

    def _synchronize(self, gamma: LinkedHost) -> None:
        """Wait until the other hosts know of the subscriber."""
        wait_for_subscriber(gamma.bus, "host/alpha/net/link/demo0")
        self._programs.run(None, "sbusctl", "--address", str(gamma.bus), "link", "sync")

    def _create_link(self, host: LinkedHost, name: str) -> None:
        """Create a link in the namespace of *host*."""
        words = ["ip", "-n", host.namespace, "link", "add", name, "type", "veth", "peer", "name", f"{name}-peer"]
        self._narrator.command("root", words)
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            raise DemoError(f"{' '.join(words)}: {done.stderr.strip()}")


class _Lines:
    """What a program prints, on both of its pipes."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._lines: list[str] = []
        for pipe in (process.stdout, process.stderr):
            threading.Thread(target=self._read, args=(pipe,), daemon=True).start()

    def wait_for(self, words: str) -> str:
        """Return the first line with *words* as soon as it is printed."""
        _wait(lambda: self._find(words), lambda: f"{words!r} should have been printed: {self._lines}")
        return self._find(words)

    def _read(self, pipe: Iterable[str]) -> None:
        with contextlib.suppress(ValueError):  # the pipe is closed at the end
            self._lines += pipe

    def _find(self, words: str) -> str:
        return next((line for line in list(self._lines) if words in line), "")


class _Authority:
    """A certificate authority, by openssl(1); its certificates are in *folder*."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._make("authority", ["-subj", "/CN=authority"])

    def sign(self, name: str, alternative: str) -> None:
        """Make a certificate and a key with the file name *name*."""
        signer = ["-CA", str(self._folder / "authority.pem"), "-CAkey", str(self._folder / "authority.key")]
        self._make(name, ["-subj", f"/CN={name}", "-addext", f"subjectAltName={alternative}", *signer])

    def _make(self, name: str, options: list[str]) -> None:
        files = ["-keyout", str(self._folder / f"{name}.key"), "-out", str(self._folder / f"{name}.pem")]
        key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
        done = subprocess.run(["openssl", "req", "-x509", *key, *options, *files], capture_output=True, text=True, check=False)
        if done.returncode:
            raise DemoError(f"openssl: {done.stderr.strip()}")


def _wait(condition: Callable[[], object], what: Callable[[], str]) -> None:
    """Wait until *condition* holds. Raises DemoError with *what*."""
    end = time.monotonic() + TIMEOUT_SECONDS
    while not condition():
        if time.monotonic() > end:
            raise DemoError(what())
        threading.Event().wait(PAUSE_SECONDS)
