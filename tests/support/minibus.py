"""A minimal bus for the client's tests: the parts of sbus-protocol(7) that calls need; a test can intervene at each packet.

One thread handles one packet after the other. Before each it calls ``before``, where a test hangs up connections, makes others act, or
drops the packet, exactly at the step that it is about.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from sbus.protocol import controls
from sbus.protocol.direct_messages import parse_direct
from sbus.protocol.errors import ErrorCode
from sbus.protocol.keys import KeySpace
from sbus.protocol.packets import Control, Publish, Subscribe, Unsubscribe, error_packet, is_batch, parse_batch, parse_packet

WAIT_SECONDS = 20.0
"""The timeout of every wait; a test that passes takes far less."""

_SPACE = KeySpace()


@dataclass(eq=False)
class BusConnection:
    """One connection, on the side of the bus."""

    number: int
    socket: socket.socket
    uid: int
    patterns: Counter[bytes] = field(default_factory=Counter)
    has_senders: bool = False
    receipt: tuple[bytes, bytes] | None = None
    received: list[bytes] = field(default_factory=list)
    served: int = 0
    """When it got a message as a member of a group."""

    @property
    def cred(self) -> bytes:
        """Its credentials, in the format of ``whoami``."""
        return b"!/cred/%d/%d/%d" % (self.uid, self.uid, 1_000 + self.number)

    def groups(self, key: bytes) -> set[bytes]:
        """Return the groups as whose member it could get a message with *key*, with the empty one for an ordinary pattern."""
        split = (stored.partition(b"\0") for stored in self.patterns)
        return {group for pattern, _, group in split if _SPACE.matches(pattern, key)}

    def say(self, packet: bytes) -> None:
        """Send it a packet, unless it has disconnected."""
        with contextlib.suppress(OSError):
            self.socket.send(packet)


class MiniBus:
    """The bus, listening at ``address``. Connections are numbered from 1, and are of the users of ``uids``, by default the test's own."""

    def __init__(self, path: Path) -> None:
        self.address = str(path)
        self.connections: dict[int, BusConnection] = {}
        self.uids: dict[int, int] = {}
        self.refused_patterns: dict[bytes, ErrorCode] = {}
        """Rejected patterns, by prefix."""
        self.before: Callable[[BusConnection, bytes], bool | None] = lambda _connection, _packet: None
        """Called with each packet before it is handled; True drops it."""
        self.defects: list[BaseException] = []
        self._next = 1
        self._served = 0
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(self.address)
        self._listener.listen(64)
        self._lock = threading.RLock()
        self._wake_reader, self._wake_writer = os.pipe()
        self._changed = threading.Condition(self._lock)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def close(self) -> None:
        """Stop the bus. Raises the first exception of the test's ``before``."""
        os.write(self._wake_writer, b"x")
        self._thread.join(WAIT_SECONDS)
        self._listener.close()
        for connection in self.connections.values():
            connection.socket.close()
        os.close(self._wake_reader)
        os.close(self._wake_writer)
        if self.defects:
            raise self.defects[0]

    def hang_up(self, number: int) -> None:
        """Disconnect a client as if it had closed the connection itself."""
        with self._lock:
            connection = self.connections.pop(number, None)
            if connection is None:
                return
            with contextlib.suppress(OSError):
                connection.socket.shutdown(socket.SHUT_RDWR)
            connection.socket.close()
            self._tell(b"!/event/disconnect/%d" % number, connection)

    def publish(self, key: bytes, payload: bytes, sender: int) -> int:
        """Route a message in the name of a connection, which may be none that is there; return how many got it."""
        with self._lock:
            publisher = self.connections.get(sender) or BusConnection(sender, self._listener, self.uids.get(sender, 0))
            return self._route(publisher, b"MSG %b\0%b" % (key, payload), key)

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Wait until *condition* holds; it is evaluated after each packet."""
        with self._changed:
            assert self._changed.wait_for(condition, WAIT_SECONDS), "the condition was not met in time"

    def members(self, key: bytes) -> list[BusConnection]:
        """Return the connections that could get a message with *key*."""
        return [each for _, each in sorted(self.connections.items()) if each.groups(key)]

    def recipients(self, key: bytes) -> list[BusConnection]:
        """Return the recipients of a message with *key*: of each group, the member that got no message for longest."""
        found: list[BusConnection] = []
        chosen: dict[tuple[int, bytes], BusConnection] = {}
        for each in self.members(key):
            if b"" in each.groups(key):
                found.append(each)
            for group in each.groups(key) - {b""}:
                other = chosen.setdefault((each.uid, group), each)
                chosen[each.uid, group] = each if each.served < other.served else other
        for each in chosen.values():
            self._served += 1
            each.served = self._served
        return sorted({each.number: each for each in (*found, *chosen.values())}.values(), key=lambda each: each.number)

    def _run(self) -> None:
        """Handle packets, one at a time."""
        while True:
            with self._lock:
                sockets = {each.socket: each for each in self.connections.values() if each.socket.fileno() >= 0}
            try:
                sources: list[int | socket.socket] = [self._wake_reader, self._listener, *sockets]
                ready, _, _ = select.select(sources, [], [], 0.05)
            except (OSError, ValueError):  # a test hung one up meanwhile
                continue
            if self._wake_reader in ready:
                return
            for each in ready:
                with self._changed:
                    if each is self._listener:
                        self._accept()
                    elif isinstance(each, socket.socket) and sockets[each].number in self.connections:
                        self._receive(sockets[each])
                    self._changed.notify_all()

    def _accept(self) -> None:
        """Accept a connection."""
        sock, _ = self._listener.accept()
        connection = BusConnection(self._next, sock, self.uids.get(self._next, os.getuid()))
        self._next += 1
        self.connections[connection.number] = connection
        self._tell(b"!/event/connect/%d" % connection.number, connection)

    def _receive(self, connection: BusConnection) -> None:
        """Handle one packet, or those of a batch."""
        try:
            packet = connection.socket.recv(500_000)
        except OSError:
            packet = b""
        if not packet:
            self.hang_up(connection.number)
            return
        for each in parse_batch(packet) if is_batch(packet) else (packet,):
            connection.received.append(each)
            try:
                dropped = self.before(connection, each)
            except BaseException as error:  # shown by close(), in the test's own thread
                self.defects.append(error)
                return
            if connection.number not in self.connections:
                return
            if not dropped:
                self._handle(connection, each)

    def _handle(self, connection: BusConnection, packet: bytes) -> None:
        """Handle *packet*."""
        match parse_packet(packet):
            case Subscribe(pattern):
                self._subscribe(connection, pattern)
            case Unsubscribe(pattern):
                self._unsubscribe(connection, pattern)
            case Publish(key):
                self._publish(connection, packet, key)
            case Control(key, payload):
                self._control(connection, key, payload or b"")

    def _publish(self, connection: BusConnection, packet: bytes, key: bytes, to: int = 0) -> None:
        """Deliver a message, a direct one to the connection *to*, and send the receipt that its publisher has requested."""
        found = [each for each in self.members(key) if each.number == to] if to else self.recipients(key)
        self._deliver(connection, packet, found, key)
        if connection.receipt is None:
            return
        form, token = connection.receipt
        connection.receipt = None
        listed = b"\0" + b",".join(b"%d" % each.number for each in found) if found and form == controls.RECEIPT_RECIPIENTS else b""
        if form != controls.RECEIPT_UNDELIVERABLE or not found:
            connection.say(b"CMSG !/bus/receipt\0%b\0%d%b" % (token, len(found), listed))

    def _unsubscribe(self, connection: BusConnection, pattern: bytes) -> None:
        """Remove a stored pattern."""
        connection.patterns[pattern] -= 1
        connection.patterns += Counter()
        if not connection.patterns[pattern]:
            self._tell(b"!/event/unsubscribe/%d/%b" % (connection.number, pattern.partition(b"\0")[0]), connection)

    def _subscribe(self, connection: BusConnection, pattern: bytes) -> None:
        """Store a pattern, or reject it."""
        code = next((code for head, code in self.refused_patterns.items() if pattern.startswith(head)), None)
        if pattern.startswith(b"!/conn/") and not pattern.startswith(b"!/conn/%d/" % connection.number):
            code = ErrorCode.EPERM
        if code is not None:
            connection.say(error_packet(code, "refused by the test"))
            return
        connection.patterns[pattern] += 1
        if connection.patterns[pattern] == 1:
            self._tell(b"!/event/subscribe/%d/%b" % (connection.number, pattern.partition(b"\0")[0]), connection)

    def _control(self, connection: BusConnection, key: bytes, payload: bytes) -> None:
        """Answer a control message."""
        if key == controls.PING:
            connection.say(b"CMSG !/bus/ping\0" + payload)
        elif key == controls.FEATURES:
            connection.say(b"CMSG !/bus/features\0batch\ndeliver\ngroup\nping\nrecipients")
        elif key == controls.ADDRESS:
            connection.say(b"CMSG !/conn/whoami\0!/conn/%d/" % connection.number)
        elif key == controls.MEMBERS:
            found = [{"id": each.number, "cred": each.cred.decode()} for each in self.members(payload)]
            connection.say(b"CMSG !/bus/members\0" + json.dumps({"members": found, "next": None}).encode())
        elif key in (controls.GROUP_JOIN, controls.GROUP_LEAVE):
            group, _, pattern = payload.partition(b"\0")
            (self._subscribe if key == controls.GROUP_JOIN else self._unsubscribe)(connection, pattern + b"\0" + group)
        elif key in (controls.RECEIPT_ALWAYS, controls.RECEIPT_RECIPIENTS, controls.RECEIPT_UNDELIVERABLE):
            connection.receipt = (key, payload)
        elif key in (controls.SENDER_ON, controls.SENDER_OFF):
            connection.has_senders = key == controls.SENDER_ON
        elif key.startswith(controls.TO):
            number, inner = parse_direct(b"CMSG %b\0%b" % (key, payload))
            self._publish(connection, inner, inner[4:].partition(b"\0")[0], number)
        elif key.startswith(b"!/"):
            connection.say(error_packet(ErrorCode.ENOSYS, "unknown control"))

    def _route(self, sender: BusConnection, packet: bytes, key: bytes) -> int:
        """Deliver a message, and return the number of recipients."""
        found = self.recipients(key)
        self._deliver(sender, packet, found, key)
        return len(found)

    def _deliver(self, sender: BusConnection, packet: bytes, recipients: list[BusConnection], key: bytes) -> None:
        """Deliver a message to *recipients*; a member of a group gets it as such."""
        for each in recipients:
            text = b"CMSG !/from/%d/%b\0%b" % (sender.number, sender.cred, packet) if each.has_senders else packet
            for group in sorted(each.groups(key)):
                each.say(b"CMSG !/group/%b\0%b" % (group, text) if group else text)

    def _tell(self, key: bytes, about: BusConnection) -> None:
        """Publish an event."""
        event = {"id": about.number, "cred": about.cred.decode(), "time": time.time_ns()}
        head = key.split(b"/", 3)
        if head[2] in (b"subscribe", b"unsubscribe"):
            event["pattern"] = key.split(b"/", 4)[4].decode()
        self._route(BusConnection(0, self._listener, 0), b"MSG %b\0%b" % (key, json.dumps(event).encode()), key)
