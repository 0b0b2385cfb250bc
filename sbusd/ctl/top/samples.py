"""Samples of the bus and the kernel."""

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
    """The state of the bus at one moment."""

    moment: float
    """Monotonic time in seconds, for rates."""
    clock: float
    """Seconds since 1970, for display."""
    stats: JsonObject
    """The response to ``!/bus/stats``."""
    connections: Mapping[int, ConnectionInfo]
    """By connection number."""
    hidden: int
    """Number of connections of other users."""
    depths: Mapping[int, QueueDepths]
    """The queues of the kernel, by connection number."""
    unseen: str
    """The reason if the queues of the kernel are unknown, else empty."""
    users: tuple[JsonObject, ...] = ()
    """The items of ``!/bus/users``, if requested and supported."""


class Sampler:
    """Takes samples of one bus."""

    def __init__(self, bus: ControlClient, *, with_users: bool, sockets: Callable[[], Mapping[int, UnixSocket]] = read_sockets) -> None:
        """Query the features of *bus*, if users are wanted. Raises SbusError if it refuses or is gone."""
        self._bus = bus
        self._sockets = sockets
        self._with_users = with_users and _USERS_FEATURE in bus.control(controls.FEATURES).decode("ascii", "replace").split("\n")

    def sample(self) -> Sample:
        """Return a sample.

        Raises:
            SbusError: the bus refused a request, or is gone.
        """
        moment, clock = time.monotonic(), time.time()
        stats = ask(self._bus, controls.STATS)
        pages = connections(self._bus)
        found = {each.id: each for each in map(connection_info, pages.items["connections"]) if each.id is not None}
        reported = tuple(users(self._bus).items["users"]) if self._with_users else ()
        sockets, unseen = self._read_sockets()
        queues = {number: depths(sockets, each.inode) for number, each in found.items()}
        return Sample(moment, clock, stats, found, pages.hidden, queues, unseen, reported)

    def _read_sockets(self) -> tuple[Mapping[int, UnixSocket], str]:
        """Return the sockets of the kernel, or none and the reason."""
        try:
            return self._sockets(), ""
        except SocketsUnseenError as error:
            return {}, str(error)
