"""The bus of this machine: one connection that reports everything in the order in which it came.

The client library has a queue for each subscription. The protocol of the link needs messages, events of other clients, losses and
acknowledgements in one order, so this connection handles the packets itself. Spec: sbus-protocol(7).
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sbus.bus_socket import RECEIVE_BYTES, bus_address, is_gone, open_socket, parse_target
from sbus.errors import SbusError
from sbus.protocol import controls
from sbus.protocol.credentials import make_peer
from sbus.protocol.packets import BATCH_HEAD, LENGTH_BYTES, control_packet, is_batch, subscribe_packet, unsubscribe_packet
from sbus.protocol.vouching import MAX_LOST_PATTERNS, loss_payload
from sbus_programs.backoff import Attempts
from sbus_services.link.message_runs import MessageRun, message_runs, single_run
from sbus_services.link.ports import LocalBusEvents

TURN_PACKETS = 64
"""Packets read in one turn of the event loop; a batch counts once."""

FULL_BYTES = 1 << 20
"""While more than this waits for the bus, the network is not read."""

MAX_PENDING_BYTES = 64 << 20
"""While more than this waits for the bus, messages of other hosts are discarded, and counted."""

_EVENTS = (b"!/event/subscribe/", b"!/event/unsubscribe/", b"!/event/disconnect/")
_BARRIER = b"events "
"""Begin of the payload of a ping for `BusConnection.after_events`; those of the protocol are numbers."""
_MODES = (controls.SENDER_ON, controls.ECHO_OFF, controls.BATCH_ON)


class BusRefusedError(SbusError):
    """The bus does not give the link what it needs."""


class BusConnection:
    """Implements `sbus_services.link.ports.LocalBus`. Packets are dropped while the bus is away; after `restarted` they are repeated.

    *drained* returns when the network takes more messages; the bus is not read before, so it queues them, within the limits of the user.
    *report* gets one line for each connection that could not be made, and for each refusal of the bus.
    """

    def __init__(self, address: str, drained: Callable[[], Awaitable[None]], report: Callable[[str], None]) -> None:
        self._target = parse_target(bus_address(address or None), reconnect=True)
        self._drained = drained
        self._report = report
        self._sock: socket.socket | None = None
        self._pending: deque[bytes] = deque()
        self._pending_bytes = 0
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._barriers: dict[int, Callable[[], None]] = {}
        self._last_barrier = 0
        self.refusals = 0
        """Packets that the bus refused."""
        self.discarded_messages = 0
        """Messages of other hosts that were not published because too much waited for the bus, or there was none."""

    async def run(self, events: LocalBusEvents) -> None:
        """Connect, and reconnect whenever the connection ends, until cancelled. An exception of *events* ends it."""
        async for _ in Attempts():
            try:
                with self._connected() as sock:
                    await self._serve(sock, events)
            except (SbusError, OSError) as error:
                self._report(f"the bus at {self._target.text}: {error}")

    async def writable(self) -> None:
        """Return when the bus takes messages of other hosts again."""
        await self._has_room.wait()

    def after_events(self, done: Callable[[], None]) -> None:
        """Call *done* when every event that has happened on the bus before this call is reported."""
        self._last_barrier += 1
        self._barriers[self._last_barrier] = done
        self.send(control_packet(controls.PING, _BARRIER + b"%d" % self._last_barrier))

    def cancel(self, done: Callable[[], None]) -> None:
        """Do not call *done*."""
        self._barriers = {number: each for number, each in self._barriers.items() if each != done}

    def pass_barriers(self, last: int | None = None) -> None:
        """Call the functions of the first *last* calls of :meth:`after_events`, or of all."""
        for number in [each for each in self._barriers if last is None or each <= last]:
            self._barriers.pop(number)()

    # The port of the protocol.

    def subscribe(self, pattern: bytes) -> None:
        """Store one instance of a pattern."""
        self.send(subscribe_packet(pattern))

    def unsubscribe(self, pattern: bytes) -> None:
        """Remove one instance of a pattern."""
        self.send(unsubscribe_packet(pattern))

    def acknowledge(self, number: int) -> None:
        """Ask for `LocalBusEvents.acknowledged`."""
        self.send(control_packet(controls.PING, b"%d" % number))

    def publish(self, body: bytes, count: int) -> None:
        """Send *count* packets, each after its length, as one batch."""
        if self._sock is None or self._pending_bytes > MAX_PENDING_BYTES:
            self.discarded_messages += count
            return
        self.send(BATCH_HEAD + body if count > 1 else body[LENGTH_BYTES:])

    def report_lost(self, patterns: Sequence[bytes], count: int) -> None:
        """Report a loss. A client with patterns in several packets is notified by each of them, so then the number is unknown."""
        if len(patterns) > MAX_LOST_PATTERNS:
            count = 0
        for start in range(0, len(patterns), MAX_LOST_PATTERNS):
            self.send(control_packet(controls.LOST_FOR, loss_payload(count, list(patterns[start : start + MAX_LOST_PATTERNS]))))

    # The socket.

    @contextmanager
    def _connected(self) -> Iterator[socket.socket]:
        sock = open_socket(self._target, 0)
        sock.setblocking(False)
        self._sock = sock
        try:
            yield sock
        finally:
            asyncio.get_running_loop().remove_writer(sock)
            self._sock = None
            self._pending.clear()
            self._pending_bytes = 0
            self._has_room.set()
            sock.close()

    async def _serve(self, sock: socket.socket, events: LocalBusEvents) -> None:
        """Begin, and then report received packets until the connection ends. Raises OSError, SbusError."""
        arrivals = _Arrivals(self, events)
        buffer = memoryview(bytearray(RECEIVE_BYTES))

        def read_some() -> bool:
            """Read a turn's packets; return whether there may be more."""
            for _ in range(TURN_PACKETS):
                try:
                    length = sock.recv_into(buffer)
                except BlockingIOError:
                    return False
                if not length:
                    raise ConnectionResetError("the bus closed the connection")
                arrivals.take(bytes(buffer[:length]))
            return True

        for key in _MODES:
            self.send(control_packet(key))
        for pattern in _EVENTS:
            self.send(subscribe_packet(pattern))
        self.send(control_packet(controls.ADDRESS))
        while True:
            if read_some():
                await asyncio.sleep(0)
            else:
                await _readable(sock)
            await self._drained()

    def send(self, packet: bytes) -> None:
        """Send a packet, at once if there is room."""
        if self._sock is None:
            return
        if not self._pending and self._try_send(packet):
            return
        if not self._pending:
            asyncio.get_running_loop().add_writer(self._sock, self._drain)
        self._pending.append(packet)
        self._pending_bytes += len(packet)
        if self._pending_bytes > FULL_BYTES:
            self._has_room.clear()

    def _drain(self) -> None:
        while self._pending and self._try_send(self._pending[0]):
            self._pending_bytes -= len(self._pending.popleft())
        if self._pending_bytes <= FULL_BYTES // 2:
            self._has_room.set()
        if not self._pending and self._sock is not None:
            asyncio.get_running_loop().remove_writer(self._sock)

    def _try_send(self, packet: bytes) -> bool:
        """Send a packet; return False if the socket is full. A packet to a bus that has closed is dropped: the reader sees its end."""
        try:
            if self._sock is not None:
                self._sock.send(packet)
        except BlockingIOError:
            return False
        except OSError as error:
            if not is_gone(error):
                self.refused(f"{error.strerror}: a packet of {len(packet)} bytes")
        return True

    def refused(self, reason: str) -> None:
        """Count and report what the bus did not accept."""
        self.refusals += 1
        self._report(f"the bus refused: {reason}")


