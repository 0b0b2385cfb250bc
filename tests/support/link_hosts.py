"""Simulated hosts: links on model buses, joined by a network in memory that delays, drops, cuts and falls silent. Time is simulated too.

The network is as servers, one for each host: they keep the order of one connection, and repeat a message for each subscription that
matches. A server that stalls keeps what its host has sent and should receive, while the host may already use another server.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from sbus.protocol.keys import pattern_matches
from sbus.protocol.packets import MAX_PACKET_BYTES, parse_batch
from sbus_services.link.message_runs import MessageRun
from sbus_services.link.ports import LINK
from sbus_services.link.rules import Export, Import, Rules
from sbus_services.link.session import LinkSession
from tests.support.link_bodies import SENDER, run_of

OPEN = Rules("R", "a", (Export(b"net/"), Export(b"only/", frozenset({"b"}))), (Import(b""),))
"""Rules that let out ``net/`` to all hosts and ``only/`` to the host b."""


def rules_for(host: str, like: Rules = OPEN) -> Rules:
    """Return the rules *like* for another host."""
    return Rules(like.realm, host, like.exports, like.imports, like.secret_hosts, like.secret_head, like.spool_bytes)


def subject_matches(pattern: str, subject: str) -> bool:
    """Return whether the network gives *subject* to a subscription of *pattern*."""
    wanted, tokens = pattern.split("."), subject.split(".")
    if wanted[-1] == ">":
        wanted.pop()
        if len(tokens) <= len(wanted):
            return False
    elif len(tokens) != len(wanted):
        return False
    return all(want in {"*", token} for want, token in zip(wanted, tokens, strict=False))


@dataclass
class Client:
    """A subscriber on a model bus."""

    number: int
    patterns: list[bytes] = field(default_factory=list)
    received: list[tuple[bytes, bytes]] = field(default_factory=list)
    """Key and payload."""
    losses: list[tuple[int, int]] = field(default_factory=list)
    """Each notice: how many messages it had received, and the count."""
    loss_times: list[float] = field(default_factory=list)
    """When each notice came."""
    credentials: list[bytes] = field(default_factory=list)


class Host:
    """One host: its model bus with clients, and its link."""

    def __init__(self, world: World, rules: Rules) -> None:
        self.world = world
        self.rules = rules
        self.name = rules.host
        self.clients: dict[int, Client] = {}
        self.published: list[tuple[float, bytes, bytes]] = []
        self.reported: list[tuple[tuple[bytes, ...], int]] = []
        """Every report of the link: patterns and count."""
        self.is_connected = False
        self.is_cut = False
        self.is_deaf = False
        self.is_mute = False
        self.cuts = 0
        self.run = 0
        self.network_run = 0
        self.stalls: dict[int, float] = {}
        """Until when the server of a connection stalls, by network_run."""
        self.bus = BusOfHost(self)
        self.network = NetworkOfHost(self)
        self.ticks: float | None = None
        self.start()

    # What tests do.

    def start(self) -> None:
        """Start the link, or restart it as after a kill."""
        self.run += 1
        self.network_run += 1
        self.network.clear()
        self.is_connected = False
        self.ticks = None
        self.session = LinkSession(self.rules, self.run, self.network, self.bus, self.world.now)
        self.connect_bus()
        self.world.later(0.01, self._connect_network)
        self.tick()

    def connect_bus(self) -> None:
        """Connect the link to the bus, again if it is; what is on the way between them is lost."""
        self.bus.begin()
        self.session.restarted()
        for client in self.clients.values():
            for pattern in sorted(set(client.patterns)):
                self.bus.report(partial(self._subscribed, client.number, pattern))
        self.tick()

    def client(self, number: int, *patterns: bytes) -> Client:
        """Return the subscriber with that number, with further *patterns*."""
        client = self.clients.setdefault(number, Client(number))
        for pattern in patterns:
            client.patterns.append(pattern)
            self.bus.report(partial(self._subscribed, number, pattern))
        return client

    def unsubscribe(self, number: int, pattern: bytes) -> None:
        """Remove a pattern of a subscriber."""
        self.clients[number].patterns.remove(pattern)
        self.bus.report(lambda: self.session.unsubscribed(number, pattern))

    def disconnect_client(self, number: int) -> Client:
        """Disconnect a subscriber."""
        self.bus.report(lambda: self.session.client_gone(number))
        return self.clients.pop(number)

    def message(self, key: bytes, payload: bytes = b"", credentials: bytes = SENDER) -> None:
        """Publish a message of a local client."""
        self.messages(key, [payload], credentials)

    def messages(self, key: bytes, payloads: Sequence[bytes], credentials: bytes = SENDER) -> None:
        """Publish messages of a local client, which reach the link as one run."""
        self.runs([(key, payloads, credentials)])

    def runs(self, runs: Iterable[tuple[bytes, Sequence[bytes], bytes]], lost: Container[int] = ()) -> None:
        """Publish messages of local clients, which reach the link in one turn: keys, payloads and senders.

        For the link, the bus discards the runs at the places *lost*, and notifies it.
        """
        wanted: list[MessageRun | int] = []
        for place, (key, payloads, credentials) in enumerate(runs):
            for payload in payloads:
                self.published.append((self.world.now, key, payload))
                self._route(key, payload, b"")
            if any(pattern_matches(pattern, key) for pattern in self.bus.stored):
                wanted.append(len(payloads) if place in lost else run_of(key, *payloads, credentials=credentials))

        def give() -> None:
            for each in wanted:
                if isinstance(each, int):
                    self.session.lost(each)
                else:
                    self.session.messages(each)

        if wanted:
            self.bus.report(give)

    def cut(self, seconds: float, noticed: float) -> None:
        """Cut the host off; its link notices after *noticed* seconds, if it still is."""
        self.is_cut = True
        self.cuts += 1
        cut = self.cuts
        self.world.later(noticed, lambda: self._notice(cut))
        self.world.later(seconds, lambda: self._heal(cut))

    def stall(self, seconds: float, noticed: float) -> None:
        """Stop the server of the host for some time; its link takes another one after *noticed* seconds, if it still stalls."""
        run = self.network_run
        self.stalls[run] = self.world.now + seconds
        if noticed < seconds:
            self.world.later(noticed, lambda: self._leave_server(run))

    def deafen(self, seconds: float) -> None:
        """Drop everything for this host for some time."""
        self.is_deaf = True
        self.world.later(seconds, lambda: setattr(self, "is_deaf", False))

    def mute(self, seconds: float) -> None:
        """Drop everything from this host for some time."""
        self.is_mute = True
        self.world.later(seconds, lambda: setattr(self, "is_mute", False))

    def tick(self) -> None:
        """Let the link work, and come back when it asks for it."""
        self.session.tick(self.world.now)
        due = self.session.next_tick()
        if due is not None and (self.ticks is None or due < self.ticks or self.ticks <= self.world.now):
            self.ticks = max(due, self.world.now + 0.001)
            run = self.run
            self.world.at(self.ticks, lambda: self.tick() if self.run == run else None)

    # Inside.

    def receive(self, subject: str, head: bytes, body: bytes) -> None:
        """Give a frame to the link."""
        self.event(lambda: self.session.received(subject, head, body))()

    def event(self, action: Callable[[], object]) -> Callable[[], None]:
        """Return an action that does *action*, and lets the link work."""

        def act() -> None:
            action()
            self.tick()

        return act

    def notify(self, wanted: tuple[bytes, ...], count: int) -> None:
        """Give a notice of loss to each client with one of the patterns."""
        self.reported.append((wanted, count))
        for client in self.clients.values():
            if set(client.patterns) & set(wanted):
                client.losses.append((len(client.received), count))
                client.loss_times.append(self.world.now)

    def _subscribed(self, number: int, pattern: bytes) -> None:
        self.session.subscribed(number, 1000, pattern)

    def _connect_network(self) -> None:
        if self.is_connected or self.is_cut:
            return
        self.network_run += 1
        self.is_connected = True
        self.session.connected()
        self.tick()

    def _notice(self, cut: int) -> None:
        if cut == self.cuts and self.is_cut and self.is_connected:
            self._disconnect("cut")

    def _leave_server(self, run: int) -> None:
        if run == self.network_run and self.is_connected:
            self._disconnect("silence")
            self.world.later(0.1, self._connect_network)

    def _disconnect(self, reason: str) -> None:
        self.network_run += 1
        self.is_connected = False
        self.network.clear()
        self.session.disconnected(reason)
        self.tick()

    def _heal(self, cut: int) -> None:
        if cut == self.cuts:
            self.is_cut = False
            self.world.later(0.1, self._connect_network)

    def route_packets(self, packets: Sequence[bytes]) -> None:
        """Route packets that the link published."""
        for packet in packets:
            assert packet.startswith(b"CMSG !/from/!/host/")
            credentials, _, message = packet[12:].partition(b"\0")
            assert message.startswith(b"MSG ")
            key, _, payload = message[4:].partition(b"\0")
            self._route(key, payload, credentials)

    def _route(self, key: bytes, payload: bytes, credentials: bytes) -> None:
        for client in self.clients.values():
            if any(pattern_matches(pattern, key) for pattern in client.patterns):
                client.received.append((key, payload))
                client.credentials.append(credentials)


class NetworkOfHost:
    """The network for one link: implements `Network`."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._world = host.world
        self.address = f"address of {host.name}"
        self.subjects: Counter[str] = Counter()

    def publish(self, subject: str, head: bytes, body: bytes, owner: int = LINK) -> None:
        """Send a frame."""
        assert self._host.is_connected, "the link may only publish while it is connected"
        self._world.carry(self._host, subject, head, body)

    def subscribe(self, subject: str) -> None:
        """Store a subscription."""
        assert self._host.is_connected
        self.subjects[subject] += 1
        self._world.subscribed[self._host.name] = list(self.subjects)

    def unsubscribe(self, subject: str) -> None:
        """Remove a subscription."""
        assert self.subjects[subject] > 0, f"{subject} is not subscribed"
        self.subjects[subject] -= 1
        self.subjects += Counter()
        self._world.subscribed[self._host.name] = list(self.subjects)

    def barrier(self, number: int) -> None:
        """Report that the network has processed everything."""
        host, run = self._host, self._host.network_run
        action = host.event(lambda: host.session.barrier_passed(number))
        self._world.later(self._world.delay(), lambda: action() if run == host.network_run else None)

    def clear(self) -> None:
        """Forget all subscriptions."""
        self.subjects.clear()
        self._world.subscribed[self._host.name] = []


