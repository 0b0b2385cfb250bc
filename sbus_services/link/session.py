"""The link protocol as a whole, without I/O: what happens on the network and on the local bus, and what follows from it.

The adapters report events, and call `LinkSession.tick` after each batch of them and at `LinkSession.next_tick`. Times are in seconds of a
clock that never goes back. `LinkSession.restarted` has to be called for each new connection to the bus, also for the first; then
`LinkSession.subscribed` for each pattern that clients already have, before the acknowledgement that it asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sbus_services.link.announcements import Announcements
from sbus_services.link.blob_tickets import BlobTickets
from sbus_services.link.counters import HostCounters, LinkCounters
from sbus_services.link.frames import (
    MAX_ADDRESS_BYTES,
    MAX_TAILS,
    Answer,
    Applied,
    Ask,
    Changes,
    Data,
    FrameError,
    Head,
    Heartbeat,
    Line,
    Snapshot,
    SnapshotRequest,
    Tails,
    VersionError,
    encode_head,
    heartbeat_body,
    parse_head_of,
    parse_heartbeat,
    parse_messages,
    parse_tails,
)
from sbus_services.link.incoming import Incoming
from sbus_services.link.interest_receiver import REQUEST_INTERVAL, InterestReceiver
from sbus_services.link.local_interest import LocalInterest
from sbus_services.link.loss_reports import LossReports
from sbus_services.link.message_runs import MessageRun
from sbus_services.link.outgoing import Outgoing
from sbus_services.link.peers import (
    HostState,
    Namesakes,
    NoteNamesake,
    NumberedNetwork,
    Peer,
    Peers,
    beat_interval,
    ignore_namesake,
    is_private,
)
from sbus_services.link.ports import BLOBS, LocalBus, Network, NoteLoss, QuestionEvents, ignore_loss
from sbus_services.link.remote_interest import RemoteInterest
from sbus_services.link.rules import Rules
from sbus_services.link.subjects import Arrival, Subjects

UNCONFIRMED_BEATS = 2
"""Heartbeats of a host that did not confirm a line, after which it is asked to begin again."""


class LinkSession:
    """One link. Implements `NetworkEvents` and `LocalBusEvents`."""

    def __init__(
        self,
        rules: Rules,
        epoch: int,
        network: Network,
        bus: LocalBus,
        now: float,
        *,
        note_loss: NoteLoss = ignore_loss,
        note_namesake: NoteNamesake = ignore_namesake,
        charged: Callable[[int], int] = int,
    ) -> None:
        """*epoch* is greater than in earlier runs on this host, such as the time of the start in ns; it has 64 bits.

        *note_loss* gets each loss that is reported to local clients, with the host of the messages, empty if it is unknown.
        *charged* returns the user that is charged for a uid, such as `ChargedUsers.of`.
        """
        self.counters = LinkCounters()
        self.tickets = BlobTickets(lambda: self._now, rules.host, charged)
        self.questions: QuestionEvents | None = None
        """Gets the questions and answers of other hosts."""
        self._rules = rules
        self._reports = LossReports(bus, note_loss)
        self._epoch = epoch
        self._network = numbered = NumberedNetwork(network)
        self._bus = bus
        self._now = now
        self._subjects = Subjects(rules.realm, rules.host)
        self._local = LocalInterest(rules, charged)
        self._announcements = Announcements(self._local, self._subjects, numbered, epoch)
        self._namesakes = Namesakes(rules.host, epoch, self.counters, note_namesake)
        self._peers = Peers(rules, self.counters, self._make_incoming)
        self._remote = RemoteInterest(rules, bus)
        self._outgoing = Outgoing(
            rules, epoch, self._remote, numbered, self.counters, is_present=self._peers.is_alive, tickets=self.tickets, charged=charged
        )
        self._receiver = InterestReceiver(rules, epoch, self._peers, self._remote, self._outgoing.flows, network=numbered, bus=bus)
        self._is_connected = False
        self._next_beat = now
        self._requests: set[str] = set()
        """Hosts that asked for a snapshot."""
        self._refusing: set[str] = set()
        """Hosts that have refused lines of this one."""
        self._direct_since: dict[str, int] = {}
        """The first heartbeat about flows for one host alone, by host."""
        self._restarts = 0
        self._syncs: list[Callable[[], None]] = []

    # What the process calls.

    def tick(self, now: float) -> None:
        """Do what is due at *now*, and send what events have made ready."""
        if self._is_connected:
            self._peers.advance(now - self._now)
        self._now = max(self._now, now)
        self._reports.send_due(self._now)
        self._local.expire(self._now)
        self._withdrawn(self._announcements.step(self._now))
        self._receiver.begin()
        self._outgoing.flush()
        if self._is_connected:
            self._answer_requests()
            if self._now >= self._next_beat:
                self._beat()
        self._answer_syncs()

    def next_tick(self) -> float | None:
        """Return when `tick` has to be called at the latest, or None if only an event can make it necessary."""
        if self._outgoing.is_pending:
            return self._now
        times = [self._local.next_end, self._announcements.next_step, self._reports.next_due]
        if self._is_connected:
            times.append(self._next_beat)
        return min((time for time in times if time is not None), default=None)

    def sync(self, done: Callable[[], None]) -> None:
        """Call *done* once every live host has confirmed what is wanted of it now. The caller bounds how many calls wait."""
        self._syncs.append(done)

    def cancel_sync(self, done: Callable[[], None]) -> None:
        """Do not call *done*."""
        self._syncs = [each for each in self._syncs if each != done]

    def ask(self, host: str, number: int, body: bytes) -> bool:
        """Send the question *number* to *host*; return False if it is not alive."""
        if not (self._is_connected and self._peers.is_alive(host)):
            return False
        self._network.publish(self._subjects.direct(host), encode_head(Ask(self._epoch, number)), body, BLOBS)
        return True

    def answer(self, host: str, epoch: int, number: int, body: bytes) -> None:
        """Send the answer to the question *number* of *host* in its run *epoch*; without a network nothing."""
        if self._is_connected:
            self._network.publish(self._subjects.direct(host), encode_head(Answer(self._epoch, epoch, number)), body, BLOBS)

    def live_hosts(self) -> list[str]:
        """Return the names of the hosts that are alive, sorted. While the network is unavailable, none is."""
        return sorted(peer.name for peer in self._peers if peer.is_alive and self._is_connected)

    def hosts(self) -> list[HostState]:
        """Return the known hosts, sorted by name."""
        return self._peers.states(self._remote, is_connected=self._is_connected)

    @property
    def moment(self) -> tuple[float, int]:
        """The time of the last tick, and how many patterns of local clients were added."""
        return self._now, self._local.additions

    @property
    def spooled_bytes(self) -> int:
        """Bytes that wait for the network."""
        return self._outgoing.spooled_bytes

    # Events of the network.

    def connected(self) -> None:
        """The network is usable: subscribe to everything; frames and heartbeats follow after a barrier."""
        self.counters.connections += 1
        self._is_connected = self._receiver.is_connected = True
        self._peers.restart_clocks()
        for subject in self._subjects.always:
            self._network.subscribe(subject)
        self._announcements.connected()
        self._outgoing.connected()
        self._network.barrier(0)

    def disconnected(self, reason: str) -> None:
        """The network is not usable: spool what clients publish."""
        del reason  # the adapter logs it
        self._is_connected = self._receiver.is_connected = False
        self._outgoing.disconnected()
        self._withdrawn(self._announcements.disconnected())

    def received(self, subject: str, head: bytes, body: bytes) -> None:
        """Handle a frame of another host, whatever it contains."""
        arrival = self._subjects.parse(subject)
        if arrival is None:
            self.counters.foreign_subjects += 1
            if subject == self._subjects.heartbeat:
                self._namesakes.own_name_came(head, body, self._network.address, self._peers.clock)
            return
        peer = self._peers.find(arrival.origin)
        if peer is None:
            return
        try:
            parsed, serial = parse_head_of(arrival.kind, head)
            if not self._accepts_epoch(peer, parsed):
                self._namesakes.earlier_run_came(peer, parsed, body, self._peers.clock)
            elif peer.is_next(serial) or is_private(arrival, parsed, body):
                self._handle(peer, arrival, parsed, body)
            else:
                peer.count_late(parsed)
        except VersionError:
            peer.counters.other_version += 1
        except FrameError:
            peer.counters.malformed += 1

    def barrier_passed(self, number: int) -> None:
        """The network has processed the subscriptions: let the other hosts know."""
        if number:
            self._withdrawn(self._announcements.barrier_passed(number))
        else:
            self._next_beat = self._now

    def rejected(self, reason: str) -> None:
        """The network rejected something."""
        del reason  # the adapter logs it
        self.counters.rejected += 1

    # Events of the local bus.

    def messages(self, run: MessageRun) -> None:
        """Put messages of a local client into frames for the hosts that want them."""
        self._outgoing.send(run, self._now)

    def subscribed(self, client_id: int, uid: int, pattern: bytes) -> None:
        """Note a pattern of a local client, and announce it soon."""
        refused = self._local.add(client_id, uid, pattern)
        self.counters.patterns_refused += len(refused)
        self._report("", refused)
        if self._refusing and any(line.concerns(host) for line in self._local.lines(pattern) for host in self._refusing):
            self._report("", [pattern])

    def unsubscribed(self, client_id: int, pattern: bytes) -> None:
        """Note that a local client removed a pattern."""
        self._local.remove(client_id, pattern)

    def client_gone(self, client_id: int) -> None:
        """Note that a local client has disconnected."""
        self._local.remove_client(client_id)

    def lost(self, count: int) -> None:
        """Report a loss of unknown messages to all other hosts, between the messages before it and after it."""
        del count  # of which flows is unknown
        self.counters.bus_losses += 1
        self._lose_unknown()

    def restarted(self) -> None:
        """Begin again on a new connection to the bus."""
        self.counters.bus_restarts += 1
        self._report("", self._local.all_patterns())
        self._local.remove_all()
        if self._rules.secret_head:
            self._bus.subscribe(self._rules.secret_head)
        for pattern in self._remote.subscriptions():
            self._bus.subscribe(pattern)
        self._receiver.bus_restarted()
        if self._restarts:
            self._lose_unknown()  # newer messages can come before the acknowledgement, and others be missing until then
        self._restarts += 1
        self._bus.acknowledge(2 * self._restarts - 1)

    def acknowledged(self, number: int) -> None:
        """The bus has the subscriptions sent before. Odd numbers are those of a new connection."""
        if number % 2 == 0:
            self._receiver.acknowledged(number)
        elif number == 2 * self._restarts - 1:
            self._local.is_inheriting = False
            if self._restarts > 1:
                self._lose_unknown()

    # Inside.

    def publish(self, body: bytes, count: int) -> None:
        """Publish *count* packets of other hosts, each after its length, on the local bus."""
        self._bus.publish(body, count)

    def report_lost(self, origin: str, lines: Iterable[Line], count: int) -> None:
        """Report a loss of messages of *origin* to the local clients that need one of *lines*."""
        self._report(origin, (pattern for line in lines for pattern in self._local.patterns(line)), count)

    def _report(self, origin: str, patterns: Iterable[bytes], count: int = 0) -> None:
        self._reports.report(origin, patterns, count, self._now)

    def _make_incoming(self, name: str, counters: HostCounters) -> Incoming:
        deliver = _Deliver(self, name)
        return Incoming(self._rules, name, lambda key: self._announcements.matching(name, key), deliver, counters, tickets=self.tickets)

    def _handle(self, peer: Peer, arrival: Arrival, head: Head, body: bytes) -> None:
        """Handle a frame whose head is valid. Raises FrameError."""
        match head:
            case Data():
                self._handle_data(peer, arrival, head, body)
            case Tails():
                peer.incoming.tails("direct", head.beat, parse_tails(body), head.first)
            case Heartbeat():
                self._handle_heartbeat(peer, head, body)
            case Changes():
                self._receiver.changes(peer, head, body)
            case Snapshot():
                self._receiver.snapshot(peer, head, body)
            case Applied():
                self._handle_applied(peer, head)
            case Ask() | Answer():
                self._handle_question(peer, head, body)
            case SnapshotRequest() if head.rejoin:
                self._receiver.rejoin(peer)
            case SnapshotRequest():
                self._requests.add(peer.name)

    def _handle_data(self, peer: Peer, arrival: Arrival, head: Data, body: bytes) -> None:
        runs, tails = parse_messages(body, head), parse_tails(body[: head.tails], MAX_TAILS)
        if is_private(arrival, head, body):
            peer.incoming.data(head, runs, direct=True)
        elif peer.confirmed:
            peer.note_forgotten(self._rules.host, head.forgotten)
            peer.incoming.data(head, runs, tails, direct=arrival.kind == "x")
        else:
            peer.count_late(head)  # an earlier run of this link may have had later ones

    def _handle_question(self, peer: Peer, head: Ask | Answer, body: bytes) -> None:
        if self.questions is None:
            return
        if isinstance(head, Ask):
            self.questions.asked(peer.name, head.epoch, head.number, body)
        elif head.receiver_epoch == self._epoch:
            self.questions.answered(peer.name, head.number, body)
        else:
            peer.counters.stale += 1

    def _handle_heartbeat(self, peer: Peer, head: Heartbeat, body: bytes) -> None:
        self._peers.note_heartbeat(peer)
        peer.earlier_epoch = 0
        address, forgotten, tails = parse_heartbeat(head, body)
        peer.address = address
        peer.interval = beat_interval(head)
        peer.note_forgotten(self._rules.host, head.forgotten, forgotten)
        peer.incoming.heartbeat(head.beat, head.losses, head.floor, parse_tails(tails))
        self._receiver.heartbeat(peer, head)
        self._note_refused(peer, peer.refused_there)
        self._check_confirmed(peer)

    def _check_confirmed(self, peer: Peer) -> None:
        """Ask *peer* to begin again if it does not confirm what this host wants."""
        if self._has_confirmed(peer):
            peer.unconfirmed_beats = 0
            return
        peer.unconfirmed_beats += 1
        if peer.unconfirmed_beats > UNCONFIRMED_BEATS and self._is_connected and peer.incoming.may_walk():
            peer.unconfirmed_beats = 0
            peer.is_rejoining = True
            # From when it handles this until it confirms the lines again, its messages may be missing.
            peer.incoming.report_unknown(list(peer.incoming.served))
            peer.incoming.interrupt()
            self._network.publish(self._subjects.direct(peer.name), encode_head(SnapshotRequest(self._epoch, 1)), b"")

    def _has_confirmed(self, peer: Peer) -> bool:
        """Return whether *peer* has confirmed everything that this host wants of it."""
        return len(peer.incoming.served) == (count := self._announcements.count(peer.name)) and (peer.confirmed > 0 or not count)

    def _handle_applied(self, peer: Peer, head: Applied) -> None:
        if head.receiver_epoch != self._epoch or (head.number != 1 and head.number <= peer.confirmed):
            peer.counters.stale += 1
            return
        served = peer.incoming.served
        before: set[Line] = set()
        if head.number == 1 or head.number != peer.confirmed + 1:
            # The host has forgotten this one, or an earlier confirmation is missing: earlier flows may not include this host.
            if not peer.incoming.may_walk():
                peer.confirmed = 0  # its messages are ignored until it is asked to begin again, which is reported
                peer.counters.changes_refused += 1
                return
            before.update(served)
            is_known = peer.is_rejoining or head.number != 1
            peer.incoming.report_unknown([line for line, _ in self._announcements.lines(peer.name) if is_known or line in served])
            peer.incoming.interrupt()
            peer.forgotten = head.forgotten
        peer.note_forgotten(self._rules.host, head.forgotten)
        last = min(head.version, self._announcements.version)
        news = self._announcements.lines(peer.name, peer.incoming.version) if last > peer.incoming.version else ()
        added = [line for line, version in news if version <= last and line not in served]
        self._report(peer.name, (pattern for line in added if line not in before for pattern in self._local.inherited(line)))
        peer.incoming.applied(added, head.first, head.beat, last)
        peer.confirmed = head.number
        peer.is_rejoining = False
        self._note_refused(peer, head.refused)
        self._answer_syncs()

    def _note_refused(self, peer: Peer, count: int) -> None:
        """Note that *peer* has refused *count* lines of this host, because they exceed its bounds. It does not say which."""
        peer.refused_there = count
        (self._refusing.add if count else self._refusing.discard)(peer.name)
        if count > peer.counters.lines_refused_there:
            if not peer.incoming.may_walk():
                return  # heartbeats have it reported later
            peer.incoming.report_unknown([line for line, _ in self._announcements.lines(peer.name)])
        peer.counters.lines_refused_there = count

    def _accepts_epoch(self, peer: Peer, head: Head) -> bool:
        """Return whether a frame is of the present run of *peer*; a new run makes everything earlier unknown."""
        if head.epoch != peer.epoch:
            is_later = head.epoch > peer.epoch and peer.runs.take(self._peers.clock)
            if not is_later and not peer.is_earlier_run_present(head, self._peers.clock):
                return False
            peer.counters.restarts += peer.epoch != 0
            peer.epoch = head.epoch
            peer.serial = peer.confirmed = peer.forgotten = 0
            peer.incoming.reset()
            self._note_refused(peer, 0)
            self._receiver.forget(peer)
        return True

    def _withdrawn(self, lines: list[Line]) -> None:
        for line in lines:
            for peer in self._peers:
                peer.incoming.withdrawn(line)

    def _lose_unknown(self) -> None:
        self._outgoing.lose_unknown()
        self._next_beat = self._now

    def _answer_requests(self) -> None:
        """Send the snapshots that other hosts asked for, to each at most one in a second."""
        for name in sorted(self._requests):
            peer = self._peers.get(name)
            if peer is None:
                self._requests.remove(name)
            elif self._peers.clock >= peer.snapshot_at:
                self._requests.remove(name)
                peer.snapshot_at = self._peers.clock + REQUEST_INTERVAL
                self._announcements.send_snapshot(name)

    def _answer_syncs(self) -> None:
        if not self._syncs or not self._announcements.is_complete:
            return
        for peer in self._peers:
            if peer.is_alive and not self._has_confirmed(peer):
                return
        syncs, self._syncs = self._syncs, []
        for done in syncs:
            done()

    def _beat(self) -> None:
        """Find the hosts that are gone, and send a heartbeat."""
        silent = self._peers.silent()
        forgotten = [peer.name for peer in silent if self._remote.count(peer.name)]
        for peer in silent:
            self._receiver.forget(peer)
            peer.incoming.report_unknown(list(peer.incoming.served))
        flows = self._outgoing.flows
        flows.forgotten += len(forgotten)
        self.counters.flows_cut = flows.cut
        interval = self._peers.interval
        self._next_beat = self._now + interval
        beat = self._receiver.beat = self._receiver.beat + 1
        address = self._network.address.encode("ascii", "replace")[:MAX_ADDRESS_BYTES]
        state = self._announcements.version, self._announcements.digest, flows.cut, flows.floor
        head = Heartbeat(self._epoch, beat, int(interval * 1_000), *state, flows.forgotten, len(forgotten), len(address))
        self._network.publish(self._subjects.heartbeat, encode_head(head), heartbeat_body(address, forgotten, flows.tails(None)))
        self._direct_since = {target: self._direct_since.get(target, beat) for target in flows.targets()}
        for target, first in self._direct_since.items():
            self._network.publish(self._subjects.direct(target), encode_head(Tails(self._epoch, beat, first)), flows.tails(target))


@dataclass(frozen=True, slots=True)
class _Deliver:
    """What *session* does with the messages and losses of the host *origin*."""

    session: LinkSession
    origin: str

    def publish(self, body: bytes, count: int) -> None:
        """Publish *count* packets, each after its length, on the local bus."""
        self.session.publish(body, count)

    def report_lost(self, lines: Iterable[Line], count: int) -> None:
        """Report a loss to the local clients that need one of *lines*."""
        self.session.report_lost(self.origin, lines, count)

    def moment(self) -> tuple[float, int]:
        """Return what changes when time passes, and when a local client subscribes."""
        return self.session.moment
