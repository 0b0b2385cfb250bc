"""The network as a NATS server or cluster: connects, reconnects without end, and implements the port of the protocol."""

from __future__ import annotations

import asyncio
import random
import re
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from sbus_programs.backoff import Backoff
from sbus_programs.config.certificates import CertificateFiles, check_dates, client_context
from sbus_programs.config.files import ConfigError
from sbus_services.link.network import nats_protocol as protocol
from sbus_services.link.network.counters import NetworkCounters, NetworkState
from sbus_services.link.network.credential_files import SERVICE_USER, read_secret
from sbus_services.link.network.nats_connection import ConnectFailedError, Credentials, NatsConnection
from sbus_services.link.network.streams import Stall, Writable
from sbus_services.link.ports import LINK, NetworkEvents

MAX_SUBJECT_BYTES = 3_900
"""A server's limit for a line with a subject and numbers is 4,096. It closes the connection of a client that exceeds it."""

_SUBJECT = re.compile(rf"[!-~]{{1,{MAX_SUBJECT_BYTES}}}")


@dataclass(frozen=True, slots=True)
class NatsSettings:
    """Where the servers are, and who this host is.

    ``servers`` are URLs ``nats://HOST[:PORT]`` or ``tls://HOST[:PORT]``. The host is authenticated by its certificate in ``tls``, by the
    password in ``password_file``, or by the seed of an nkey in ``nkey_file``; the files are read at each attempt to connect. At most
    ``max_pending_bytes`` wait for the server.

    Raises:
        ValueError: a value cannot be used; the text names it.
    """

    host: str
    servers: tuple[str, ...]
    tls: CertificateFiles | None = None
    password_file: Path | None = None
    nkey_file: Path | None = None
    max_pending_bytes: int = 8 << 20

    def __post_init__(self) -> None:
        if not self.servers:
            raise ValueError("no servers: name at least one, such as tls://nats-1:4222")
        for server in self.servers:
            _check_server(server, needs_tls=self.tls is None)
        if self.password_file and self.nkey_file:
            raise ValueError("password_file and nkey_file exclude each other")


