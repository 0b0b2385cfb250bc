"""Several hosts on one machine, for the demonstration and for tests: network namespaces with their own addresses, joined by a bridge."""

from __future__ import annotations

import contextlib
import os
from types import TracebackType

from pyroute2 import IPRoute, NetNS, config, netns

PREFIX = "10.213.77."

# pyroute2 forks a child for each namespace and stops it by SIGTERM. The child would run our handler, which cleans up.
config.disable_mp_signal = True


class NetnsHosts:
    """Hosts in network namespaces, which can be disconnected. Needs root."""

    def __init__(self, *twins: int, stem: str = "sbus") -> None:
        """Create a namespace for each of *twins*, and one for the bridge; their names begin with *stem*.

        Raises:
            OSError, NetlinkError: the kernel or the container does not permit it.
        """
        stem = f"{stem}-{os.getpid()}"
        self._bridge_namespace = f"{stem}-bridge"
        self._names = {twin: f"{stem}-{twin}" for twin in twins}
        self._links = {twin: number for number, twin in enumerate(twins, 1)}
        netns.create(self._bridge_namespace)
        try:
            with NetNS(self._bridge_namespace) as bridge_namespace:
                bridge_namespace.link("add", ifname="bridge", kind="bridge")
                bridge_namespace.link("set", index=_index(bridge_namespace, "bridge"), state="up")
                for twin in twins:
                    self._add_host(bridge_namespace, twin)
        except BaseException:
            self.remove()
            raise

    def __enter__(self) -> NetnsHosts:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.remove()

    def name(self, twin: int) -> str:
        """Return the name of the namespace of *twin*, for ip-netns(8)."""
        return self._names[twin]

    def address(self, twin: int) -> str:
        """Return the address and port of the relay of *twin*."""
        return f"{PREFIX}{self._links[twin]}:8051"

    @property
    def bridge_namespace(self) -> str:
        """The name of the namespace of the bridge, ``bridge``, to which all hosts are connected."""
        return self._bridge_namespace

    def port(self, twin: int) -> str:
        """Return the interface of the bridge to which *twin* is connected."""
        return f"port{self._links[twin]}"

    def disconnect(self, twin: int) -> None:
        """Disconnect the host *twin*."""
        self._set(twin, "down")

    def connect(self, twin: int) -> None:
        """Connect it again."""
        self._set(twin, "up")

    def remove(self) -> None:
        """Remove all namespaces."""
        for name in (self._bridge_namespace, *self._names.values()):
            with contextlib.suppress(OSError):
                netns.remove(name)

    def _add_host(self, bridge_namespace: NetNS, twin: int) -> None:
        """Create the namespace of *twin*, and connect it to the bridge."""
        name, port = self._names[twin], self.port(twin)
        netns.create(name)
        bridge_namespace.link("add", ifname=port, kind="veth", peer={"ifname": "eth0", "net_ns_fd": name})
        bridge_namespace.link("set", index=_index(bridge_namespace, port), master=_index(bridge_namespace, "bridge"), state="up")
        with NetNS(name) as namespace:
            namespace.link("set", index=_index(namespace, "lo"), state="up")
            namespace.link("set", index=_index(namespace, "eth0"), state="up")
            namespace.addr("add", index=_index(namespace, "eth0"), address=f"{PREFIX}{self._links[twin]}", prefixlen=24)

    def _set(self, twin: int, state: str) -> None:
        """Change the state of the bridge's port to *twin*."""
        with NetNS(self._bridge_namespace) as bridge_namespace:
            bridge_namespace.link("set", index=_index(bridge_namespace, self.port(twin)), state=state)


def _index(where: IPRoute, name: str) -> int:
    """Return the index of the link *name*."""
    found: list[int] = where.link_lookup(ifname=name)
    return found[0]
