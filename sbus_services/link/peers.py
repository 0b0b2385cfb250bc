"""The other hosts of the realm: which are alive, what is known of each, and which frames are of another run.

Each run has an epoch. Late frames of an earlier run come all at once, when a server resumes; heartbeats that go on are of another host
with the same name, such as a cloned machine.

A server that had stopped can also send frames of an earlier connection of a host after those of a later one. The numbers of a flow do not
show that, because a key can change its flow. So each link counts the frames that it sends, and ignores those
of others that come after later ones.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

from sbus_services.link.counters import HostCounters, LinkCounters
from sbus_services.link.frames import (
    Data,
    FrameError,
    Head,
    Heartbeat,
    Line,
    add_serial,
    name_digest,
    parse_head,
    parse_heartbeat,
    parse_messages,
)
from sbus_services.link.incoming import Incoming
from sbus_services.link.outgoing import is_secret
from sbus_services.link.ports import LINK, Network
from sbus_services.link.rates import Rate
from sbus_services.link.remote_interest import MAX_PATTERNS, RemoteInterest
from sbus_services.link.rules import Rules
from sbus_services.link.subjects import Arrival

MAX_PEERS = 8_192
"""Hosts that a link knows. Beyond them a new host takes the record of one that is gone, or is ignored."""

MIN_INTERVAL = 2.0
MAX_INTERVAL = 60.0
"""Bounds for the time between heartbeats, in seconds."""

LINES_PER_SECOND = 500
LINES_AT_ONCE = 2 * MAX_PATTERNS
"""Lines of interest that a host may change. Beyond that it is asked for a snapshot later."""

RUNS_PER_SECOND = 0.2
RUNS_AT_ONCE = 5
"""How often a host may start from scratch. Frames of a run that begins sooner are ignored."""

MISSED = 3
"""Missing heartbeats after which a host is gone."""

HOSTS_PER_SECOND = 50
"""Heartbeats in a second that each host receives, in a large realm."""


@dataclass(slots=True)
class OtherRun:
    """Another run of a host whose heartbeats come as well as those of the run that is used: it is another host with the same name.

    Late frames of an earlier run come all at once, when a server resumes. Times are in seconds of `Peers.clock`.
    """

    epoch: int = 0
    since: float = 0.0
    last: float = 0.0
    messages: int = 0
    """Messages that were ignored since the last report."""

    def beats(self, epoch: int, interval: float, clock: float) -> bool:
        """Note a heartbeat of the other run, and return whether it is another host."""
        if epoch != self.epoch or clock - self.last > MISSED * interval:
            self.epoch, self.since = epoch, clock
        self.last = clock
        return clock - self.since >= MISSED * MIN_INTERVAL


@dataclass(slots=True, eq=False)
class Peer:
    """One other host. Times are in seconds of `Peers.clock`."""

    name: str
    counters: HostCounters
    incoming: Incoming
    epoch: int = 0
    serial: int = 0
    """Serial of its last accepted frame."""
    earlier_epoch: int = 0
    """Epoch of an earlier run of which a heartbeat came while this one was silent; see `sbus_services.link.peers`."""
    earlier_since: float = 0.0
    """When that came."""
    forgotten: int = 0
    """How many hosts it has forgotten, and how often its bus lost messages, as far as this one knows."""
    address: str = ""
    """Where it is, as its last heartbeat says."""
    other_run: OtherRun = field(default_factory=OtherRun)
    runs: Rate = field(default_factory=lambda: Rate(RUNS_PER_SECOND, RUNS_AT_ONCE))
    is_alive: bool = False
    last_heartbeat: float = 0.0
    interval: float = MIN_INTERVAL
    # What it wants of this host.
    version: int = 0
    digest: int = 0
    confirmations: int = 0
    """`Applied` frames sent since this host was last forgotten."""
    refused: int = 0
    parts: list[tuple[Line, bool]] = field(default_factory=list)
    """Lines of a snapshot of which more parts are to come, *part* being the next."""
    part: int = 0
    part_of: int = 0
    """Version of that snapshot."""
    is_asked: bool = False
    """Whether it was asked for a snapshot."""
    request_at: float = 0.0
    """When it may be asked again."""
    changes: Rate = field(default_factory=lambda: Rate(LINES_PER_SECOND, LINES_AT_ONCE))
    """How many lines it may change."""
    rejoin_at: float = 0.0
    """When it may ask again to be treated as a new receiver."""
    # What it confirmed of what this host wants.
    confirmed: int = 0
    """Number of its last `Applied` frame."""
    refused_there: int = 0
    """Lines of this host that it has refused, as its last `Applied` frame says."""
    is_rejoining: bool = False
    """Whether this host asked it to begin again."""
    snapshot_at: float = 0.0
    """When it may get the next snapshot."""
    unconfirmed_beats: int = 0

    def note_forgotten(self, host: str, count: int, names: Collection[bytes] = ()) -> None:
        """Report an unknown loss if it may have forgotten *host*, this one: then it numbers no messages for it, and no gap shows the loss.

        *count* is how many hosts it has forgotten and how often its bus lost messages, *names* are the digests of the hosts forgotten last.
        It sends them before later messages.
        """
        if count == self.forgotten:
            return
        is_other = count == self.forgotten + len(names) and name_digest(host) not in names
        if is_other or self.incoming.report_served():
            self.forgotten = count

    def is_next(self, serial: int) -> bool:
        """Return whether the frame *serial* of this host comes after all others so far. If so, its serial is noted."""
        if serial <= self.serial:
            return False
        self.serial = serial
        return True

    def count_late(self, head: Head) -> None:
        """Count a frame that is ignored because it came after later ones."""
        if isinstance(head, Data):
            self.counters.duplicates += head.messages
        else:
            self.counters.stale += 1

    def is_earlier_run_present(self, head: Head, clock: float) -> bool:
        """Return whether a frame with a smaller epoch than that of this host is of its present run, because its clock was set back.

        Late frames of an earlier run come all at once, when a server resumes. The present run sends heartbeats: while the other run is
        silent, one has to come as long after the first as a host may be silent. *clock* is that of `Peers`.
        """
        if self.is_alive or not isinstance(head, Heartbeat):
            return False
        if head.epoch != self.earlier_epoch:
            self.earlier_epoch, self.earlier_since = head.epoch, clock
        return clock - self.earlier_since >= MISSED * MIN_INTERVAL


@dataclass(frozen=True, slots=True)
class HostState:
    """One other host. ``silent_seconds``: since its last heartbeat. ``address``: where it says that it is.

    ``patterns_there`` is the number of lines that it wants of this host, ``patterns_here`` of those that it has confirmed for this host.
    """

    name: str
    is_alive: bool
    silent_seconds: float
    patterns_there: int
    patterns_here: int
    address: str
    counters: HostCounters


class Peers:
    """All known hosts. The clock stops while this process does not run, or has no network: then the silence is not theirs."""

    def __init__(self, rules: Rules, counters: LinkCounters, incoming: Callable[[str, HostCounters], Incoming]) -> None:
        """*incoming* makes the receiving side for a host."""
        self._rules = rules
        self._counters = counters
        self._incoming = incoming
        self._peers: dict[str, Peer] = {}
        self._alive = 0
        self.clock = 0.0

    def __iter__(self) -> Iterator[Peer]:
        return iter(self._peers.values())

    def get(self, name: str) -> Peer | None:
        """Return the host with that name, if it is known."""
        return self._peers.get(name)

    def is_alive(self, name: str) -> bool:
        """Return whether that host is known and not gone."""
        peer = self._peers.get(name)
        return peer is not None and peer.is_alive

    def find(self, name: str) -> Peer | None:
        """Return the host with that name, new if necessary, or None if no rule names it or there are too many."""
        peer = self._peers.get(name)
        if peer is not None:
            return peer
        if not self._is_named(name) or not self._has_space():
            self._counters.hosts_refused += 1
            return None
        counters = self._counters.hosts.setdefault(name, HostCounters())
        peer = self._peers[name] = Peer(name, counters, self._incoming(name, counters), last_heartbeat=self.clock)
        return peer

    def advance(self, seconds: float) -> None:
        """Let the clock go on, at most by one heartbeat."""
        self.clock += min(max(0.0, seconds), self.interval)

    def note_heartbeat(self, peer: Peer) -> None:
        """Note a heartbeat of *peer*."""
        self._alive += not peer.is_alive
        peer.is_alive = True
        peer.last_heartbeat = self.clock

    def silent(self) -> list[Peer]:
        """Return the hosts that have just missed three heartbeats; they are not alive any more."""
        gone = [peer for peer in self if peer.is_alive and self.clock - peer.last_heartbeat > MISSED * peer.interval]
        for peer in gone:
            peer.is_alive = False
            self._alive -= 1
            peer.counters.silences += 1
        return gone

    def restart_clocks(self) -> None:
        """Give every host the time for three heartbeats from now on."""
        for peer in self:
            peer.last_heartbeat = self.clock

    @property
    def interval(self) -> float:
        """Seconds between heartbeats of this host: 2, or in large realms more: up to 3,000 hosts, each receives at most 50 in a second."""
        return min(MAX_INTERVAL, max(MIN_INTERVAL, self._alive / HOSTS_PER_SECOND))

    def states(self, interest: RemoteInterest, *, is_connected: bool) -> list[HostState]:
        """Return the known hosts, sorted by name. None is alive while the network is unavailable."""
        return [
            HostState(
                peer.name,
                peer.is_alive and is_connected,
                self.clock - peer.last_heartbeat,
                interest.count(peer.name),
                len(peer.incoming.served),
                peer.address,
                peer.counters,
            )
            for peer in sorted(self, key=lambda peer: peer.name)
        ]

    def _is_named(self, name: str) -> bool:
        sent = any(rule.permits(name) for rule in self._rules.exports)
        return sent or any(rule.permits(name) for rule in self._rules.imports) or self._rules.exchanges_secrets(name)

    def _has_space(self) -> bool:
        if len(self._peers) < MAX_PEERS:
            return True
        gone = min((peer for peer in self if not peer.is_alive), key=lambda peer: peer.last_heartbeat, default=None)
        if gone is None:
            return False
        gone.incoming.reset()
        del self._peers[gone.name], self._counters.hosts[gone.name]
        return True


NoteNamesake = Callable[[str, str, str], None]
"""Gets the name that two hosts have, the address of the one that is ignored or not this one, and that of the other; "" is unknown."""


def ignore_namesake(_name: str, _other: str, _used: str) -> None:
    """Do not note that two hosts have one name."""


class Namesakes:
    """Notes frames of hosts whose name another host has, or this one, *host* with *epoch*. *clock* is that of `Peers`."""

    def __init__(self, host: str, epoch: int, counters: LinkCounters, note: NoteNamesake) -> None:
        self._host = host
        self._epoch = epoch
        self._counters = counters
        self._note = note
        self._own = OtherRun()

    def earlier_run_came(self, peer: Peer, head: Head, body: bytes, clock: float) -> None:
        """Count a frame of an earlier run of *peer*, or of one that began too soon, which is ignored. Raises FrameError."""
        peer.counters.stale += 1
        if isinstance(head, Data):
            peer.counters.ignored += head.messages
            peer.other_run.messages += head.messages
        if not isinstance(head, Heartbeat) or not peer.is_alive:
            return
        address, _, _ = parse_heartbeat(head, body)
        if peer.other_run.beats(head.epoch, beat_interval(head), clock):
            peer.counters.namesakes += 1
            if peer.other_run.messages and peer.incoming.report_served():
                peer.other_run.messages = 0
            self._note(peer.name, address, peer.address)

    def own_name_came(self, line: bytes, body: bytes, address: str, clock: float) -> None:
        """Handle a heartbeat with the name of this host, which is at *address*."""
        try:
            head, _ = parse_head(line)
            if isinstance(head, Heartbeat) and head.epoch != self._epoch:
                other, _, _ = parse_heartbeat(head, body)
                if self._own.beats(head.epoch, beat_interval(head), clock):
                    self._counters.namesakes += 1
                    self._note(self._host, other, address)
        except FrameError:
            return


def beat_interval(head: Heartbeat) -> float:
    """Return the seconds until the next heartbeat."""
    return min(MAX_INTERVAL, max(MIN_INTERVAL, head.interval / 1_000))


class NumberedNetwork:
    """The network for all parts of one link: adds the serial to the head of each frame."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._last = 0
        self.subscribe = network.subscribe
        self.unsubscribe = network.unsubscribe
        self.barrier = network.barrier

    @property
    def address(self) -> str:
        """The address of this host."""
        return self._network.address

    def publish(self, subject: str, head: bytes, body: bytes, owner: int = LINK) -> None:
        """Send *body* of *owner* with *head*, which has no serial yet, to every subscriber of *subject*."""
        self._last += 1
        self._network.publish(subject, add_serial(head, self._last), body, owner)


def is_private(arrival: Arrival, head: Head, body: bytes) -> bool:
    """Return whether a frame has private messages. They have one flow, whose numbers keep their order, so late ones need not be ignored.

    Raises FrameError.
    """
    return arrival.kind == "x" and isinstance(head, Data) and bool(head.messages) and is_secret(parse_messages(body, head)[0].key)
