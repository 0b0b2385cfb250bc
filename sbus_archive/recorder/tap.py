"""The tap of sbus-protocol(7) §6, on a connection that is restored when the bus restarts."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sbus.bus_socket import is_gone, open_socket, parse_target, receive_buffer
from sbus.errors import NoBus, RemoteRefusal
from sbus.protocol import controls
from sbus.protocol.errors import ErrorCode, ProtocolError, SbusError
from sbus.protocol.packets import control_packet, is_batch, parse_batch, parse_error
from sbus.reconnection import ReconnectAttempts
from sbus_archive.recorder.rows import unit_in

_TAP_HEAD = b"CMSG " + controls.TAP + b"\0"
_LOST_HEAD = b"CMSG " + controls.LOST + b"\0"
_ERROR_HEAD = b"CMSG " + controls.ERROR + b"\0"
_ADDRESS_HEAD = b"CMSG " + controls.ADDRESS + b"\0"
_PING_HEAD = b"CMSG " + controls.PING + b"\0"

_CONNECTIONS_HEAD = b"CMSG " + controls.CONNECTIONS + b"\0"
_FEATURES_HEAD = b"CMSG " + controls.FEATURES + b"\0"
_SUBSCRIPTIONS_HEAD = b"CMSG " + controls.SUBSCRIPTIONS + b"\0"

_TOKEN = b"tap"

_END_TOKEN = b"end"

_OPEN_SECONDS = 10.0
"""Maximum time to open the tap; systemd may have to start the bus first."""


class TapRefusedError(SbusError, PermissionError):
    """The bus refuses the tap to this user, or does not have a tap."""


@dataclass(frozen=True, slots=True)
class LostPackets:
    """The bus discarded ``count`` packets of the tap here; None: an unknown number."""

    count: int | None


@dataclass(frozen=True, slots=True)
class BusLost:
    """The connection to the bus ended; ``reason`` says why if that is known."""

    reason: str


@dataclass(frozen=True, slots=True)
class BusRestored:
    """The connection is new, after ``duration_ns`` nanoseconds without one."""

    duration_ns: int


@dataclass(frozen=True, slots=True)
class ActiveSubscriptions:
    """Active subscriptions, in the form of tap events, but without a time."""

    subscriptions: tuple[dict[str, object], ...]


TapOutput = bytes | LostPackets | BusLost | BusRestored | ActiveSubscriptions
"""Items of :meth:`RecorderTap.receive`: packets of the tap, and events of its connection."""


def _packets_in(packet: bytes) -> Iterator[bytes | LostPackets]:
    """Yield a packet, or the packets of a batch; LostPackets for a fault in a batch."""
    if not is_batch(packet):
        yield packet
        return
    try:
        yield from parse_batch(packet)
    except ProtocolError:
        yield LostPackets(None)


class RecorderTap:
    """A tap on the bus at one address. Poll :meth:`fileno`, and call :meth:`receive`; without a connection, call it at the time
    :attr:`due`."""

    def __init__(self, address: str, pattern: bytes, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Tap *pattern* on the bus at *address*. :meth:`open` connects."""
        self.own_id: int | None = None
        """The number of this connection."""
        self.has_ended = False
        """Whether everything before the last :meth:`request_end` was received."""
        self._target = parse_target(address, reconnect=True)
        self._demand = control_packet(controls.TAP_ON, pattern)
        self._clock = clock
        self._backoff = ReconnectAttempts(clock())
        self._socket: socket.socket | None = None
        self._buffer = receive_buffer()
        self._early: list[TapOutput] = []
        self._receives_events = not pattern
        self._lists_subscriptions = False
        self._since: dict[int, int] = {}
        """Times of older connections, in nanoseconds since 1970."""
        self._units: dict[int, str] = {}
        """Units of older connections, as far as the bus reports them."""
        self._pings = 0
        """Requests of :meth:`request_end` without an answer."""
        self._requested_after = b""
        """Where the next page of subscriptions begins. A response for another place belongs to an earlier request."""

    def open(self) -> None:
        """Connect once, and open the tap: no packet is missed after the return.

        Raises:
            NoBus: there is no bus, or it does not respond.
            TapRefusedError: this user has no right to a tap.
        """
        sock = open_socket(self._target, _OPEN_SECONDS)
        try:
            sock.settimeout(_OPEN_SECONDS)
            # A bus without batches ignores that request, and sends single packets.
            self._since.clear()
            self._units.clear()
            for wish in (controls.FEATURES, controls.ADDRESS, controls.BATCH_ON):
                sock.send(control_packet(wish))
            sock.send(self._demand)
            # Sent after the tap request, so that every connection is either listed or newer than this one.
            sock.send(control_packet(controls.CONNECTIONS))
            sock.send(control_packet(controls.PING, _TOKEN))
            self._wait_until_open(sock, self._clock() + _OPEN_SECONDS)
            sock.setblocking(False)
        except OSError as error:
            sock.close()
            if isinstance(error, SbusError):
                raise
            reason = "no response" if isinstance(error, TimeoutError) else error.strerror or str(error)
            raise NoBus(self._target.text, reason) from error
        except BaseException:
            sock.close()
            raise
        self._socket = sock
        self._backoff.connected(self._clock())
        self._request_subscriptions()

    @property
    def address(self) -> str:
        """The address of the bus, as it was given."""
        return self._target.text

    def since(self, conn: int, ts: int) -> int | None:
        """Return when connection *conn* was made, or a time soon after; None if that is unknown: its pid may belong to another process
        now.

        *ts* is the time at which it was first seen. Both are nanoseconds since 1970.
        """
        if self.own_id is not None and conn > self.own_id:
            return ts
        return self._since.get(conn)

    def unit(self, conn: int) -> str | None:
        """Return the unit that the bus listed for connection *conn*, None if it listed none."""
        return self._units.get(conn)

    def fileno(self) -> int | None:
        """Return the descriptor to poll, None while there is no connection."""
        return None if self._socket is None else self._socket.fileno()

    @property
    def due(self) -> float | None:
        """Time of the next connection attempt; None while there is a connection."""
        return self._backoff.due if self._socket is None else None

    def receive(self, limit: int) -> Iterator[TapOutput]:
        """Yield what is available, until the socket is empty or *limit* packets were read (more if the last one is a batch).

        Reconnects when that is due.

        Raises:
            TapRefusedError: a restarted bus refuses the tap.
        """
        if self._socket is None:
            yield from self._reconnect()
        early, self._early = self._early, []
        yield from early
        while limit > 0 and self._socket is not None:
            try:
                size = self._socket.recv_into(self._buffer)
            except BlockingIOError:
                return
            except OSError as error:
                yield self._disconnected(error.strerror or str(error) if not is_gone(error) else "the bus closed the connection")
                return
            if size == 0:
                yield self._disconnected("the bus closed the connection")
                return
            for packet in _packets_in(bytes(self._buffer[:size])):
                limit -= 1
                output = packet if isinstance(packet, LostPackets) else self._read(packet)
                if output is not None:
                    yield output

    def request_end(self) -> None:
        """Ask the bus to confirm that everything so far was sent, see ``has_ended``. Later packets are received as well."""
        self.has_ended = False
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.send(control_packet(controls.PING, _END_TOKEN))
                self._pings += 1

    def close(self) -> None:
        """Close the connection. It can be called again."""
        self._pings = 0
        sock, self._socket = self._socket, None
        if sock is not None:
            sock.close()

    def _wait_until_open(self, sock: socket.socket, deadline: float) -> None:
        """Read until the tap is open; keep packets of the tap that arrive before. Raises OSError, TapRefusedError."""
        refusal: RemoteRefusal | None = None
        has_begun, pages = False, 1
        while not has_begun:
            if self._clock() > deadline:
                raise TimeoutError
            size = sock.recv_into(self._buffer)
            if size == 0:
                raise NoBus(self._target.text, f"the bus closed the connection{f': {refusal.said}' if refusal else ''}")
            for packet in _packets_in(bytes(self._buffer[:size])):
                if isinstance(packet, LostPackets):
                    self._early.append(packet)
                elif packet.startswith(_ERROR_HEAD):
                    refusal = RemoteRefusal(*parse_error(packet[len(_ERROR_HEAD) :]))
                    self._check_refusal(refusal)
                elif packet.startswith(_FEATURES_HEAD):
                    self._check_features(packet[len(_FEATURES_HEAD) :])
                elif packet.startswith(_CONNECTIONS_HEAD):
                    if (following := self._read_connections(packet[len(_CONNECTIONS_HEAD) :])) is not None:
                        sock.send(control_packet(controls.CONNECTIONS, b"%d" % following))
                        sock.send(control_packet(controls.PING, _TOKEN))
                        pages += 1
                elif packet == _PING_HEAD + _TOKEN:
                    # One reply for each requested page. It follows the page.
                    pages -= 1
                    has_begun = not pages
                elif (output := self._read(packet)) is not None:
                    self._early.append(output)

    def _check_refusal(self, refusal: RemoteRefusal) -> None:
        """Raise TapRefusedError if *refusal* is about the tap."""
        if refusal.code is ErrorCode.EPERM:
            raise TapRefusedError(
                f"cannot tap the bus at {self._target.text}: {refusal.said}. "
                'Allow this user with tap = { users = ["NAME"] } under [rights] in sbusd.toml(5)'
            )

    def _check_features(self, features: bytes) -> None:
        """Raise TapRefusedError if the bus has no tap: it would ignore the request silently."""
        names = features.split(b"\n")
        self._lists_subscriptions = b"subscriptions" in names
        if b"tap" not in names:
            raise TapRefusedError(f"cannot tap the bus at {self._target.text}: it is too old to have a tap. Upgrade sbusd")

    def _read_connections(self, answer: bytes) -> int | None:
        """Store a page of connections, and return the number after which the next page begins."""
        try:
            page = json.loads(answer)
            self._since.update((int(each["id"]), int(each["since"] * 1e9)) for each in page["connections"])
            self._units.update((int(each["id"]), unit) for each in page["connections"] if (unit := unit_in(each)) is not None)
            following = page["next"]
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return None
        return following if type(following) is int and following >= 0 else None

    def _request_subscriptions(self, after: bytes = b"") -> None:
        """Request a page of the active subscriptions. A tap with a pattern does not, because it is not notified when they end."""
        if self._socket is not None and self._lists_subscriptions and self._receives_events:
            self._requested_after = after
            # If the bus has gone or does not read, receive() notices it; then everything is requested again.
            with contextlib.suppress(OSError):
                self._socket.send(control_packet(controls.SUBSCRIPTIONS, after))

    def _read_subscriptions(self, answer: bytes) -> ActiveSubscriptions | None:
        """Return the subscriptions of a page, and request the next page."""
        try:
            page = json.loads(answer)
            after, found, following = page["after"], page["subscriptions"], page["next"]
        except (ValueError, KeyError, TypeError, RecursionError):
            return None
        if after != self._requested_after.decode() or not isinstance(found, list):
            return None
        if isinstance(following, str):
            self._request_subscriptions(following.encode())
        return ActiveSubscriptions(tuple(each for each in found if isinstance(each, dict)))

    def _read(self, packet: bytes) -> bytes | LostPackets | ActiveSubscriptions | None:
        """Return the item for a packet, None if it is not for the record."""
        if packet.startswith(_TAP_HEAD):
            return packet
        if packet.startswith(_LOST_HEAD):
            # The lost packets may include subscriptions, or the response to the request.
            self._request_subscriptions()
            count = packet[len(_LOST_HEAD) :]
            # 0 means an unknown number: the bus was killed, and its queues were lost.
            return LostPackets(int(count) or None if count.isdigit() and len(count) < 19 else None)
        if packet.startswith(_SUBSCRIPTIONS_HEAD):
            return self._read_subscriptions(packet[len(_SUBSCRIPTIONS_HEAD) :])
        if packet == _PING_HEAD + _END_TOKEN:
            self._pings = max(0, self._pings - 1)
            self.has_ended = not self._pings
        elif packet.startswith(_ADDRESS_HEAD):
            digits = packet[len(_ADDRESS_HEAD) :].removeprefix(b"!/conn/").removesuffix(b"/")
            self.own_id = int(digits) if digits.isdigit() and len(digits) < 19 else None
        return None

    def _disconnected(self, reason: str) -> BusLost:
        """Close the connection, and schedule a reconnect."""
        self.close()
        self._backoff.lost(self._clock())
        return BusLost(reason)

    def _reconnect(self) -> Iterator[TapOutput]:
        """Reconnect, if that is due."""
        now = self._clock()
        if now < self._backoff.due:
            return
        self._backoff.attempt(now)
        try:
            self.open()
        except NoBus:
            return
        yield BusRestored(int(max(0.0, self._clock() - self._backoff.since) * 1e9))
