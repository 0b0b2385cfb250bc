"""The state of a link for people and programs, as ``link/status`` responds it and ``link/state`` publishes it. Spec: sbus-link(8)."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sbusd.config.certificates import validity_of
from sbusd.link.host_states import HostState
from sbusd.link.network.counters import NetworkCounters, NetworkState
from sbusd.link.rules import Rules
from sbusd.link.session import LinkSession

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
