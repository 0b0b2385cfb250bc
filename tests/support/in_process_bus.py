"""A real broker on a real switch in this process, with clients whose credentials a test makes up."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, cast

from sbus.protocol.credentials import Credentials
from sbus_programs.config.settings import DaemonSettings
from sbus_programs.systemd.log_records import Record
from sbusd.broker.access import BusOwnership
from sbusd.broker.broker import Broker
from sbusd.broker.log import BusLog
from tests.support.switch_harness import run_until_idle
from tests.support.wire import RawClient


@dataclass
class Records:
    """A sink that keeps what is written."""

    kept: list[Record] = field(default_factory=list)

    def write(self, record: Record) -> None:
        self.kept.append(record)

    def close(self) -> None:
        """Keep what was written."""


class BusClient(RawClient):
    """A client that runs the bus before it reads."""

    def __init__(self, sock: socket.socket, connection: int, run: Callable[[], None]) -> None:
        super().__init__(sock)
        self.connection = connection
        self._run = run

    def receive(self) -> bytes:
        """Return the next packet. Raises BlockingIOError if there is none when the bus is idle."""
        self._run()
        self.socket.setblocking(False)
        return super().receive()

    def receive_all(self) -> list[bytes]:
        """Return all received packets; b"" at the end means that the bus has closed the connection."""
        packets: list[bytes] = []
        while True:
            try:
                packets.append(self.receive())
            except BlockingIOError:
                return packets
            if not packets[-1]:
                return packets

    def ask_json(self, name: bytes, payload: bytes | None = None) -> dict[str, object]:
        """Return the JSON reply to a control message."""
        return cast(dict[str, object], json.loads(self.ask(name, payload)))


class InProcessBus:
    """One bus and its clients."""

    def __init__(self, settings: DaemonSettings | None = None, ownership: BusOwnership | None = None) -> None:
        settings = settings or DaemonSettings()
        self.records = Records()
        self.journal = BusLog(self.records, settings.log)
        self.broker = Broker(settings, ownership or BusOwnership(0, None, frozenset({0})), self.journal)
        self.switch = self.broker.switch
        self.next_credentials: Credentials | OSError = Credentials(1, 0, 0)
        """The credentials of the next client; an error simulates a kernel that does not provide them."""
        self._clients: list[BusClient] = []
        self._next = 1

    def credentials_of(self, _fd: int) -> Credentials:
        """Replace :func:`sbusd.dataplane.peer.credentials_of`."""
        if isinstance(self.next_credentials, OSError):
            raise self.next_credentials
        return self.next_credentials

    def client(self, uid: int = 0, gid: int = 0, pid: int = 1, groups: frozenset[int] = frozenset()) -> BusClient:
        """Return a new client with these credentials; the broker may reject it."""
        self.next_credentials = Credentials(pid, uid, gid, groups)
        return self.connect_next()

    def connect_next(self) -> BusClient:
        """Connect a client with the credentials ``next_credentials``."""
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        fd, number, self._next = theirs.detach(), self._next, self._next + 1
        os.set_blocking(fd, False)
        self._clients.append(BusClient(mine, number, self.run))
        self.switch.adopt(fd, number)
        self.broker.fast_path.connected(number, fd)
        return self._clients[-1]

    def run(self) -> None:
        """Run the bus until it is idle."""
        run_until_idle(self.switch)

    def recorded(self) -> list[Record]:
        """Close the log and return all records."""
        self.journal.close(30.0)
        return self.records.kept

    def close(self) -> None:
        """Close all clients and the bus."""
        for client in self._clients:
            client.close()
        self.broker.close()
        self.journal.close(30.0)


class MakeBus(Protocol):
    """The fixture ``make_bus`` of the daemon's unit tests."""

    def __call__(self, settings: DaemonSettings | None = None, ownership: BusOwnership | None = None) -> InProcessBus:
        """Return a bus with *settings*; it is closed when the test ends."""
