"""Several hosts in one machine, for the demonstration and for tests: network namespaces with addresses of their own, joined by a bridge."""

from __future__ import annotations

import contextlib
import os
from types import TracebackType

from pyroute2 import IPRoute, NetNS, config, netns

PREFIX = "10.213.77."

# It forks a child for each namespace, and ends that by SIGTERM: with our handler of that the child would clean up in our place.
config.disable_mp_signal = True


class Village:
    """Hosts that reach each other, until a link is cut. Needs root."""

    def __init__(self, *twins: int, stem: str = "sbus") -> None:
        """Make a namespace for each of *twins*, and one between them that is none of theirs; their names begin with *stem*.

        Raises:
            OSError, NetlinkError: the kernel, or the container around this, does not allow that.
        """
        stem = f"{stem}-{os.getpid()}"
        self._street = f"{stem}-street"
        self._names = {twin: f"{stem}-{twin}" for twin in twins}
        self._links = {twin: number for number, twin in enumerate(twins, 1)}
        netns.create(self._street)
        try:
            with NetNS(self._street) as street:
                street.link("add", ifname="bridge", kind="bridge")
                street.link("set", index=_index(street, "bridge"), state="up")
                for twin in twins:
                    self._settle(street, twin)
        except BaseException:
            self.remove()
            raise

    def __enter__(self) -> Village:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.remove()

    def name(self, twin: int) -> str:
        """Return the name of the namespace of *twin*, for ip-netns(8)."""
        return self._names[twin]

    def address(self, twin: int) -> str:
        """Return the address and port of the relay of *twin*."""
        return f"{PREFIX}{self._links[twin]}:8051"

    def cut(self, twin: int) -> None:
        """Pull the cable of *twin*."""
        self._set(twin, "down")

    def join(self, twin: int) -> None:
        """Put it back."""
        self._set(twin, "up")

    def remove(self) -> None:
        """Remove all of them."""
        for name in (self._street, *self._names.values()):
            with contextlib.suppress(OSError):
                netns.remove(name)

    def _settle(self, street: NetNS, twin: int) -> None:
        """Make the namespace of *twin*, and lay a cable to it."""
        name, port = self._names[twin], f"port{self._links[twin]}"
        netns.create(name)
        street.link("add", ifname=port, kind="veth", peer={"ifname": "eth0", "net_ns_fd": name})
        street.link("set", index=_index(street, port), master=_index(street, "bridge"), state="up")
        with NetNS(name) as house:
            house.link("set", index=_index(house, "lo"), state="up")
            house.link("set", index=_index(house, "eth0"), state="up")
            house.addr("add", index=_index(house, "eth0"), address=f"{PREFIX}{self._links[twin]}", prefixlen=24)

    def _set(self, twin: int, state: str) -> None:
        """Change the state of the cable of *twin* at the side of the street."""
        with NetNS(self._street) as street:
            street.link("set", index=_index(street, f"port{self._links[twin]}"), state=state)


def _index(where: IPRoute, name: str) -> int:
    """Return the number of the link *name*."""
    found: list[int] = where.link_lookup(ifname=name)
    return found[0]
