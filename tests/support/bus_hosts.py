"""Twins that are joined to a bus each, and services for them."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable

from sbusd.client import Bus, Message, Request, ServiceError
from tests.support.daemons import Daemon
from tests.support.relays import Host

FIRST, SECOND = 1001, 1002
"""The numbers of the two hosts."""


class Town:
    """A twin with its bus."""

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


MakeTowns = Callable[..., tuple[Town, Town]]


def echo(request: Request) -> bytes:
    """Answer with what was sent."""
    return request.data


def describe(request: Request) -> str:
    """Answer with who calls."""
    caller = request.caller
    return json.dumps([request.source, caller.uid, caller.gid, caller.pid, caller.key.decode()])


def fail(request: Request) -> bytes:
    """Answer with an error."""
    raise ServiceError(f"no account {request.data.decode()}")


def await_word(path: str, _request: Request) -> bytes:
    """Answer with the first message under ``word`` on the bus at *path*; who is subscribed to that runs this."""
    with Bus.connect(path) as bus, bus.subscribe("word") as words:
        word = words.receive(60)
        return word.payload if isinstance(word, Message) else b""


def hang(request: Request) -> bytes:
    """Never answer."""
    signal.pause()
    return request.data
