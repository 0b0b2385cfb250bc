"""The states of a link, made up: its counters grow, it restarts, and some states are not valid."""

from __future__ import annotations

import json
import random
from dataclasses import asdict, dataclass, field
from typing import Any

from sbus_services.link.counters import HostCounters, LinkCounters
from sbus_services.link.network.counters import NetworkCounters, NetworkState

_TRUSTED: dict[str, Any] = {"uid": 0, "unit": None}
SENDERS: tuple[dict[str, Any], ...] = (
    *(_TRUSTED,) * 12,
    {"uid": 990, "unit": "sbus-link.service"},
    {"uid": None, "unit": "sbus-link.service"},
    {"uid": 1000, "unit": "web.service"},
    {"uid": None, "unit": None},
    {"uid": 1000, "unit": "user@1000.service/sbus-link.service"},
    {"uid": 0, "unit": None, "vouched": "beta"},
)
"""Credentials of rows with the key of a state. Only the first three kinds are those of a link."""

INVALID = (None, b"", b"{", b"[]", b"null", b"\xff", b'{"version": 2}', b"[" * 100_000, b'{"version": 1, "hosts": 7}', b"9" * 5_000)


def link_state(**changes: Any) -> dict[str, Any]:
    """Return a state as the link publishes it, without hosts, and with *changes*."""
    counters = asdict(LinkCounters())
    del counters["hosts"]
    plain: dict[str, Any] = {
        "version": 1,
        "realm": "R",
        "host": "alpha",
        "transport": "nats",
        "started": 0,
        "time": 0,
        "network": asdict(NetworkState(connected=True, encrypted=True, authenticated=True)) | asdict(NetworkCounters(connects=1)),
        "spooled_bytes": 0,
        "bus_refusals": 0,
        "discarded_messages": 0,
        "counters": counters,
        "hosts": [],
    }
    return plain | changes


def other_host(name: str, *, alive: bool = True, **counters: int) -> dict[str, Any]:
    """Return the part of a state about another host."""
    about = {"name": name, "alive": alive, "silent_seconds": 0.8, "patterns_there": 1, "patterns_here": 2}
    return about | asdict(HostCounters(**counters))


@dataclass(slots=True)
class LinkHistory:
    """One link as time passes."""

    started: float = 0.0
    transport: str = "nats"
    own: dict[str, int] = field(default_factory=dict)
    network: dict[str, Any] = field(default_factory=dict)
    hosts: dict[str, dict[str, Any]] = field(default_factory=dict)

    def payload(self, chance: random.Random, ts: int) -> bytes | None:
        """Return the next state, at *ts*, or something that is not valid."""
        if not self.started or chance.random() < 0.05:
            self._restart(chance, ts)
        self._grow(chance)
        if chance.random() < 0.08:
            return chance.choice(INVALID)
        return json.dumps(self._changed(chance, ts)).encode()

    def _restart(self, chance: random.Random, ts: int) -> None:
        """Begin at zero: a moment ago, long ago, or, as the clock says, later."""
        self.started = ts / 1e9 - chance.choice((0.5, 9.75, 500, 2_000, 8_000, -1, -5_000))
        self.transport = chance.choice(("nats", "nats", "direct"))
        self.own = asdict(LinkCounters())
        del self.own["hosts"]
        self.network = asdict(NetworkState(connected=False, encrypted=True, authenticated=True)) | asdict(NetworkCounters())
        self.hosts = {}

    def _grow(self, chance: random.Random) -> None:
        """Let something happen."""
        if chance.random() < 0.2:
            self.network["connected"] = not self.network["connected"]
            self.network["connects"] += self.network["connected"]
        for counters in (self.own, self.network, *self.hosts.values()):
            for name, value in counters.items():
                if type(value) is int and name != "connects" and chance.random() < 0.4:
                    counters[name] = value + chance.choice((1, 1, 7, 10**6))
        for name in chance.choices(("beta", "gamma", "delta"), k=chance.choice((0, 0, 1, 2))):
            if name not in self.hosts:
                self.hosts[name] = other_host(name)
            elif chance.random() < 0.3:
                self.hosts[name]["alive"] = not self.hosts[name]["alive"]
            elif chance.random() < 0.1:
                del self.hosts[name]  # forgotten, and its counters with it

    def _changed(self, chance: random.Random, ts: int) -> dict[str, Any]:
        """Return the present state, sometimes as only a faulty or overloaded link would publish it."""
        found = link_state(
            started=self.started,
            time=ts / 1e9,
            transport=self.transport,
            network=self.network,
            counters=self.own,
            spooled_bytes=chance.choice((0, 0, 4_096)),
            bus_refusals=self.own["connections"],
            discarded_messages=self.own["bus_losses"],
            hosts=list(self.hosts.values()),
            unknown=["a", None],
        )
        match chance.randrange(16):
            case 0:
                found |= {"hosts": found["hosts"][1:], "hosts_omitted": len(found["hosts"][:1])}
            case 1:
                found |= chance.choice(
                    ({"host": "a/b"}, {"started": float("nan")}, {"realm": None}, {"spooled_bytes": 2**60}, {"network": {}})
                )
            case 2:
                found["hosts"] = found["hosts"] * 2
            case 3:  # less than before
                found["hosts"] = [each | {"messages": each["messages"] // 2, "bytes": 0} for each in found["hosts"]]
        return found
