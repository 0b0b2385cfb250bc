"""The second connection of the link to its bus: serves ``link/status`` and ``link/sync``, and publishes events and the state.

Spec: sbus-link(8), "ON THE BUS".
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from sbus import SbusError
from sbus.asyncio.service_bus import ServiceBus
from sbus.errors import RemoteRefusal, ServiceError
from sbus.rpc.requests import Request
from sbus.rpc.service import MAX_CONCURRENT_HANDLERS
from sbus_programs.backoff import Attempts
from sbus_programs.config.certificates import validity_of
from sbus_services.link.network.counters import NetworkCounters, NetworkState
from sbus_services.link.peers import HostState
from sbus_services.link.rules import Rules
from sbus_services.link.session import LinkSession

MAX_PATTERNS = 64
"""Patterns that one event about a loss lists."""

MAX_ORIGINS = 1_024
"""Hosts of which losses are kept until the next events; the losses of others are counted under no name."""

NETWORK_UNAVAILABLE = "network unavailable"
"""Why hosts are gone while this host is not connected."""

Event = tuple[str, Mapping[str, object]]
"""A key, and an object for JSON."""


@dataclass(slots=True)
class _Loss:
    """Losses of one host since the last events. ``is_exact``: whether none of the numbers was unknown."""

    patterns: set[bytes] = field(default_factory=set)
    count: int = 0
    is_exact: bool = True


class Events:
    """Collects what has happened. However much that is, `take` returns few events, of bounded size."""

    def __init__(self) -> None:
        self._alive: frozenset[str] = frozenset()
        self._is_connected = False
        self._losses: dict[str, _Loss] = {}

    def lost(self, origin: str, patterns: Sequence[bytes], count: int) -> None:
        """Note *count* lost messages of *origin* for *patterns*; 0 is an unknown number, and an empty *origin* an unknown host."""
        if origin not in self._losses and len(self._losses) >= MAX_ORIGINS:
            origin = ""
        loss = self._losses.setdefault(origin, _Loss())
        loss.patterns.update(patterns[: MAX_PATTERNS - len(loss.patterns)])
        loss.count += count
        loss.is_exact = loss.is_exact and count > 0

    def take(self, alive: Iterable[str], network: NetworkState, reason: str) -> list[Event]:
        """Return what has happened since the last call, up to the present state. *reason* is why the network is unavailable."""
        events: list[Event] = []
        if network.connected is not self._is_connected:
            self._is_connected = network.connected
            words = {"event": "up", "server": network.server} if network.connected else {"event": "down", "reason": reason}
            events.append(("link/network", words))
        now = frozenset(alive)
        why = "no heartbeats" if network.connected else NETWORK_UNAVAILABLE
        events += [(f"link/host/{name}", {"event": "down", "host": name, "reason": why}) for name in sorted(self._alive - now)]
        events += [(f"link/host/{name}", {"event": "up", "host": name}) for name in sorted(now - self._alive)]
        self._alive = now
        losses, self._losses = self._losses, {}
        events += [_event(origin, loss) for origin, loss in losses.items()]
        return events


def encode(event: Event) -> bytes:
    """Return the object of *event* as JSON."""
    return json.dumps(event[1]).encode()


def _event(origin: str, loss: _Loss) -> Event:
    """Return the event about *loss*. The number is 0 if it is unknown."""
    patterns = [pattern.decode("utf-8", "backslashreplace") for pattern in sorted(loss.patterns)]
    words = {"host": origin, "patterns": patterns, "count": loss.count if loss.is_exact else 0}
    return f"link/lost/{origin}" if origin else "link/lost", words


VERSION = 1
"""Version of the object. A reader ignores members that it does not know."""

FRESH_SECONDS = 1.0
"""A state is made at most once in this time: in a realm with a thousand hosts, it takes milliseconds."""


CERTIFICATE_SECONDS = 60.0
"""Interval at which the file of the certificate is read."""

MAX_HOSTS = 400
"""Hosts in a state, those alive first, so that a response fits into a packet."""


class Status:
    """Makes states of one link. *transport* is ``nats`` or ``direct``; *certificate* is the file of this host's, None without TLS."""

    def __init__(self, rules: Rules, transport: str, certificate: Path | None = None) -> None:
        self._rules = rules
        self._transport = transport
        self._started = time.time()
        self._certificate = certificate
        self._certificate_end: float | None = None
        self._certificate_read_at = -CERTIFICATE_SECONDS
        self._made_at = -FRESH_SECONDS
        self._state = b""

    def state(
        self, session: LinkSession, network: NetworkState, counters: NetworkCounters, bus_counters: Mapping[str, object], now: float
    ) -> bytes:
        """Return the state as JSON, at most FRESH_SECONDS old; *now* is in seconds."""
        if now < self._made_at + FRESH_SECONDS:
            return self._state
        self._made_at = now
        hosts = sorted(session.hosts(), key=lambda host: not host.is_alive)
        link = asdict(session.counters)
        del link["hosts"]
        state = {
            "version": VERSION,
            "realm": self._rules.realm,
            "host": self._rules.host,
            "transport": self._transport,
            "started": self._started,
            "time": time.time(),
            "certificate_end": self._end_of_certificate(now),
            "network": asdict(network) | asdict(counters),
            "spooled_bytes": session.spooled_bytes,
            **bus_counters,
            "counters": link,
            "hosts": [_host(host) for host in hosts[:MAX_HOSTS]],
            "hosts_omitted": max(0, len(hosts) - MAX_HOSTS),
        }
        self._state = json.dumps(state).encode()
        return self._state

    def _end_of_certificate(self, now: float) -> float | None:
        """Return when the certificate ends, in seconds since 1970; None if there is none, or its file cannot be read."""
        if self._certificate is not None and now >= self._certificate_read_at + CERTIFICATE_SECONDS:
            self._certificate_read_at = now
            validity = validity_of(self._certificate)
            self._certificate_end = None if validity is None else validity[1]
        return self._certificate_end


