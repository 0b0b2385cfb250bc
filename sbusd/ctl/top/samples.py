"""What the bus and the kernel say at one moment."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sbusd.ctl.responses import ConnectionInfo, ControlClient, JsonObject, ask, connection_info, connections, users
from sbusd.ctl.top.sockets import QueueDepths, SocketsUnseenError, UnixSocket, depths, read_sockets
from sbusd.protocol import controls

_USERS_FEATURE = "users"


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at the bus."""

    moment: float
    """Monotonic time in seconds, to measure by."""
    clock: float
    """Seconds since 1970, to show."""
    stats: JsonObject
    """The answer to ``!/bus/stats``: the bus's counters for its owner."""
    connections: Mapping[int, ConnectionInfo]
    """By their numbers."""
    hidden: int
    """Connections of others."""
    depths: Mapping[int, QueueDepths]
    """The kernel's queues, by the numbers of the connections."""
    unseen: str
    """Why the kernel's queues are not seen; empty if they are."""
    users: tuple[JsonObject, ...] = ()
    """The items of ``!/bus/users``, where they were asked for and the bus tells them."""


class Sampler:
    """Looks at one bus."""

    def __init__(self, bus: ControlClient, *, with_users: bool, sockets: Callable[[], Mapping[int, UnixSocket]] = read_sockets) -> None:
        """Ask *bus* for what it can do, if users are wanted. Raises SbusError if it refuses, or is gone."""
        self._bus = bus
        self._sockets = sockets
        self._with_users = with_users and _USERS_FEATURE in bus.control(controls.FEATURES).decode("ascii", "replace").split("\n")

    def sample(self) -> Sample:
        """Return what is now.

        Raises:
            SbusError: the bus refuses, or is gone.
        """
        moment, clock = time.monotonic(), time.time()
        stats = ask(self._bus, controls.STATS)
        pages = connections(self._bus)
        found = {each.id: each for each in map(connection_info, pages.items["connections"]) if each.id is not None}
        told = tuple(users(self._bus).items["users"]) if self._with_users else ()
        sockets, unseen = self._read_sockets()
        queues = {number: depths(sockets, each.inode) for number, each in found.items()}
        return Sample(moment, clock, stats, found, pages.hidden, queues, unseen, told)

    def _read_sockets(self) -> tuple[Mapping[int, UnixSocket], str]:
        """Return the kernel's sockets, or none and the reason."""
        try:
            return self._sockets(), ""
        except SocketsUnseenError as error:
            return {}, str(error)
