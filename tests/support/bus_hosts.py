"""Hosts with a bus each, and services for it."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable

from sbus import Bus, Message, Request, ServiceError
from tests.support.daemons import Daemon
from tests.support.relays import Host

FIRST, SECOND = 1001, 1002
"""The numbers of the two hosts."""


class BusHost:
    """A host with a bus."""

    def __init__(self, host: Host, daemon: Daemon) -> None:
        self.host = host
        self.daemon = daemon

    @property
    def path(self) -> str:
        """The socket of its bus."""
        return self.daemon.path

    def bus(self) -> Bus:
        """Return a new connection to its bus."""
        return Bus.connect(self.daemon.path)


MakeBusHosts = Callable[..., tuple[BusHost, BusHost]]


def echo(request: Request) -> bytes:
    """Respond with the data of the request."""
    return request.data


def describe(request: Request) -> str:
    """Respond with the identity of the caller."""
    caller = request.caller
    return json.dumps([request.source, caller.uid, caller.gid, caller.pid, caller.key])


def fail(request: Request) -> bytes:
    """Respond with an error."""
    raise ServiceError(f"no account {request.data.decode()}")


def await_word(path: str, _request: Request) -> bytes:
    """Respond with the first message of the key ``word`` on the bus at *path*."""
    with Bus.connect(path) as bus, bus.subscribe("word") as words:
        word = words.receive(60)
        return word.payload if isinstance(word, Message) else b""


def hang(request: Request) -> bytes:
    """Never respond."""
    signal.pause()
    return request.data