def _host(host: HostState) -> dict[str, Any]:
    return {
        "name": host.name,
        "alive": host.is_alive,
        "address": host.address,
        "silent_seconds": round(host.silent_seconds, 3),
        "patterns_there": host.patterns_there,
        "patterns_here": host.patterns_here,
        **asdict(host.counters),
    }


MAX_WAITING = 48
"""Calls of ``link/sync`` that can wait at the same time. The client library runs 64 calls at the same time, so others are still served."""

MAX_WAITING_OF_USER = 4
"""Those of one user."""

SYNC_SECONDS = 30.0
"""A call of ``link/sync`` fails after this time."""


class Administered(Protocol):
    """The link as its commands need it."""

    def state(self) -> bytes:
        """Return the state as JSON."""

    def synchronize(self, done: Callable[[], None]) -> None:
        """Call *done* once all live hosts know what clients of this host want now."""

    def cancel(self, done: Callable[[], None]) -> None:
        """Do not call *done*."""


class Administration:
    """Use :meth:`run`. *report* gets one line for each refusal of the bus; *charged* returns the user that is charged for a uid."""

    def __init__(self, address: str, link: Administered, report: Callable[[str], None], charged: Callable[[int], int]) -> None:
        self._address = address
        self._link = link
        self._report = report
        self._charged = charged
        self._bus: ServiceBus | None = None
        self._waiting: Counter[int] = Counter()

    async def run(self) -> None:
        """Serve, and connect again whenever the connection ends, until cancelled."""
        async for _ in Attempts():
            try:
                async with ServiceBus.connect(self._address or None) as bus:
                    bus.service("link/status")(self._on_status)
                    bus.service("link/sync")(self._on_sync)
                    self._bus = bus
                    await bus.serve_all(self._charged, max_concurrent=MAX_CONCURRENT_HANDLERS)
            except (SbusError, OSError) as error:
                if isinstance(error, RemoteRefusal | PermissionError):  # a bus that is away is reported by the other connection
                    self._report(f"the bus does not let the link serve its commands: {error}")
            finally:
                self._bus = None

    async def publish(self, events: Sequence[Event], *, with_state: bool) -> None:
        """Publish *events*, and the state; without a connection they are not published."""
        bus = self._bus
        if bus is None:
            return
        try:
            for event in events:
                await bus.publish(event[0], encode(event))
            if with_state:
                await bus.publish("link/state", self._link.state())
        except (SbusError, OSError) as error:
            if isinstance(error, RemoteRefusal | PermissionError):
                self._report(f"the bus does not let the link publish under link/: {error}")

    def _on_status(self, _request: Request) -> bytes:
        return self._link.state()

    async def _on_sync(self, request: Request) -> bytes:
        with self._counted(request.party[0]):
            done = asyncio.Event()
            self._link.synchronize(done.set)
            seconds = SYNC_SECONDS
            if request.expires_at is not None:
                seconds = min(seconds, max(0.0, request.expires_at - time.time()))
            try:
                async with asyncio.timeout(seconds):
                    await done.wait()
            except TimeoutError:
                raise ServiceError(f"not all hosts have confirmed within {seconds:.0f} s; see sbusctl link status") from None
            finally:
                self._link.cancel(done.set)
        return b"{}"

    @contextmanager
    def _counted(self, uid: int) -> Iterator[None]:
        """Count one waiting call of the user *uid*. Raises ServiceError if there are too many."""
        if self._waiting[uid] >= MAX_WAITING_OF_USER or self._waiting.total() >= MAX_WAITING:
            raise ServiceError(f"too many calls of link/sync wait: at most {MAX_WAITING_OF_USER} of one user and {MAX_WAITING} in all")
        self._waiting[uid] += 1
        try:
            yield
        finally:
            self._waiting[uid] -= 1
            if not self._waiting[uid]:
                del self._waiting[uid]
