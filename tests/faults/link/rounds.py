"""Rounds of a fault each: messages flow, a fault comes and goes, the hosts find each other again, and the accounts are judged."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tests.faults.link.cluster import NAMES, WAIT_SECONDS, BusProcess, Cluster
from tests.faults.link.lossy_cable import Impairment
from tests.faults.link.traffic import Traffic
from tests.support.link_programs import LinkProgram
from tests.support.nats_servers import NatsServer

SHORT_SECONDS = 2.0
LONG_SECONDS = 8.0
"""Faults shorter and longer than the three heartbeats, in 6 s, after which a host is gone."""

LOSSY_SECONDS = 3.0
"""How long a cable is bad."""

RATE_SECONDS = 0.4
"""Time for messages before and after a fault."""

PROCESSES = ("link", "bus", "server")

Pair = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault; *apply* returns when it is over. *kills*: which process it kills, if any."""

    name: str
    apply: Callable[[Cluster, str, random.Random], None]
    kills: str = ""


def _cable(seconds: float) -> Callable[[Cluster, str, random.Random], None]:
    def apply(cluster: Cluster, host: str, draw: random.Random) -> None:
        twin = NAMES.index(host)
        cluster.network.disconnect(twin)
        try:
            time.sleep(seconds)
        finally:
            cluster.network.connect(twin)

    return apply


def _lossy(cluster: Cluster, host: str, draw: random.Random) -> None:
    impairment = Impairment(draw.uniform(0, 0.05), draw.uniform(0, 0.05), draw.uniform(0.005, 0.05), draw.uniform(0, 0.3))
    with cluster.lossy(host, impairment, draw.randrange(1 << 30)):
        time.sleep(LOSSY_SECONDS)


def _stop(process: str, seconds: float) -> Callable[[Cluster, str, random.Random], None]:
    def apply(cluster: Cluster, host: str, draw: random.Random) -> None:
        cluster.hosts[host].signal(process, signal.SIGSTOP)
        try:
            time.sleep(seconds)
        finally:
            cluster.hosts[host].signal(process, signal.SIGCONT)

    return apply


def _kill(process: str) -> Callable[[Cluster, str, random.Random], None]:
    def apply(cluster: Cluster, host: str, draw: random.Random) -> None:
        place = cluster.hosts[host]
        processes: dict[str, BusProcess | LinkProgram | NatsServer] = {"link": place.link, "bus": place.bus, "server": place.server}
        killed = processes[process]
        killed.kill()
        time.sleep(draw.uniform(0, 2))
        killed.start()

    return apply


FAULTS = (
    Fault("cable pulled for a short time", _cable(SHORT_SECONDS)),
    Fault("cable pulled for a long time", _cable(LONG_SECONDS)),
    Fault("bad cable", _lossy),
    *(Fault(f"{process} stopped for a short time", _stop(process, SHORT_SECONDS)) for process in PROCESSES),
    *(Fault(f"{process} stopped for a long time", _stop(process, LONG_SECONDS)) for process in PROCESSES),
    *(Fault(f"{process} killed", _kill(process), process) for process in PROCESSES),
)


class Rounds:
    """Runs rounds in *cluster* with *traffic*, drawn from *seed*."""

    def __init__(self, cluster: Cluster, traffic: Traffic, seed: int) -> None:
        self._cluster = cluster
        self._traffic = traffic
        self._draw = random.Random(seed)
        self._before: dict[str, dict[str, Any]] = {}

    def run(self, fault: Fault) -> str:
        """Run a round with *fault* on a host; return a line about it.

        Raises:
            LossError: a message was repeated, reordered or lost without a report.
            AssertionError: the hosts do not find each other again.
        """
        traffic, accounts = self._traffic, self._traffic.accounts
        host = self._draw.choice(NAMES)
        lost, unknown, sent = accounts.lost, accounts.unknown, sum(series.sent for series in accounts.series.values())
        self._before = {name: each.status() for name, each in self._cluster.hosts.items()}
        with traffic.published():
            traffic.replace_visitors(self._draw.choice(NAMES))
            self._cluster.wait_for_links()
            traffic.begin_receivers()
            time.sleep(RATE_SECONDS)
            begin = time.monotonic()
            fault.apply(self._cluster, host, self._draw)
            self._cluster.wait_for_links()
            seconds = time.monotonic() - begin
            traffic.begin_receivers()
            time.sleep(RATE_SECONDS)
        traffic.finish(WAIT_SECONDS / 4)
        excused = set(self._excused(fault, host))
        live = traffic.live_receivers()
        for receiver in accounts.receivers:
            if receiver not in live:
                receiver.since = None  # it has left, or its bus was killed: what it would have received later is not missing
            accounts.check(receiver, excused)
        for receiver in live:
            accounts.end_round(receiver)
        accounts.receivers = live
        sent = sum(series.sent for series in accounts.series.values()) - sent
        words = f"{sent} sent, {accounts.lost - lost} lost, {accounts.unknown - unknown} reports of an unknown number"
        return f"{fault.name}, on {host}: {words}; {seconds:.1f} s until the links were back"

    def _excused(self, fault: Fault, host: str) -> Iterator[Pair]:
        """Yield the pairs of receiver and origin between which the number of a loss may be unknown, as sbus-link(8) says."""
        others = [name for name in NAMES if name != host]
        if fault.kills in {"link", "bus"}:
            yield from ((host, other) for other in others)
            yield from ((other, host) for other in others)
        after = {name: each.status() for name, each in self._cluster.hosts.items()}
        for name in NAMES:
            before, now = self._before[name], after[name]
            if now["counters"]["bus_losses"] > before["counters"]["bus_losses"] and now["started"] == before["started"]:
                yield from ((other, name) for other in NAMES if other != name)
            silences = {each["name"]: each["silences"] for each in before["hosts"]} if now["started"] == before["started"] else {}
            for other in now["hosts"]:
                # A host that was gone for another one wants nothing of it any more, and is a new receiver when it comes back.
                if other["silences"] > silences.get(other["name"], 0):
                    yield from ((name, other["name"]), (other["name"], name))