class _Arrivals:
    """Received packets of one connection: first a list of all subscriptions, then events and messages in order."""

    def __init__(self, bus: BusConnection, events: LocalBusEvents) -> None:
        self._bus = bus
        self._events = events
        self._own_id = -1
        self._listed: dict[tuple[int, int], set[bytes]] | None = {}
        """The patterns of each client, by number and user, while the pages of the list come; None: the list is complete."""

    def take(self, packet: bytes) -> None:
        """Handle a packet. Raises SbusError if the bus does not give what is needed."""
        if is_batch(packet):
            for each in message_runs(packet, len(BATCH_HEAD)):
                self._take(each)
        else:
            self._take(single_run(packet) or packet)

    def _take(self, arrived: MessageRun | bytes) -> None:
        if isinstance(arrived, MessageRun):
            self._messages(arrived)
            return
        key, _, payload = arrived.removeprefix(b"CMSG ").partition(b"\0")
        handle = _CONTROLS.get(key)
        if handle is not None:
            handle(self, payload)

    def _messages(self, run: MessageRun) -> None:
        if run.key.startswith(b"!/event/"):
            for single in run.singles():
                self._event(run.key, single.payload)
        elif self._listed is None:
            _number, _, sender = run.sender.partition(b"/")
            self._events.messages(run._replace(sender=sender))

    def _event(self, key: bytes, payload: bytes) -> None:
        kind, _, rest = key.removeprefix(b"!/event/").partition(b"/")
        digits, _, pattern = rest.partition(b"/")
        client = int(digits)
        if client == self._own_id:
            return
        uid = _uid(client, json.loads(payload))
        if self._listed is not None:
            self._change_list(kind, (client, uid), pattern)
        elif kind == b"subscribe":
            self._events.subscribed(client, uid, pattern)
        elif kind == b"unsubscribe":
            self._events.unsubscribed(client, pattern)
        else:
            self._events.client_gone(client)

    def _change_list(self, kind: bytes, client: tuple[int, int], pattern: bytes) -> None:
        """Apply an event between two pages of the list."""
        listed = self._listed or {}
        if kind == b"subscribe":
            listed.setdefault(client, set()).add(pattern)
        elif kind == b"unsubscribe":
            listed.get(client, set()).discard(pattern)
        else:
            listed.pop(client, None)

    def _on_address(self, payload: bytes) -> None:
        self._own_id = int(payload.split(b"/")[2])
        question = b"%d\0publish\0host/x/y" % os.geteuid()
        self._bus.send(control_packet(controls.EXPLAIN, question))
        self._bus.send(control_packet(controls.SUBSCRIPTIONS))

    def _on_explanation(self, payload: bytes) -> None:
        decision = json.loads(payload)
        for what, words in (("allowed", "may not publish under host/"), ("may_vouch", "has no right vouch")):
            if not decision.get(what):
                raise BusRefusedError(f"user {os.geteuid()} {words}; see sbus-link(8), RIGHTS")

    def _on_subscriptions(self, payload: bytes) -> None:
        page: dict[str, Any] = json.loads(payload)
        if self._listed is None:
            return
        for each in page["subscriptions"]:
            if each["id"] != self._own_id:
                self._listed.setdefault((each["id"], _uid(each["id"], each)), set()).add(_pattern(each))
        if page["next"] is not None:
            self._bus.send(control_packet(controls.SUBSCRIPTIONS, b"%d" % page["next"]))
            return
        listed, self._listed = self._listed, None
        self._events.restarted()
        for (client, uid), patterns in listed.items():
            for pattern in patterns:
                self._events.subscribed(client, uid, pattern)
        self._bus.pass_barriers()

    def _on_ping(self, payload: bytes) -> None:
        if not payload.startswith(_BARRIER):
            self._events.acknowledged(int(payload))
        elif self._listed is None:
            self._bus.pass_barriers(int(payload.removeprefix(_BARRIER)))

    def _on_lost(self, payload: bytes) -> None:
        self._events.lost(int(payload))

    def _on_error(self, payload: bytes) -> None:
        reason = payload.decode("ascii", "backslashreplace")
        if self._listed is not None:
            raise BusRefusedError(f"{reason}; see sbus-link(8), RIGHTS")
        self._bus.refused(reason)
        if payload.startswith(b"EDQUOT"):
            # A subscription for another host may be missing.
            self._events.lost(0)


_CONTROLS: dict[bytes, Callable[[_Arrivals, bytes], None]] = {
    controls.ADDRESS: _Arrivals._on_address,
    controls.SUBSCRIPTIONS: _Arrivals._on_subscriptions,
    controls.EXPLAIN: _Arrivals._on_explanation,
    controls.PING: _Arrivals._on_ping,
    controls.LOST: _Arrivals._on_lost,
    controls.ERROR: _Arrivals._on_error,
}


def _set(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


async def _readable(sock: socket.socket) -> None:
    """Return when *sock* has something to read, or has ended."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(sock, _set, ready)
    try:
        await ready
    finally:
        loop.remove_reader(sock)


def _uid(client: int, entry: dict[str, Any]) -> int:
    """Return the user of the connection *client* in an event, or in an entry of the list of subscriptions."""
    return make_peer(client, str(entry["cred"]).encode()).uid


def _pattern(entry: dict[str, Any]) -> bytes:
    """Return the pattern in an entry of the list of subscriptions."""
    encoded = entry.get("pattern_base64")
    return base64.b64decode(encoded) if encoded is not None else str(entry["pattern"]).encode()
