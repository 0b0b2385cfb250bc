"""Clients on raw sockets that count sent and received messages, as the reference for the tables of the pipeline.

They are independent of the record and of the pipeline. Each message has a unique payload, so that a recipient knows its publisher.
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
_GROUP = b"CMSG !/group/"
_ERROR = b"CMSG !/bus/error\0"


@dataclass(slots=True)
class Sent:
    """One message as its publisher sent it, and its confirmed recipients."""

    uid: int
    key: bytes
    size: int
    is_request: bool = False
    is_reply: bool = False
    received: list[int] = field(default_factory=list)
    """The users that received it, once for each of their connections."""
    waited: int = 0
    """Connections in whose queues it was, as seen while the bus was stopped."""
    abandoned: list[int] = field(default_factory=list)
    """The users that closed while it was in their queues."""
    lost: int = 0
    """Subscribed connections that did not receive it, and were notified of losses."""

    @property
    def prefix(self) -> str:
        """The first two segments of its key."""
        return b"/".join(self.key.split(b"/")[:2]).decode("utf-8", "backslashreplace")

    @property
    def recipients(self) -> list[int]:
        """The users that received it, or in whose queues it was."""
        return self.received + self.abandoned


@dataclass(slots=True)
class Totals:
    """The counts of all clients of one test."""

    daemon: Daemon
    sent: dict[bytes, Sent] = field(default_factory=dict)
    """Messages by their payloads."""
    connections: Counter[int] = field(default_factory=Counter)
    subscriptions: Counter[int] = field(default_factory=Counter)
    reported_lost: Counter[int] = field(default_factory=Counter)
    """Packets that the bus reported as lost, by user."""
    refusals: Counter[tuple[str, str, int, str | None]] = field(default_factory=Counter)
    """Errors that the bus reported, by code, words, user, and key."""
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def payload(self, size: int = 0) -> bytes:
        """Return a payload that no other message has, of *size* bytes if it fits."""
        return (b"%d." % next(self._numbers)).ljust(size, b"x")

    def sums(self) -> dict[tuple[str, int], dict[str, int]]:
        """Return the counts of sent messages by prefix and user."""
        found: defaultdict[tuple[str, int], Counter[str]] = defaultdict(Counter)
        for each in self.sent.values():
            counts = Counter(
                messages=1, bytes=each.size, recipients=len(each.recipients), queued=each.waited, discarded=each.lost,
                undeliverable=int(not each.recipients and not each.lost),
            )  # fmt: skip
            found[each.prefix, each.uid].update(counts)
        return {key: dict(counts) for key, counts in found.items()}

    @contextmanager
    def bus_stopped(self) -> Iterator[None]:
        """Stop the process of the bus in the context: messages in sockets have been delivered, all others are queued."""
        os.kill(self.daemon.pid, signal.SIGSTOP)
        try:
            # The state of a stopped process is 'T', proc(5): only then can no more packets arrive.
            stat = Path(f"/proc/{self.daemon.pid}/stat")
            deadline = time.monotonic() + 60
            while stat.read_text("ascii").rsplit(")", 1)[1].split()[0] != "T":
                assert time.monotonic() < deadline
            yield
        finally:
            os.kill(self.daemon.pid, signal.SIGCONT)


class Client:
    """A connection of one user."""

    def __init__(self, totals: Totals, user: User, *patterns: bytes) -> None:
        self.uid = user.uid
        self.client: RawClient = totals.daemon.client(user)
        self._totals = totals
        self._address = ""
        totals.connections[self.uid] += 1
        for pattern in patterns:
            self.subscribe(pattern)
        self.collect()

    def subscribe(self, pattern: bytes) -> None:
        """Subscribe to a pattern that this connection does not have yet."""
        self.client.subscribe(pattern)
        self._totals.subscriptions[self.uid] += 1

    def join(self, group: bytes, pattern: bytes) -> None:
        """Become a member of a group, with a pattern that this connection does not have yet."""
        self.client.send(b"CMSG group/join\0%b\0%b" % (group, pattern))
        self._totals.subscriptions[self.uid] += 1
        self.collect()

    def address(self) -> str:
        """Return the key for replies to this connection, and subscribe to it on the first call."""
        if not self._address:
            self._address = self.client.ask(b"!/conn/whoami").decode() + "ret"
            self.subscribe(self._address.encode())
            self.collect()
        return self._address

    def publish(self, key: bytes, size: int = 0, *, times: int = 1) -> None:
        """Publish *times* messages, and wait until the bus has routed them."""
        for _ in range(times):
            self.client.publish(key, self._recorded(key, self._totals.payload(size)))
        self.collect()

    def publish_to(self, other: Client, key: bytes, *, times: int = 1) -> None:
        """Publish *times* direct messages to the connection of *other*."""
        number = int(other.address().split("/")[2])
        for _ in range(times):
            self.client.send(b"CMSG !/to/%d\0MSG %b\0%b" % (number, key, self._recorded(key, self._totals.payload())))
        self.collect()

    def publish_payload(self, key: bytes, payload: bytes) -> None:
        """Publish one message with this payload, which no other message has."""
        self.client.publish(key, self._recorded(key, payload))
        self.collect()

    def publish_batch(self, keys: list[bytes]) -> None:
        """Publish messages in one packet."""
        parts = [b"MSG %b\0%b" % (key, self._recorded(key, self._totals.payload())) for key in keys]
        self.client.send(b"CMSG !/batch\0" + b"".join(struct.pack("<I", len(part)) + part for part in parts))
        self.collect()

    def envelope(self, key: bytes, **members: object) -> None:
        """Publish an envelope: a request, or a reply under an address."""
        name, is_reply = self._totals.payload().decode(), b"/rpc/" not in key and key.startswith(b"!/conn/")
        payload = json.dumps({"ver": 1, "exp": 0, "err": "", "ret": "", "nonce": name, **members}).encode()
        self.client.publish(key, self._recorded(key, payload))
        sent = self._totals.sent[payload]
        sent.is_reply, sent.is_request = is_reply, not is_reply
        self.collect()

    def send_refused(self, packet: bytes, about: str | None) -> None:
        """Send a packet that the bus rejects with an error; *about* is the key or pattern."""
        self.client.send(packet)
        self.collect(about)

    def send_fatal(self, packet: bytes, about: str | None) -> None:
        """Send a packet for which the bus ends the connection with an error."""
        self.client.send(packet)
        for received in self.client.receive_to_end():
            self._take(received, about)

    def collect(self, about: str | None = None) -> int:
        """Receive all packets up to now; return the number of messages."""
        return sum(self._take(packet, about) for packet in self.client.barrier())

    def take_received(self) -> int:
        """Receive the packets in the socket without the bus; return the number of messages."""
        self.client.socket.setblocking(False)
        count = 0
        try:
            while True:
                count += self._take(self.client.socket.recv(1 << 20), None)
        except BlockingIOError:
            return count
        finally:
            self.client.socket.settimeout(60)

    def note_missed(self, key: bytes) -> None:
        """Count messages with *key* that this subscribed connection, the only one of its user, did not receive as lost."""
        for each in self._totals.sent.values():
            each.lost += each.key == key and self.uid not in each.received

    def close(self, waiting: bytes | None = None) -> None:
        """Close; unreceived messages with the key *waiting*, of which this is the user's only subscriber, were queued for it."""
        self.client.close()
        for each in self._totals.sent.values():
            if each.key == waiting and self.uid not in each.received:
                each.abandoned.append(self.uid)
                each.waited += 1

    def _recorded(self, key: bytes, payload: bytes) -> bytes:
        """Record a message with *payload* as sent, and return *payload*."""
        self._totals.sent[payload] = Sent(self.uid, key, len(payload))
        return payload

    def _take(self, packet: bytes, about: str | None) -> bool:
        """Count a received packet; return whether it was a message."""
        if packet.startswith(_GROUP):
            packet = packet.partition(b"\0")[2]
        if packet.startswith(b"MSG "):
            self._totals.sent[packet.partition(b"\0")[2]].received.append(self.uid)
            return True
        if packet.startswith(_LOST):
            self._totals.reported_lost[self.uid] += int(packet[len(_LOST) :])
        else:
            assert packet.startswith(_ERROR), packet
            code, _, words = packet[len(_ERROR) :].partition(b"\0")[0].decode().partition(" ")
            self._totals.refusals[code, words, self.uid, about] += 1
        return False
