"""The network without a server: each link listens, and connects to the others by mutual TLS. For up to some 30 hosts.

Two hosts keep one connection: that which the host with the lesser name has made, if both make one. The network counts as connected while at
least one other host is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from sbus_programs.backoff import Backoff
from sbus_programs.config.certificates import CertificateFiles, Identity, client_context
from sbus_programs.config.files import ConfigError
from sbus_programs.config.link import is_name
from sbus_services.link.network import direct_frames
from sbus_services.link.network.counters import NetworkCounters, NetworkState
from sbus_services.link.network.credential_files import SERVICE_USER
from sbus_services.link.network.direct_frames import FrameError
from sbus_services.link.network.direct_listener import HANDSHAKE_SECONDS, Listener, peer_named
from sbus_services.link.network.direct_peer import PeerConnection
from sbus_services.link.network.streams import Stall, Writable, error_words, open_streams
from sbus_services.link.network.subject_tree import SubjectTree, TooManySubjectsError
from sbus_services.link.ports import LINK, NetworkEvents

MAX_PEERS = 64
MAX_ROUTES = 4_096
"""Subjects whose receivers are remembered."""


@dataclass(frozen=True, slots=True)
class DirectSettings:
    """Who this host is, where it listens, and which the other hosts are.

    ``listen`` is None if it does not. ``peers`` has a host and a port for each of them, or None for a host that only connects to this one.
    Certificates name their host as
    ``DNS:<host>``. At most ``max_pending_bytes`` of messages wait for each of them; users share them.

    Raises:
        ValueError: a value cannot be used; the text names it.
    """

    realm: str
    host: str
    listen: tuple[str, int] | None
    peers: Mapping[str, tuple[str, int] | None]
    tls: CertificateFiles
    max_pending_bytes: int = 4 << 20

    def __post_init__(self) -> None:
        for what, name in (("realm", self.realm), ("host", self.host), *(("peer", peer) for peer in self.peers)):
            if not is_name(name):
                raise ValueError(f"invalid {what} {name!r}: it must be 1 to 63 letters, digits, '_' and '-'")
        folded = {name.lower() for name in (self.host, *self.peers)}
        if len(folded) != 1 + len(self.peers):
            raise ValueError("the names of the hosts must differ in more than case")
        if len(self.peers) > MAX_PEERS:
            raise ValueError(f"{len(self.peers)} peers; the maximum is {MAX_PEERS}: use a NATS server for more")


@dataclass(slots=True)
class PeerCounters:
    """Counters of one other host."""

    connects: int = 0
    messages_in: int = 0
    messages_out: int = 0
    dropped: int = 0
    """Messages that were not sent because too many bytes waited for this host."""
    forged: int = 0
    """What the host sent although it may not, such as messages in the name of another host."""
    last_error: str = ""


@dataclass(slots=True)
class _Barrier:
    """A barrier, and the hosts that have not passed it."""

    number: int
    waits_for: set[PeerConnection] = field(default_factory=set)


class DirectNetwork:
    """Implements `sbus_services.link.ports.Network`; a subject that is subscribed to twice counts once.

    *writable* returns when the local bus takes messages; it is awaited between two reads. A host closes a connection that is not read for
    some seconds. *report* gets one line for each connection that could not be made, was refused or has ended.
    """

    def __init__(self, settings: DirectSettings, writable: Writable, report: Callable[[str], None]) -> None:
        self.counters = NetworkCounters()
        self.peer_counters = {name: PeerCounters() for name in settings.peers}
        self._settings = settings
        self._stall = Stall(writable, self.counters)
        self._report = report
        self._events: NetworkEvents | None = None
        self._connections: dict[str, PeerConnection] = {}
        self._gone: dict[str, asyncio.Event] = {name: asyncio.Event() for name in settings.peers}
        self._subscriptions = SubjectTree()
        self._subjects: set[str] = set()
        self._routes: dict[str, list[PeerConnection]] = {}
        self._barriers: dict[int, _Barrier] = {}
        self._last_ping = 0
        self._listener: Listener | None = None
        self._defect: asyncio.Future[None] | None = None
        self._room = asyncio.Event()

    @property
    def state(self) -> NetworkState:
        """The present connections."""
        return NetworkState(bool(self._connections), encrypted=True, authenticated=True)

    @property
    def address(self) -> str:
        """The address of this end of the first connection."""
        return next((peer.own_address for peer in self._connections.values()), "")

    @property
    def port(self) -> int:
        """The port on which this host listens. Raises RuntimeError before it does."""
        if self._listener is None:
            raise RuntimeError("not started")
        return self._listener.port

    def check(self, *, is_start: bool) -> None:
        """Raise ConfigError if a file of the settings cannot be used, or if other hosts would reject it: see :meth:`Identity.check`."""
        settings = self._settings
        listens = settings.listen is not None
        connects = any(settings.peers.values()) or not listens
        Identity(settings.tls, settings.host, SERVICE_USER, as_client=connects, as_server=listens).check(is_start=is_start)

    async def run(self, events: NetworkEvents) -> None:
        """Listen, connect, and reconnect whenever a connection ends, until cancelled. An exception of *events* ends it.

        Raises:
            OSError: cannot listen.
        """
        self._events = events
        self._defect = asyncio.get_running_loop().create_future()
        settings = self._settings
        self._listener = Listener(settings.tls, settings.peers, self._accept, self.counters, self._report)
        if settings.listen is not None:
            await self._listener.start(*settings.listen)
        self.counters.last_error = "; ".join(self._absent())
        tasks = [asyncio.create_task(self._dial(name, address)) for name, address in settings.peers.items() if address is not None]
        try:
            await asyncio.wait([*tasks, self._defect], return_when=asyncio.FIRST_EXCEPTION)
            for done in (*tasks, self._defect):
                if done.done():
                    done.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._listener.close()

    # The port

    def publish(self, subject: str, head: bytes, body: bytes, owner: int = LINK) -> None:
        """Send a message of *owner* to each host that has subscribed to *subject*."""
        frame = direct_frames.message(subject, head, body)
        size = len(head) + len(body)
        if frame is None:
            self.counters.oversize += 1
            self._reject(f"a message of {size} bytes to {subject} exceeds {direct_frames.MAX_FRAME_BYTES}")
            return
        for peer in self._receivers(subject):
            dropped = peer.send_message(frame, size, owner)
            self.peer_counters[peer.name].dropped += dropped
            self.counters.dropped += dropped

    def subscribe(self, subject: str) -> None:
        """Receive what other hosts publish to *subject*."""
        if subject in self._subjects:
            return
        try:
            self._subscriptions.add(subject)
        except TooManySubjectsError as error:
            self._reject(f"cannot subscribe to {subject}: {error}")
            return
        self._subjects.add(subject)
        for peer in self._connections.values():
            peer.send(direct_frames.subscribe(subject))

    def unsubscribe(self, subject: str) -> None:
        """End the subscription to *subject*, if there is one."""
        if subject not in self._subjects:
            return
        self._subjects.remove(subject)
        self._subscriptions.remove(subject)
        for peer in self._connections.values():
            peer.send(direct_frames.unsubscribe(subject))

    def barrier(self, number: int) -> None:
        """Call ``barrier_passed`` once all connected hosts have processed everything sent before, or are disconnected."""
        self._last_ping += 1
        self._barriers[self._last_ping] = _Barrier(number, set(self._connections.values()))
        for peer in self._connections.values():
            peer.send(direct_frames.ping(self._last_ping))

    async def drained(self) -> None:
        """Return when at least one connected host has room. A host that does not read costs itself messages, and not the others."""
        most = self._settings.max_pending_bytes // 2
        while self._connections and all(peer.pending_bytes > most for peer in self._connections.values()):
            self._room.clear()
            await self._room.wait()

    def backlog(self, subject: str) -> int:
        """Return the most bytes that wait for a host that has subscribed to *subject*."""
        return max((peer.pending_bytes for peer in self._receivers(subject)), default=0)

    def _absent(self) -> Iterator[str]:
        """Yield why each host that this one cannot connect to is not connected at the start."""
        for name, address in self._settings.peers.items():
            if address is None:
                yield f"host {name} has no address here, and has not connected to this host yet"

    # What the connections report

    def peer_sent(self, peer: PeerConnection, subject: str, head: bytes, body: bytes) -> None:
        """Deliver a message, if this host has subscribed to its subject."""
        if not self._subscriptions.matches(subject):
            self.counters.unwanted += 1
            return
        self.peer_counters[peer.name].messages_in += 1
        self.counters.messages_in += 1
        self.counters.bytes_in += len(head) + len(body)
        self._receiver.received(subject, head, body)

    def peer_changed(self, peer: PeerConnection) -> None:  # noqa: ARG002
        """Compute the receivers of subjects again."""
        self._routes.clear()

    def peer_passed(self, peer: PeerConnection, number: int) -> None:
        """Note that a host has passed a barrier."""
        barrier = self._barriers.get(number)
        if barrier is None:
            return
        barrier.waits_for.discard(peer)
        if not barrier.waits_for:
            del self._barriers[number]
            self._receiver.barrier_passed(barrier.number)

    def peer_rejected(self, peer: PeerConnection, reason: str) -> None:
        """Report an error that a host returned."""
        self.counters.rejected += 1
        self._receiver.rejected(f"host {peer.name} said: {reason}")

    def peer_forged(self, peer: PeerConnection, reason: str) -> None:
        """Count what a host may not send; report the first of each connection."""
        counters = self.peer_counters[peer.name]
        counters.forged += 1
        self.counters.forged += 1
        if counters.last_error != reason:
            self._report(f"rejected from host {peer.name}: {reason}")
        counters.last_error = reason

    def peer_got(self, peer: PeerConnection, content: int) -> None:
        """Count a message that was sent to a host."""
        self.peer_counters[peer.name].messages_out += 1
        self.counters.messages_out += 1
        self.counters.bytes_out += content

    def peer_has_room(self) -> None:
        """Note that a host has taken what waited for it."""
        self._room.set()

    # Connections

    async def _dial(self, name: str, address: tuple[str, int]) -> None:
        """Connect to the host *name* whenever it is not connected."""
        backoff = Backoff()
        while True:
            if name in self._connections:
                gone = self._gone[name]
                gone.clear()
                await gone.wait()
            # The host with the lesser name connects at once, so that seldom both do.
            if self._preferred(name) != self._settings.host or self.peer_counters[name].connects:
                await asyncio.sleep(backoff.delay())
            if name not in self._connections:
                seconds = await self._use(name, address)
                backoff.lasted(seconds)
                await asyncio.sleep(backoff.delay())

    async def _use(self, name: str, address: tuple[str, int]) -> float:
        """Connect to *name* and serve the connection; return the seconds that it lasted."""
        begin = asyncio.get_running_loop().time()
        try:
            context = client_context(self._settings.tls, SERVICE_USER)
            async with asyncio.timeout(2 * HANDSHAKE_SECONDS):
                reader, writer = await open_streams(
                    *address, ssl=context, server_hostname=name, ssl_handshake_timeout=HANDSHAKE_SECONDS, ssl_shutdown_timeout=1.0
                )
        except (OSError, ConfigError, UnicodeError) as error:
            self._note_failure(name, f"cannot connect to host {name} at {address[0]} port {address[1]}: {error_words(error)}")
            return 0.0
        try:
            peer_named(writer.get_extra_info("peercert"), frozenset({name}))
            await self._serve(PeerConnection(name, self._settings.host, reader, writer, self._settings.max_pending_bytes))
        except ConnectionError as error:
            self._note_failure(name, f"cannot connect to host {name}: {error}")
        finally:
            writer.transport.abort()
        return asyncio.get_running_loop().time() - begin

    async def _accept(self, name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection that *name* has made."""
        try:
            await self._serve(PeerConnection(name, name, reader, writer, self._settings.max_pending_bytes))
        except Exception as error:  # a defect of the receiver of the events: the process must not continue without it
            if self._defect is not None and not self._defect.done():
                self._defect.set_exception(error)

    async def _serve(self, peer: PeerConnection) -> None:
        """Use a verified connection until it ends, unless there is a better one to the same host."""
        try:
            await peer.greet(self._settings.realm)
        except (OSError, FrameError) as error:
            words = "it sent " + str(error) if isinstance(error, FrameError) else error_words(error)
            self._note_failure(peer.name, f"cannot use the connection to host {peer.name}: {words}")
            return
        current = self._connections.get(peer.name)
        if current is not None and peer.dialler != current.dialler and peer.dialler != self._preferred(peer.name):
            return
        self._join(peer)
        reason = "the link stops"
        try:
            reason = await peer.run(self._settings.realm, self, self._stall)
        finally:
            self._leave(peer, reason)

    def _join(self, peer: PeerConnection) -> None:
        """Start to use a connection, in place of an older one to the same host."""
        was_connected = bool(self._connections)
        older = self._connections.pop(peer.name, None)
        self._connections[peer.name] = peer
        self._routes.clear()
        if older is not None:
            older.abort("replaced by a newer connection")
            self._forget_barriers(older)
        self.counters.connects += 1
        self.peer_counters[peer.name].connects += 1
        if was_connected:
            for subject in self._subjects:
                peer.send(direct_frames.subscribe(subject))
        else:
            self._receiver.connected()

    def _leave(self, peer: PeerConnection, reason: str) -> None:
        """Stop to use a connection that has ended."""
        peer.abort()
        self._room.set()
        if self._connections.get(peer.name) is not peer:
            return
        del self._connections[peer.name]
        self._gone[peer.name].set()
        self._routes.clear()
        words = f"host {peer.name} is disconnected: {reason}"
        self.peer_counters[peer.name].last_error = self.counters.last_error = words
        self._report(words)
        if self._connections:
            self._forget_barriers(peer)
            return
        self._barriers.clear()
        self._subjects.clear()
        self._subscriptions = SubjectTree()
        self._receiver.disconnected(words)

    def _forget_barriers(self, peer: PeerConnection) -> None:
        """Pass each barrier that only waits for *peer*."""
        for number in list(self._barriers):
            self.peer_passed(peer, number)

    def _preferred(self, name: str) -> str:
        """Return which of this host and *name* makes the connection that is kept."""
        return min(self._settings.host, name)

    def _receivers(self, subject: str) -> list[PeerConnection]:
        """Return the connections of the hosts that have subscribed to *subject*."""
        receivers = self._routes.get(subject)
        if receivers is None:
            if len(self._routes) >= MAX_ROUTES:
                self._routes.clear()
            receivers = [peer for peer in self._connections.values() if peer.subjects.matches(subject)]
            self._routes[subject] = receivers
        return receivers

    def _note_failure(self, name: str, words: str) -> None:
        """Count and report a connection that could not be made or used."""
        self.counters.connect_failures += 1
        self.counters.last_error = self.peer_counters[name].last_error = words
        self._report(words)

    def _reject(self, reason: str) -> None:
        """Report, after the caller has returned, what was not sent."""

        def reject() -> None:
            if self._connections:
                self._receiver.rejected(reason)

        asyncio.get_running_loop().call_soon(reject)

    @property
    def _receiver(self) -> NetworkEvents:
        """The receiver of the events."""
        if self._events is None:
            raise RuntimeError("not started")
        return self._events
