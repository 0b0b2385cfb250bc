"""A real broker on a real switch in this process, with clients whose credentials a test makes up."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, cast

from sbusd.broker.admission import BusOwnership
from sbusd.broker.broker import Broker
from sbusd.broker.log import BusLog
from sbusd.config.settings import DaemonSettings
from sbusd.dataplane.switch import Switch
from sbusd.protocol.credentials import Credentials
from sbusd.systemd.log_record import Record
from tests.support.wire import RawClient
from tests.support.world import come_to_rest


@dataclass
class Records:
    """A sink that keeps what is written."""

    kept: list[Record] = field(default_factory=list)

    def write(self, record: Record) -> None:
        self.kept.append(record)

    def close(self) -> None:
        """Keep what was written."""


class Guest(RawClient):
    """A client that lets the bus work before it reads."""

    def __init__(self, sock: socket.socket, connection: int, run: Callable[[], None]) -> None:
        super().__init__(sock)
        self.connection = connection
        self._run = run

    def receive(self) -> bytes:
        """Return the next packet; what has not come once the bus is at rest never comes."""
        self._run()
        self.socket.setblocking(False)
        return super().receive()

    def receive_all(self) -> list[bytes]:
        """Return what has come, up to the end of the connection, which is told as no bytes."""
        packets: list[bytes] = []
        while True:
            try:
                packets.append(self.receive())
            except BlockingIOError:
                return packets
            if not packets[-1]:
                return packets

    def ask_json(self, name: bytes, payload: bytes | None = None) -> dict[str, object]:
        """Return the answer to a question whose answer is JSON."""
        return cast(dict[str, object], json.loads(self.ask(name, payload)))


class Parlour:
    """One bus and its guests."""

    def __init__(self, settings: DaemonSettings | None = None, ownership: BusOwnership | None = None) -> None:
        settings = settings or DaemonSettings()
        self.records = Records()
        self.journal = BusLog(self.records, settings.log)
        self.broker = Broker(settings, ownership or BusOwnership(0, None, frozenset({0})), self.journal, Switch)
        self.switch = self.broker.switch
        self.arriving: Credentials | OSError = Credentials(1, 0, 0)
        """What the kernel says of the next guest; an error stands for a kernel that does not say."""
        self._guests: list[Guest] = []
        self._next = 1

    def credentials_of(self, _fd: int) -> Credentials:
        """Stand in for :func:`sbusd.dataplane.peer.credentials_of`."""
        if isinstance(self.arriving, OSError):
            raise self.arriving
        return self.arriving

    def guest(self, uid: int = 0, gid: int = 0, pid: int = 1, groups: frozenset[int] = frozenset()) -> Guest:
        """Let somebody in; the broker may refuse them."""
        self.arriving = Credentials(pid, uid, gid, groups)
        return self.arrive()

    def arrive(self) -> Guest:
        """Let in whoever arrives."""
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        fd, number, self._next = theirs.detach(), self._next, self._next + 1
        os.set_blocking(fd, False)
        self._guests.append(Guest(mine, number, self.run))
        self.switch.adopt(fd, number)
        self.broker.connected(number, fd)
        return self._guests[-1]

    def run(self) -> None:
        """Let the bus work until nothing is ready."""
        come_to_rest(self.switch)

    def recorded(self) -> list[Record]:
        """Close the journal and return all records."""
        self.journal.close(30.0)
        return self.records.kept

    def close(self) -> None:
        """End everything."""
        for guest in self._guests:
            guest.close()
        self.broker.close()
        self.journal.close(30.0)


class MakeParlour(Protocol):
    """The fixture ``make_parlour`` of the daemon's unit tests."""

    def __call__(self, settings: DaemonSettings | None = None, ownership: BusOwnership | None = None) -> Parlour:
        """Return a bus with *settings*; it is closed when the test ends."""
