"""A small bus for the client's tests: all that calls need of sbus-protocol(7), packet by packet, and a test can step in at each.

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

from sbusd.protocol import controls
from sbusd.protocol.batches import is_batch, parse_batch
from sbusd.protocol.errors import ErrorCode
from sbusd.protocol.keys import KeySpace
from sbusd.protocol.packets import Control, Publish, Subscribe, Unsubscribe, error_packet, parse_packet

WAIT_SECONDS = 20.0
"""When what has not come is a failure; no test waits that long when it passes."""

_SPACE = KeySpace()


@dataclass(eq=False)
class Resident:
    """One connection, from the bus's side."""

    number: int
    socket: socket.socket
    uid: int
    patterns: Counter[bytes] = field(default_factory=Counter)
    has_senders: bool = False
    receipt: tuple[bytes, bytes] | None = None
    received: list[bytes] = field(default_factory=list)

    @property
    def cred(self) -> bytes:
        """Its credentials, as ``whoami`` tells them."""
        return b"!/cred/%d/%d/%d" % (self.uid, self.uid, 1_000 + self.number)

    def say(self, packet: bytes) -> None:
        """Send it a packet; one that is gone is not sent to."""
        with contextlib.suppress(OSError):
            self.socket.send(packet)


class MiniBus:
    """The bus, listening at ``address``. Connections are numbered from 1, and are of the users of ``uids``, by default the test's own."""

    def __init__(self, path: Path) -> None:
        self.address = str(path)
        self.residents: dict[int, Resident] = {}
        self.uids: dict[int, int] = {}
        self.refused_patterns: dict[bytes, ErrorCode] = {}
        """Patterns, by how they begin, that are refused."""
        self.before: Callable[[Resident, bytes], bool | None] = lambda _resident, _packet: None
        """Called with each packet before it is handled; True drops it."""
        self.defects: list[BaseException] = []
        self._next = 1
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(self.address)
        self._listener.listen(64)
        self._lock = threading.RLock()
        self._wake_reader, self._wake_writer = os.pipe()
        self._changed = threading.Condition(self._lock)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def close(self) -> None:
        """End everything. Raises what went wrong in a test's ``before``."""
        os.write(self._wake_writer, b"x")
        self._thread.join(WAIT_SECONDS)
        self._listener.close()
        for resident in self.residents.values():
            resident.socket.close()
        os.close(self._wake_reader)
        os.close(self._wake_writer)
        if self.defects:
            raise self.defects[0]

    def hang_up(self, number: int) -> None:
        """End a connection as if it had ended itself."""
        with self._lock:
            resident = self.residents.pop(number, None)
            if resident is None:
                return
            with contextlib.suppress(OSError):
                resident.socket.shutdown(socket.SHUT_RDWR)
            resident.socket.close()
            self._tell(b"!/event/disconnect/%d" % number, resident)

    def publish(self, key: bytes, payload: bytes, sender: int) -> int:
        """Route a message in the name of a connection, which may be none that is there; return how many got it."""
        with self._lock:
            publisher = self.residents.get(sender) or Resident(sender, self._listener, self.uids.get(sender, 0))
            return self._route(publisher, b"MSG %b\0%b" % (key, payload), key)

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Wait until *condition* holds; it is looked at after each packet."""
        with self._changed:
            assert self._changed.wait_for(condition, WAIT_SECONDS), "what the test waits for has not come"

    def members(self, key: bytes) -> list[Resident]:
        """Return whom a message with *key* would reach."""
        return [each for _, each in sorted(self.residents.items()) if any(_SPACE.matches(pattern, key) for pattern in each.patterns)]

    def _run(self) -> None:
        """Take packets, one after the other."""
        while True:
            with self._lock:
                sockets = {each.socket: each for each in self.residents.values() if each.socket.fileno() >= 0}
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
                    elif isinstance(each, socket.socket) and sockets[each].number in self.residents:
                        self._receive(sockets[each])
                    self._changed.notify_all()

    def _accept(self) -> None:
        """Take a connection in."""
        sock, _ = self._listener.accept()
        resident = Resident(self._next, sock, self.uids.get(self._next, os.getuid()))
        self._next += 1
        self.residents[resident.number] = resident
        self._tell(b"!/event/connect/%d" % resident.number, resident)

    def _receive(self, resident: Resident) -> None:
        """Handle one packet, or those of a batch."""
        try:
            packet = resident.socket.recv(500_000)
        except OSError:
            packet = b""
        if not packet:
            self.hang_up(resident.number)
            return
        for each in parse_batch(packet) if is_batch(packet) else (packet,):
            resident.received.append(each)
            try:
                dropped = self.before(resident, each)
            except BaseException as error:  # shown by close(), in the test's own thread
                self.defects.append(error)
                return
            if resident.number not in self.residents:
                return
            if not dropped:
                self._handle(resident, each)

    def _handle(self, resident: Resident, packet: bytes) -> None:
        """Do what *packet* says."""
        match parse_packet(packet):
            case Subscribe(pattern):
                self._subscribe(resident, pattern)
            case Unsubscribe(pattern):
                resident.patterns[pattern] -= 1
                resident.patterns += Counter()
                if not resident.patterns[pattern]:
                    self._tell(b"!/event/unsubscribe/%d/%b" % (resident.number, pattern), resident)
            case Publish(key):
                count = self._route(resident, packet, key)
                if resident.receipt is not None:
                    form, token = resident.receipt
                    resident.receipt = None
                    if form == controls.RECEIPT_ALWAYS or count == 0:
                        resident.say(b"CMSG !/bus/receipt\0%b\0%d" % (token, count))
            case Control(key, payload):
                self._control(resident, key, payload or b"")

    def _subscribe(self, resident: Resident, pattern: bytes) -> None:
        """Store a pattern, or refuse it."""
        code = next((code for head, code in self.refused_patterns.items() if pattern.startswith(head)), None)
        if pattern.startswith(b"!/conn/") and not pattern.startswith(b"!/conn/%d/" % resident.number):
            code = ErrorCode.EPERM
        if code is not None:
            resident.say(error_packet(code, "refused by the test"))
            return
        resident.patterns[pattern] += 1
        if resident.patterns[pattern] == 1:
            self._tell(b"!/event/subscribe/%d/%b" % (resident.number, pattern), resident)

    def _control(self, resident: Resident, key: bytes, payload: bytes) -> None:
        """Answer a control message."""
        if key == controls.PING:
            resident.say(b"CMSG !/bus/ping\0" + payload)
        elif key == controls.FEATURES:
            resident.say(b"CMSG !/bus/features\0batch\nping")
        elif key == controls.ADDRESS:
            resident.say(b"CMSG !/conn/whoami\0!/conn/%d/" % resident.number)
        elif key == controls.MEMBERS:
            found = [{"id": each.number, "cred": each.cred.decode()} for each in self.members(payload)]
            resident.say(b"CMSG !/bus/members\0" + json.dumps({"members": found, "next": None}).encode())
        elif key in (controls.RECEIPT_ALWAYS, controls.RECEIPT_UNDELIVERABLE):
            resident.receipt = (key, payload)
        elif key in (controls.SENDER_ON, controls.SENDER_OFF):
            resident.has_senders = key == controls.SENDER_ON
        elif key.startswith(b"!/"):
            resident.say(error_packet(ErrorCode.ENOSYS, "unknown control"))

    def _route(self, sender: Resident, packet: bytes, key: bytes) -> int:
        """Hand a message out, and return to how many."""
        found = self.members(key)
        for each in found:
            each.say(b"CMSG !/from/%d/%b\0%b" % (sender.number, sender.cred, packet) if each.has_senders else packet)
        return len(found)

    def _tell(self, key: bytes, about: Resident) -> None:
        """Publish an event."""
        event = {"id": about.number, "cred": about.cred.decode(), "time": time.time_ns()}
        head = key.split(b"/", 3)
        if head[2] in (b"subscribe", b"unsubscribe"):
            event["pattern"] = key.split(b"/", 4)[4].decode()
        self._route(Resident(0, self._listener, 0), b"MSG %b\0%b" % (key, json.dumps(event).encode()), key)
