"""Hosts with a bus, sbus-blob and sbus-link each, in network namespaces whose cables can be cut."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from sbus import Bus
from tests.support.authority import Authority
from tests.support.blob_programs import BlobProgram
from tests.support.link_programs import PROGRAM, LinkProgram
from tools.netns_hosts import PREFIX, NetnsHosts

EXPORT = '[[export]]\nkeys = "cam/"\nmax_blob = "1GiB"\n[[export]]\nkeys = "closed/"\n'
IMPORT = '[[import]]\nkeys = ""\nmax_blob = "1GiB"\n'


class BlobHost:
    """One host."""

    def __init__(self, folder: Path, name: str, bus: str, *, network: str, namespace: str) -> None:
        """*network* are the lines of link.toml that connect it."""
        self.name = name
        self.bus = bus
        self.folder = folder / name
        self.folder.mkdir()
        self.namespace = namespace
        self._network = network
        self.blob = self._blob("")
        self.link = self._link(EXPORT + IMPORT)

    def configure(
        self,
        *,
        blob: str = "",
        rules: str = EXPORT + IMPORT,
        program: Sequence[str] = PROGRAM,
        constants: Mapping[str, float] | None = None,
    ) -> None:
        """Replace the configuration before the start; *constants* are those of sbus-blob."""
        self.blob, self.link = self._blob(blob, constants), self._link(rules, program)

    def state(self) -> dict[str, Any]:
        """Return what the link counts about blobs, from now on."""
        with Bus.connect(self.bus) as bus, bus.subscribe("link/state") as states:
            states.receive(60)
            item = states.receive(60)  # the first one may have been made before
            return dict(json.loads(item.payload)["blobs"])  # type: ignore[union-attr]

    def limit_rate(self, rate: str) -> None:
        """Let the host send no more than *rate*, in the words of tc(8)."""
        words = ["tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", rate, "burst", "64kb", "latency", "500ms"]
        subprocess.run(["ip", "netns", "exec", self.namespace, *words], check=True)

    def memfd_bytes(self) -> int:
        """Return the size of all memory files that sbus-blob has open."""
        return sum(size for _, size in self.memfds().items())

    def memfds(self) -> dict[int, int]:
        """Return the sizes of the memory files that sbus-blob has open, by their inodes."""
        found = {}
        for each in Path(f"/proc/{self.blob.pid}/fd").iterdir():
            try:
                if "memfd:" in os.readlink(each):
                    status = os.stat(each)
                    found[status.st_ino] = status.st_size
            except OSError:  # closed meanwhile
                continue
        return found

    def _blob(self, text: str, constants: Mapping[str, float] | None = None) -> BlobProgram:
        return BlobProgram(self.folder, self.bus, f'host = "{self.name}"\n{text}', constants=constants)

    def _link(self, rules: str, program: Sequence[str] = PROGRAM) -> LinkProgram:
        prefix = ["ip", "netns", "exec", self.namespace]
        return LinkProgram(self.folder, self.name, self.bus, f"{self._network}{rules}", prefix, program=program)


class BlobHosts:
    """Two hosts, alpha and beta. Both are configured; :meth:`start` starts them."""

    def __init__(self, cables: NetnsHosts, alpha: BlobHost, beta: BlobHost, stack: ExitStack) -> None:
        self.alpha = alpha
        self.beta = beta
        self.stack = stack
        self._cables = cables

    def start(self) -> None:
        """Start all programs, and wait until each link knows the other host."""
        for host in (self.alpha, self.beta):
            self.stack.enter_context(host.blob)
            self.stack.enter_context(host.link)
        self.alpha.link.wait_for_hosts("beta")
        self.beta.link.wait_for_hosts("alpha")

    def cut(self) -> None:
        """Cut the cable of beta."""
        self._cables.disconnect(3)

    def heal(self) -> None:
        """Connect it again."""
        self._cables.connect(3)


def direct_hosts(folder: Path, cables: NetnsHosts, make_bus: Callable[[], str], stack: ExitStack) -> BlobHosts:
    """Return hosts that connect to each other by TLS."""
    authority = Authority(folder)

    def network(name: str, number: int, peer: str) -> str:
        tls = authority.settings(authority.sign(name))
        return f'transport = "direct"\nlisten = "{PREFIX}{number}:4223"\n{tls}[[peers]]\n{peer}\n'

    alpha = BlobHost(folder, "alpha", make_bus(), network=network("alpha", 2, 'host = "beta"'), namespace=cables.name(2))
    peer = f'host = "alpha"\naddress = "{PREFIX}2:4223"'
    beta = BlobHost(folder, "beta", make_bus(), network=network("beta", 3, peer), namespace=cables.name(3))
    return BlobHosts(cables, alpha, beta, stack)
