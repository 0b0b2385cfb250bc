"""Programs on raw sockets that count what they send and receive: the truth that tables are compared with.

Nothing here knows of the record or of the pipeline. Each message has a payload of its own, so that whoever receives it knows whose it is.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import struct
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.daemons import Daemon
from tests.support.users import User
from tests.support.wire import RawClient

_LOST = b"CMSG !/bus/lost\0"
_ERROR = b"CMSG !/bus/error\0"


@dataclass(slots=True)
class Sent:
    """One message as its publisher remembers it, and who said that it came."""

    uid: int
    key: bytes
    size: int
    is_request: bool = False
    is_reply: bool = False
    received: list[int] = field(default_factory=list)
    """The users that got it, one for each of their connections."""
    waited: int = 0
    """Connections for which it waited in the bus, as they saw when the bus stood still."""
    abandoned: list[int] = field(default_factory=list)
    """The users that closed while it waited for them."""
    lost: int = 0
    """Connections that subscribe to it, were told of losses, and did not get it."""

    @property
    def prefix(self) -> str:
        """The first two segments of its key."""
        return b"/".join(self.key.split(b"/")[:2]).decode("utf-8", "backslashreplace")

    @property
    def recipients(self) -> list[int]:
        """The users that it was handed to, or waited for."""
        return self.received + self.abandoned


@dataclass(slots=True)
class Book:
    """What all programs of one test have counted."""

    daemon: Daemon
    sent: dict[bytes, Sent] = field(default_factory=dict)
    """Messages by their payloads."""
    connections: Counter[int] = field(default_factory=Counter)
    subscriptions: Counter[int] = field(default_factory=Counter)
    told_lost: Counter[int] = field(default_factory=Counter)
    """Packets that the bus said were lost, by user."""
    refusals: Counter[tuple[str, str, int, str | None]] = field(default_factory=Counter)
    """Errors that the bus told, by code, words, user, and the key that they were about."""
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def payload(self, size: int = 0) -> bytes:
        """Return a payload that no other message has, of *size* bytes if it fits."""
        return (b"%d." % next(self._numbers)).ljust(size, b"x")

    def sums(self) -> dict[tuple[str, int], dict[str, int]]:
        """Return what was sent by prefix and user, as the programs saw it."""
        found: defaultdict[tuple[str, int], Counter[str]] = defaultdict(Counter)
        for each in self.sent.values():
            counts = Counter(
                messages=1, bytes=each.size, recipients=len(each.recipients), queued=each.waited, discarded=each.lost,
                unheard=int(not each.recipients and not each.lost),
            )  # fmt: skip
            found[each.prefix, each.uid].update(counts)
        return {key: dict(counts) for key, counts in found.items()}

    @contextmanager
    def bus_stands_still(self) -> Iterator[None]:
        """Stop the bus's process for a while: what a socket has then was handed to it, and the rest waits."""
        os.kill(self.daemon.pid, signal.SIGSTOP)
        try:
            # A stopped process is 'T' in proc(5): only then does nothing more arrive.
            stat = Path(f"/proc/{self.daemon.pid}/stat")
            deadline = time.monotonic() + 60
            while stat.read_text("ascii").rsplit(")", 1)[1].split()[0] != "T":
                assert time.monotonic() < deadline
            yield
        finally:
            os.kill(self.daemon.pid, signal.SIGCONT)


class Witness:
    """One program: a connection of one user."""

    def __init__(self, book: Book, user: User, *patterns: bytes) -> None:
        self.uid = user.uid
        self.client: RawClient = book.daemon.client(user)
        self._book = book
        self._address = ""
        book.connections[self.uid] += 1
        for pattern in patterns:
            self.subscribe(pattern)
        self.collect()

    def subscribe(self, pattern: bytes) -> None:
        """Add a pattern that this connection does not have yet."""
        self.client.subscribe(pattern)
        self._book.subscriptions[self.uid] += 1

    def address(self) -> str:
        """Return the key under which this connection gets replies; it subscribes to that the first time."""
        if not self._address:
            self._address = self.client.ask(b"!/conn/whoami").decode() + "ret"
            self.subscribe(self._address.encode())
            self.collect()
        return self._address

    def publish(self, key: bytes, size: int = 0, *, times: int = 1) -> None:
        """Publish *times* messages, and wait until the bus has routed them."""
        for _ in range(times):
            self.client.publish(key, self._noted(key, self._book.payload(size)))
        self.collect()

    def publish_batch(self, keys: list[bytes]) -> None:
        """Publish messages in one packet."""
        parts = [b"MSG %b\0%b" % (key, self._noted(key, self._book.payload())) for key in keys]
        self.client.send(b"CMSG !/batch\0" + b"".join(struct.pack("<I", len(part)) + part for part in parts))
        self.collect()

    def envelope(self, key: bytes, **members: object) -> None:
        """Publish an envelope: a request, or a reply under an address."""
        name, is_reply = self._book.payload().decode(), b"/rpc/" not in key and key.startswith(b"!/conn/")
        payload = json.dumps({"ver": 1, "exp": 0, "err": "", "ret": "", "nonce": name, **members}).encode()
        self.client.publish(key, self._noted(key, payload))
        sent = self._book.sent[payload]
        sent.is_reply, sent.is_request = is_reply, not is_reply
        self.collect()

    def be_refused(self, packet: bytes, about: str | None) -> None:
        """Send a packet that the bus refuses, saying so; *about* is the key or pattern."""
        self.client.send(packet)
        self.collect(about)

    def be_dismissed(self, packet: bytes, about: str | None) -> None:
        """Send a packet for which the bus ends the connection, saying so."""
        self.client.send(packet)
        for received in self.client.receive_to_end():
            self._take(received, about)

    def collect(self, about: str | None = None) -> int:
        """Take all that has come up to now; return how many messages that were."""
        return sum(self._take(packet, about) for packet in self.client.barrier())

    def take_what_the_socket_has(self) -> int:
        """Take what was handed to the socket, without the bus; return how many messages that were."""
        self.client.socket.setblocking(False)
        count = 0
        try:
            while True:
                count += self._take(self.client.socket.recv(1 << 20), None)
        except BlockingIOError:
            return count
        finally:
            self.client.socket.settimeout(60)

    def has_missed(self, key: bytes) -> None:
        """Say that this connection, which subscribes to *key*, lost those messages that it did not get; it is the only one of its user."""
        for each in self._book.sent.values():
            each.lost += each.key == key and self.uid not in each.received

    def close(self, waiting: bytes | None = None) -> None:
        """Close; messages under *waiting* that this only connection of its user for that key has not got waited for it."""
        self.client.close()
        for each in self._book.sent.values():
            if each.key == waiting and self.uid not in each.received:
                each.abandoned.append(self.uid)
                each.waited += 1

    def _noted(self, key: bytes, payload: bytes) -> bytes:
        """Return *payload*, which is remembered."""
        self._book.sent[payload] = Sent(self.uid, key, len(payload))
        return payload

    def _take(self, packet: bytes, about: str | None) -> bool:
        """Count what has come; return whether it was a message."""
        if packet.startswith(b"MSG "):
            self._book.sent[packet.partition(b"\0")[2]].received.append(self.uid)
            return True
        if packet.startswith(_LOST):
            self._book.told_lost[self.uid] += int(packet[len(_LOST) :])
        else:
            assert packet.startswith(_ERROR), packet
            code, _, words = packet[len(_ERROR) :].decode().partition(" ")
            self._book.refusals[code, words, self.uid, about] += 1
        return False