class NatsNetwork:
    """Implements `sbus_services.link.ports.Network`; a subject that is subscribed to twice counts once.

    *writable* returns when the local bus takes messages; it is awaited between two reads. A server closes a connection that is not read
    for some seconds. *report* gets one line for each connection that could not be made, and for each begin of a loss.
    """

    def __init__(self, settings: NatsSettings, writable: Writable, report: Callable[[str], None]) -> None:
        self.counters = NetworkCounters()
        self._settings = settings
        self._stall = Stall(writable, self.counters)
        self._report = report
        self._events: NetworkEvents | None = None
        self._connection: NatsConnection | None = None
        self._server = ""
        self._subscriptions: dict[str, int] = {}
        self._last_subscription = 0
        self._is_dropping = False
        self._tls_first: set[str] = set()
        """Servers that wait for the TLS handshake."""

    @property
    def state(self) -> NetworkState:
        """The present connection."""
        settings = self._settings
        is_authenticated = bool(settings.tls or settings.password_file or settings.nkey_file)
        if self._connection is None:
            return NetworkState(False, settings.tls is not None, is_authenticated)
        return NetworkState(True, settings.tls is not None, is_authenticated, self._server, self._connection.server_version)

    @property
    def address(self) -> str:
        """The address of this host, as the server sees it."""
        return "" if self._connection is None else self._connection.own_address

    def check(self, *, is_start: bool) -> None:
        """Raise ConfigError if the certificate or its key cannot be used, is not valid now, or if a secret is missing.

        A start omits the last two: the clock can be wrong at boot, and the password or the nkey is read at each attempt. The servers decide
        about the name and the authority.
        """
        self._tls()
        if not is_start:
            if self._settings.tls is not None:
                check_dates(self._settings.tls.certificate)
            self._credentials()

    async def run(self, events: NetworkEvents) -> None:
        """Connect, and reconnect whenever the connection ends, until cancelled. An exception of *events* ends it."""
        self._events = events
        backoff = Backoff()
        servers = list(self._settings.servers)
        random.shuffle(servers)
        while True:
            for server in servers:
                seconds = await self._use(server, events)
                if seconds is not None:
                    backoff.lasted(seconds)
                await asyncio.sleep(backoff.delay())

    async def _use(self, server: str, events: NetworkEvents) -> float | None:
        """Use *server* until the connection ends; return how many seconds it lasted, or None if there was none."""
        try:
            connection = await self._open(server, events)
        except (ConnectFailedError, ConfigError) as error:
            self.counters.connect_failures += 1
            self.counters.last_error = f"cannot connect to {server}: {error}"
            self._report(self.counters.last_error)
            return None
        loop = asyncio.get_running_loop()
        begin = loop.time()
        self._connection = connection
        self._server = server
        self._is_dropping = False
        self.counters.connects += 1
        reason = "the link stops"
        try:
            events.connected()
            reason = self.counters.last_error = await connection.ended
        finally:
            self._connection = None
            self._subscriptions.clear()
            connection.abort()
            events.disconnected(reason)
        return loop.time() - begin

    async def _open(self, server: str, events: NetworkEvents) -> NatsConnection:
        """Return a connection to *server*. Raises ConnectFailedError, ConfigError.

        A server with ``handshake_first`` sends nothing before the TLS handshake: then it is tried again in this order, which is remembered.
        """
        tls, name, credentials = self._tls(), self._settings.host, self._credentials()
        connection = NatsConnection(events, self.counters, self._stall, tls)
        try:
            await connection.open(server, name, credentials, tls_first=server in self._tls_first)
        except ConnectFailedError as error:
            if tls is None or server in self._tls_first or not connection.was_silent:
                self._tls_first.discard(server)
                raise
            connection = NatsConnection(events, self.counters, self._stall, tls)
            try:
                await connection.open(server, name, credentials, tls_first=True)
            except ConnectFailedError as second:
                raise ConnectFailedError(f"{error}; as a server with handshake_first: {second}") from None
            self._tls_first.add(server)
        return connection

    def publish(self, subject: str, head: bytes, body: bytes, owner: int = LINK) -> None:
        """Send a message of *owner* to every subscriber of *subject* but this host.

        Raises:
            ValueError: invalid *subject* or *head*.
        """
        _check_subject(subject)
        if b"\r" in head or b"\n" in head:
            raise ValueError(f"invalid head {head!r}: it must be one line")
        connection = self._connection
        if connection is None:
            self.counters.dropped += 1
        elif connection.send_message(subject, head, body, owner):
            self._note_dropped(connection.drop(self._settings.max_pending_bytes))
        else:
            size = len(head) + len(body)
            self.counters.oversize += 1
            self._reject(connection, f"a message of {size} bytes to {subject} exceeds the server's {connection.max_payload_bytes}")

    def subscribe(self, subject: str) -> None:
        """Receive what other hosts publish to *subject*."""
        _check_subject(subject)
        if self._connection is not None and subject not in self._subscriptions:
            self._last_subscription += 1
            self._subscriptions[subject] = self._last_subscription
            self._connection.send(protocol.subscribe(subject.encode("ascii"), self._last_subscription))

    def unsubscribe(self, subject: str) -> None:
        """End the subscription to *subject*, if there is one."""
        number = self._subscriptions.pop(subject, None)
        if self._connection is not None and number is not None:
            self._connection.send(protocol.unsubscribe(number))

    def barrier(self, number: int) -> None:
        """Call ``barrier_passed`` once the server has processed everything sent before. A connection that ends passes no barrier."""
        if self._connection is not None:
            self._connection.send_ping(number)

    async def drained(self) -> None:
        """Return when less than half of the pending limit is used: read the local bus only then."""
        if self._connection is not None:
            await self._connection.wait_for_room(self._settings.max_pending_bytes // 2)

    def backlog(self, subject: str) -> int:  # noqa: ARG002 - one connection for all
        """Return the bytes that wait for the server."""
        return 0 if self._connection is None else self._connection.pending_bytes

    def _note_dropped(self, count: int) -> None:
        """Count messages that are not sent; the receivers notice gaps in their flows."""
        self.counters.dropped += count
        if count and not self._is_dropping:
            self._report(f"messages are lost: more than {self._settings.max_pending_bytes} bytes wait for the server")
        self._is_dropping = count > 0

    def _reject(self, connection: NatsConnection, reason: str) -> None:
        """Report, after the caller has returned, that a message was not sent."""

        def reject() -> None:
            if self._events is not None and connection is self._connection:
                self._events.rejected(reason)

        asyncio.get_running_loop().call_soon(reject)

    def _tls(self) -> ssl.SSLContext | None:
        """Return the TLS context with the files as they are now."""
        return None if self._settings.tls is None else client_context(self._settings.tls, SERVICE_USER)

    def _credentials(self) -> Credentials:
        """Return the password or the key, as its file is now."""
        if self._settings.password_file is not None:
            return Credentials(user=self._settings.host, password=read_secret(self._settings.password_file))
        if self._settings.nkey_file is not None:
            return Credentials(seed=read_secret(self._settings.nkey_file))
        return Credentials()


def _check_subject(subject: str) -> None:
    """Raise ValueError unless *subject* can be part of a line of the protocol."""
    if not _SUBJECT.fullmatch(subject):
        raise ValueError(f"invalid subject {subject[:80]!r}: it must be 1 to {MAX_SUBJECT_BYTES} ASCII characters without spaces")


def _check_server(server: str, *, needs_tls: bool) -> None:
    """Raise ValueError unless *server* is a URL of a server."""
    try:
        parts = urlsplit(server)
        is_valid = parts.scheme in {"nats", "tls"} and parts.hostname and parts.port != 0 and parts.path in {"", "/"}
    except ValueError:
        is_valid = False
    if not is_valid or not _SUBJECT.fullmatch(server):
        raise ValueError(f"invalid server {server!r}: it must be a URL, such as tls://nats-1:4222")
    if parts.username is not None:
        raise ValueError(f"invalid server {parts.hostname!r}: store the password in password_file, not in the URL")
    if parts.scheme == "tls" and needs_tls:
        raise ValueError(f"invalid server {server!r}: tls:// needs certificate, key and authority")