class BusOfHost:
    """The model bus for its link: implements `LocalBus`. Both directions keep their order."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._world = host.world
        self.stored: Counter[bytes] = Counter()
        self.run = 0

    def subscribe(self, pattern: bytes) -> None:
        """Store a pattern of the link."""
        self._world.bus_changes += 1
        self._send(lambda: self.stored.update([pattern]))

    def unsubscribe(self, pattern: bytes) -> None:
        """Remove a pattern of the link."""
        self._world.bus_changes += 1
        self._send(lambda: self._remove(pattern))

    def acknowledge(self, number: int) -> None:
        """Answer once everything before is processed."""
        self._send(lambda: self.report(lambda: self._host.session.acknowledged(number)))

    def publish(self, body: bytes, count: int) -> None:
        """Route packets of other hosts."""
        packets = list(parse_batch(body, 0))
        assert len(packets) == count
        assert len(body) <= MAX_PACKET_BYTES
        self._send(lambda: self._host.route_packets(packets))

    def report_lost(self, patterns: Sequence[bytes], count: int) -> None:
        """Give a notice to each client with one of the patterns."""
        wanted = tuple(patterns)
        self._send(lambda: self._host.notify(wanted, count))

    def report(self, action: Callable[[], object]) -> None:
        """Give an event to the link, unless its connection ends before."""
        run = self.run
        event = self._host.event(action)
        self._world.in_order((self._host.name, "from bus"), lambda: event() if run == self.run else None)

    def begin(self) -> None:
        """Begin a new connection; what is on the way is lost."""
        self.run += 1
        self.stored.clear()

    def _send(self, action: Callable[[], object]) -> None:
        run = self.run
        self._world.in_order((self._host.name, "to bus"), lambda: action() if run == self.run else None)

    def _remove(self, pattern: bytes) -> None:
        assert self.stored[pattern] > 0, f"{pattern!r} is not stored"
        self.stored[pattern] -= 1
        self.stored += Counter()


class World:
    """All hosts, the network and the time."""

    def __init__(self, seed: int = 0) -> None:
        self.now = 0.0
        self.random = random.Random(seed)
        self.hosts: dict[str, Host] = {}
        self.subscribed: dict[str, list[str]] = {}
        self.sent: Counter[str] = Counter()
        """Messages that hosts gave to the network, by the kind in their subjects."""
        self.carried: Counter[str] = Counter()
        """Messages that the network gave to hosts, likewise."""
        self.bus_changes = 0
        self.drop = 0.0
        self.spared: set[str] = set()
        """Kinds of frames that are never dropped."""
        self.slowest = 0.02
        self._events: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = itertools.count()
        self._last: dict[tuple[str, ...], float] = {}

    def at(self, time: float, action: Callable[[], object]) -> None:
        """Do *action* at *time*."""
        heapq.heappush(self._events, (time, next(self._numbers), action))

    def later(self, seconds: float, action: Callable[[], object]) -> None:
        """Do *action* after *seconds*."""
        self.at(self.now + seconds, action)

    def delay(self) -> float:
        """Return the time that a frame takes."""
        return self.random.uniform(0.001, self.slowest)

    def in_order(self, way: tuple[str, ...], action: Callable[[], object], *, earliest: float = 0.0) -> None:
        """Do *action* after a delay, not before *earliest*, and after all before on the same *way*."""
        time = max(self.now + self.delay(), self._last.get(way, 0.0), earliest)
        self._last[way] = time
        self.at(time, action)

    def host(self, name: str, like: Rules = OPEN) -> Host:
        """Start a host with the rules *like*."""
        self.hosts[name] = Host(self, rules_for(name, like))
        return self.hosts[name]

    def run(self, seconds: float) -> None:
        """Let time pass."""
        end = self.now + seconds
        while self._events and self._events[0][0] <= end:
            self.now, _, action = heapq.heappop(self._events)
            action()
        self.now = end

    def carry(self, sender: Host, subject: str, head: bytes, body: bytes) -> None:
        """Give a message to the server of *sender*, which gives it to the hosts that have subscriptions for it, now or once it resumes."""
        self.sent[subject.split(".")[2]] += 1
        if sender.is_cut or sender.is_mute:
            return
        run = sender.network_run
        server = sender.name, "server", str(run)
        resumes = sender.stalls.get(run, 0.0)
        spread = partial(self._spread, sender.name, run, subject, head, body)
        if max(resumes, self._last.get(server, 0.0)) > self.now:
            self.in_order(server, spread, earliest=resumes)
        else:
            spread()

    def _spread(self, sender: str, run: int, subject: str, head: bytes, body: bytes) -> None:
        """Give a message to the hosts that have subscriptions for it."""
        kind = subject.split(".")[2]
        for name, patterns in self.subscribed.items():
            receiver = self.hosts[name]
            copies = 0 if name == sender else sum(subject_matches(pattern, subject) for pattern in patterns)
            for _ in range(copies):
                if kind not in self.spared and self.random.random() < self.drop:
                    continue
                self.carried[kind] += 1
                arrive = partial(self._arrive, receiver, receiver.network_run, subject, head, body)
                way = sender, name, str(run), str(receiver.network_run)
                self.in_order(way, arrive, earliest=receiver.stalls.get(receiver.network_run, 0.0))

    @staticmethod
    def _arrive(receiver: Host, run: int, subject: str, head: bytes, body: bytes) -> None:
        if run == receiver.network_run and receiver.is_connected and not receiver.is_cut and not receiver.is_deaf:
            receiver.receive(subject, head, body)
