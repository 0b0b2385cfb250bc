"""Connections of browsers: only those of the gateway's own user and of root are served, and a limited number at once.

Every user of the machine can connect to a loopback address. The connections of others are closed before anything is read from them, so
they can neither guess secrets nor use up what the gateway has for its own user. The token is asked for nevertheless: the kernel knows
the user of a socket, but not which program has it now.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aiohttp import web

from sbus_programs.http_connection import LimitedConnection
from sbus_programs.socket_owner import client_user, is_trusted
from sbus_programs.systemd.log_records import LimitedLog
from sbus_services.web.log_messages import FAULT, FULL, OTHER_USER, REJECTED

MAX_CONNECTIONS = 256
"""Connections that are served at once."""

HEADER_SECONDS = 30.0
"""Time limit for the first request of a connection."""

IDLE_SECONDS = 60.0
"""A connection without a request for that long is closed."""


class Admission:
    """Counts the connections, and those of others that were closed. *charged* returns the user whose log records a uid uses."""

    def __init__(self, log: LimitedLog, charged: Callable[[int], int] = int) -> None:
        self.log = log
        self._charged = charged
        self.open = 0
        self.of_others = 0
        """Connections of other users since the start."""

    def admit(self, user: int | None) -> bool:
        """Return whether a connection of *user* is served; then :meth:`leave` must follow."""
        if not is_trusted(user):
            self.of_others += 1
            if user is None:
                self.log.record_limited(OTHER_USER, "", user="unknown")
            else:
                self.log.record_limited(OTHER_USER, str(self._charged(user)), user=str(user))
            return False
        if self.open >= MAX_CONNECTIONS:
            self.log.record_limited(FULL, "connections", reason=f"closed a connection: there are already {MAX_CONNECTIONS}")
            return False
        self.open += 1
        return True

    def leave(self) -> None:
        """Note the end of a connection."""
        self.open -= 1


class LoopbackConnection(LimitedConnection):
    """One connection."""

    __slots__ = ("_admission", "_is_admitted")

    def __init__(self, admission: Admission, server: web.Server) -> None:
        super().__init__(server, idle_seconds=IDLE_SECONDS)
        self._admission = admission
        self._is_admitted = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Serve the connection, or close it."""
        super().connection_made(transport)
        if not self._admission.admit(client_user(transport.get_extra_info("socket"))):
            self.refuse(transport)
            return
        self._is_admitted = True
        self.wait(HEADER_SECONDS)  # aiohttp has a time limit for the requests after the first one

    def connection_lost(self, exc: BaseException | None) -> None:
        """Note the end."""
        if self._is_admitted:
            self._is_admitted = False
            self._admission.leave()
        super().connection_lost(exc)

    def note(self, reason: str, *, is_of_peer: bool) -> None:
        """Log an error of the browser or of the gateway."""
        self._admission.log.record_limited(REJECTED if is_of_peer else FAULT, "http", reason=reason)
