"""The listening socket for other links. A connection counts only after its certificate is verified; until then it has few resources."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Hashable, Mapping
from typing import Any, Generic, TypeVar

from sbus_programs.config.certificates import CertificateFiles, dns_names, server_context
from sbus_programs.config.files import ConfigError
from sbus_programs.config.hosts import AddressGroups
from sbus_services.link.network.counters import NetworkCounters
from sbus_services.link.network.credential_files import SERVICE_USER
from sbus_services.link.network.streams import error_words

Id = TypeVar("Id", bound=Hashable)


class Handshakes(Generic[Id]):
    """At most *most* handshakes, and *most_of_address* of one address. A new one is always admitted, at the cost of an old one."""

    def __init__(self, most: int, most_of_address: int) -> None:
        self._most = most
        self._most_of_address = most_of_address
        self._addresses: dict[Id, str] = {}
        """Oldest first."""

    def __len__(self) -> int:
        return len(self._addresses)

    def admit(self, handshake: Id, address: str) -> Id | None:
        """Add *handshake*. Return the one to end, whose place is released: at a limit, the oldest of the address with most handshakes."""
        ended = self._victim(address)
        if ended is not None:
            self.release(ended)
        self._addresses[handshake] = address
        return ended

    def release(self, handshake: Id) -> bool:
        """Release the place of *handshake*; return whether it had one."""
        return self._addresses.pop(handshake, None) is not None

    def _victim(self, address: str) -> Id | None:
        """Return the handshake that makes room for one of *address*; None if there is room."""
        of = Counter(self._addresses.values())
        if of[address] < self._most_of_address:
            if len(self._addresses) < self._most:
                return None
            busiest = max(of, key=of.__getitem__)  # of several, that of the oldest handshake
            if of[address] < of[busiest]:  # an address ends no handshake of another one that has no more
                address = busiest
        return next(handshake for handshake, each in self._addresses.items() if each == address)


HANDSHAKE_SECONDS = 5.0
MAX_HANDSHAKES = 64
"""Connections whose certificate is not yet verified."""
MAX_HANDSHAKES_OF_ADDRESS = 8
"""An IPv6 /64 counts as one address, except for the addresses of peers."""
_LIMITS = f"the maximum is {MAX_HANDSHAKES_OF_ADDRESS} of an address, and {MAX_HANDSHAKES} in all"

Accepted = Callable[[str, asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]
"""Called with the name in the certificate. The connection is closed when it returns."""


def peer_named(certificate: dict[str, Any] | None, peers: frozenset[str]) -> str:
    """Return the one of *peers* that *certificate* names; ConnectionError if it names none or several."""
    named = dns_names(certificate or {})
    found = named & peers
    if len(found) != 1:
        raise ConnectionError(
            f"the certificate names {', '.join(sorted(named)[:5]) or 'no host'}, which is not one of the configured peers"
        )
    return found.pop()


class Listener:
    """Accepts connections of *peers*, whose addresses have their own limits."""

    def __init__(
        self,
        files: CertificateFiles,
        peers: Mapping[str, tuple[str, int] | None],
        accepted: Accepted,
        counters: NetworkCounters,
        report: Callable[[str], None],
    ) -> None:
        self._files = files
        self._peers = frozenset(peers)
        self._groups = AddressGroups(address[0] for address in peers.values() if address is not None)
        self._accepted = accepted
        self._counters = counters
        self._report = report
        self._server: asyncio.Server | None = None
        self._handshakes = Handshakes[asyncio.Transport](MAX_HANDSHAKES, MAX_HANDSHAKES_OF_ADDRESS)
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, address: str, port: int) -> None:
        """Listen. Raises OSError."""
        self._server = await asyncio.get_running_loop().create_server(lambda: _Accepting(self._admit), address, port)

    @property
    def port(self) -> int:
        """The port on which it listens."""
        if self._server is None:
            raise RuntimeError("not started")
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Close the socket and all connections that it accepted."""
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _admit(self, transport: asyncio.Transport) -> None:
        """Begin the handshake of a new connection, if necessary at the cost of an older one."""
        ended = self._handshakes.admit(transport, self._group(transport))
        if ended is not None:
            self._counters.ended_handshakes += 1
            self._note(f"closed an unverified connection from {self._group(ended)} for a newer one: {_LIMITS}")
            ended.abort()
        task = asyncio.get_running_loop().create_task(self._serve(transport))
        self._tasks.add(task)
        task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[None]) -> None:
        """Forget a task. An exception of the events is reported by the task of the network."""
        self._tasks.discard(task)

    async def _serve(self, transport: asyncio.Transport) -> None:
        """Verify the other end, and pass the connection on. One that was ended for a newer connection is already counted."""
        try:
            if transport.is_closing():
                return
            try:
                name, reader, writer = await self._secure(transport)
            except (OSError, ConfigError) as error:
                if self._handshakes.release(transport):
                    self._refuse(_address(transport), error_words(error))
                return
            if self._handshakes.release(transport):
                await self._accepted(name, reader, writer)
        finally:
            self._handshakes.release(transport)
            transport.abort()

    async def _secure(self, transport: asyncio.Transport) -> tuple[str, asyncio.StreamReader, asyncio.StreamWriter]:
        """Return the verified name and the streams. Raises OSError, ConfigError."""
        loop = asyncio.get_running_loop()
        context = server_context(self._files, SERVICE_USER)
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        secure = await loop.start_tls(
            transport, protocol, context, server_side=True, ssl_handshake_timeout=HANDSHAKE_SECONDS, ssl_shutdown_timeout=1.0
        )
        if secure is None:
            raise ConnectionError("closed within the handshake")
        protocol.connection_made(secure)  # start_tls does not connect the reader to its transport, which the bound of its buffer needs
        name = peer_named(secure.get_extra_info("peercert"), self._peers)
        return name, reader, asyncio.StreamWriter(secure, protocol, reader, loop)

    def _refuse(self, address: str, reason: str) -> None:
        """Count and report a connection that was not accepted."""
        self._counters.refused_connections += 1
        self._note(f"refused a connection from {address}: {reason}")

    def _note(self, words: str) -> None:
        """Report an error, and keep it for the state."""
        self._counters.last_error = words
        self._report(words)

    def _group(self, transport: asyncio.Transport) -> str:
        """Return the name of the group of addresses whose limit applies to *transport*."""
        return self._groups.group(_address(transport)).name


def _address(transport: asyncio.Transport) -> str:
    """Return the address of the other end, without a port."""
    return str(transport.get_extra_info("peername", ("unknown",))[0])


class _Accepting(asyncio.Protocol):
    """A new connection, which is not read before its handshake."""

    def __init__(self, admit: Callable[[asyncio.Transport], None]) -> None:
        self._admit = admit

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Pass it on."""
        if isinstance(transport, asyncio.Transport):
            transport.pause_reading()  # the handshake's first bytes must reach TLS
            self._admit(transport)
