"""Receives what other hosts want, within bounds, and confirms it once the local bus has the subscriptions."""

from __future__ import annotations

from sbus_services.link.flows import FlowTable
from sbus_services.link.frames import Applied, Changes, Heartbeat, Line, Snapshot, SnapshotRequest, encode_head, parse_lines
from sbus_services.link.peers import Peer, Peers
from sbus_services.link.ports import LocalBus, Network
from sbus_services.link.rates import Rate
from sbus_services.link.remote_interest import MAX_PATTERNS, RemoteInterest
from sbus_services.link.rules import Rules
from sbus_services.link.subjects import Subjects

ALL_LINES_PER_SECOND = 3_000
ALL_LINES_AT_ONCE = 16_384
"""Lines of interest that all hosts together may change: half of what the bus takes at once from a user by default."""

REQUEST_INTERVAL = 1.0
"""Seconds between two requests to one host, and between two that it may send."""

_MODULUS = 1 << 64


class InterestReceiver:
    """The interest of all other hosts in this one."""

    def __init__(
        self, rules: Rules, epoch: int, peers: Peers, interest: RemoteInterest, flows: FlowTable, *, network: Network, bus: LocalBus
    ) -> None:
        self._rules = rules
        self._epoch = epoch
        self._peers = peers
        self._interest = interest
        self._flows = flows
        self._network = network
        self._bus = bus
        self._subjects = Subjects(rules.realm, rules.host)
        self._unconfirmed: set[str] = set()
        self._begun: dict[str, tuple[set[bytes], int]] = {}
        self._numbers = 0
        self._rate = Rate(ALL_LINES_PER_SECOND, ALL_LINES_AT_ONCE)
        self.is_connected = False
        self.beat = 0
        """Number of the last heartbeat of this host."""

    def changes(self, peer: Peer, head: Changes, body: bytes) -> None:
        """Apply the next changes of *peer*, or ask it for a snapshot. Raises FrameError."""
        lines = parse_lines(body)
        if head.version <= peer.version:
            return
        if head.version != peer.version + 1:
            self._request(peer)
            return
        if not self._take(peer, len(lines)):
            return
        peer.version = head.version
        peer.parts = []
        for line, is_wanted in lines:
            peer.digest = (peer.digest + (line.digest() if is_wanted else -line.digest())) % _MODULUS
            if line.concerns(self._rules.host):
                self._change(peer, line, is_wanted)
        if any(line.concerns(self._rules.host) for line, _ in lines):
            self._unconfirmed.add(peer.name)

    def snapshot(self, peer: Peer, head: Snapshot, body: bytes) -> None:
        """Collect a part of what *peer* wants, and apply the whole after the last part. Raises FrameError."""
        lines = parse_lines(body)
        if head.part == 0:
            peer.parts, peer.part, peer.part_of = [], 0, head.version
        if not peer.is_asked or head.part != peer.part or head.version != peer.part_of or head.version < peer.version:
            peer.counters.changes_refused += 1
            return
        peer.part += 1
        space = max(0, MAX_PATTERNS - len(peer.parts))
        peer.parts += lines[:space]
        peer.refused += len(lines[space:])
        peer.counters.lines_refused += len(lines[space:])
        if peer.part < head.parts:
            return
        parts, peer.parts, peer.is_asked = peer.parts, [], False
        wanted = {line for line, is_wanted in parts if is_wanted and line.concerns(self._rules.host)}
        before = self._interest.lines(peer.name)
        if not self._take(peer, len(wanted ^ before)):
            return
        for line in sorted(before - wanted):
            self._change(peer, line, is_wanted=False)
        for line in sorted(wanted - before):
            self._change(peer, line, is_wanted=True)
        peer.version, peer.digest = head.version, head.digest
        self._unconfirmed.add(peer.name)

    def heartbeat(self, peer: Peer, head: Heartbeat) -> None:
        """Compare what is known of *peer* with its heartbeat, and ask for a snapshot if they differ."""
        if (head.version, head.digest) != (peer.version, peer.digest):
            self._request(peer)

    def rejoin(self, peer: Peer) -> None:
        """Treat *peer* as a new receiver, as it asks."""
        if self._peers.clock < peer.rejoin_at:
            peer.counters.changes_refused += 1
            return
        peer.rejoin_at = self._peers.clock + REQUEST_INTERVAL
        peer.counters.rejoins += 1
        peer.confirmations = 0
        self._interest.rejoin(peer.name)
        self._unconfirmed.add(peer.name)

    def forget(self, peer: Peer) -> None:
        """Forget what *peer* wants, because it is gone or runs from scratch."""
        self._interest.forget(peer.name)
        self._flows.forget(peer.name)
        self._unconfirmed.discard(peer.name)
        self._begun.pop(peer.name, None)
        peer.version = peer.digest = peer.confirmations = peer.refused = 0
        peer.parts = []
        peer.is_asked = False

    def begin(self) -> None:
        """Ask the bus to acknowledge the subscriptions, unless an earlier answer is outstanding."""
        if self._unconfirmed and not self._begun:
            for name in sorted(self._unconfirmed):
                peer = self._peers.get(name)
                if peer is not None:
                    self._begun[name] = self._interest.waiting(name), peer.version
            self._unconfirmed.clear()
            if self._begun:
                self._numbers += 2
                self._bus.acknowledge(self._numbers)

    def acknowledged(self, number: int) -> None:
        """Make patterns count whose subscriptions the bus has acknowledged, and confirm them to their hosts."""
        if number != self._numbers:
            return
        begun, self._begun = self._begun, {}
        for name, (patterns, _) in begun.items():
            self._interest.apply(name, patterns)
        for name, (_, version) in begun.items():
            peer = self._peers.get(name)
            if peer is not None:
                self._confirm(peer, version)

    def bus_restarted(self) -> None:
        """Ask again for what the last connection to the bus has not acknowledged."""
        self._unconfirmed.update(self._begun)
        self._begun = {}

    def _confirm(self, peer: Peer, version: int) -> None:
        peer.confirmations += 1
        if self.is_connected:
            flows = self._flows
            head = Applied(self._epoch, peer.epoch, version, peer.confirmations, flows.next, peer.refused, self.beat, flows.forgotten)
            self._network.publish(self._subjects.direct(peer.name), encode_head(head), b"")

    def _change(self, peer: Peer, line: Line, is_wanted: bool) -> None:
        if not is_wanted:
            if self._interest.withdraw(peer.name, line) and peer.name in self._begun:
                # If the pattern comes again, its next subscription has to be acknowledged.
                self._begun[peer.name][0].discard(line.pattern)
        elif not self._interest.want(peer.name, line):
            peer.refused += 1
            peer.counters.lines_refused += 1

    def _take(self, peer: Peer, lines: int) -> bool:
        """Charge *peer* for *lines* changed lines; over its rate, refuse them and ask for a snapshot later."""
        clock = self._peers.clock
        if not peer.changes.has(clock, lines) or not self._rate.take(clock, lines):
            peer.counters.changes_refused += 1
            peer.request_at = max(peer.request_at, clock + REQUEST_INTERVAL)
            return False
        return peer.changes.take(clock, lines)

    def _request(self, peer: Peer) -> None:
        if self.is_connected and self._peers.clock >= peer.request_at:
            peer.request_at = self._peers.clock + REQUEST_INTERVAL
            peer.is_asked = True
            self._network.publish(self._subjects.direct(peer.name), encode_head(SnapshotRequest(self._epoch, 0)), b"")
