"""Messages of one other host: gaps, duplicates, the check of the import, and the keys that they get here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from sbus.protocol.keys import MAX_KEY_BYTES
from sbus.protocol.packets import BATCH_HEAD, LENGTH_BYTES, MAX_BATCH_BYTES, MAX_PACKET_BYTES
from sbus_services.link.blob_tickets import EVERY_HOST, BlobTickets
from sbus_services.link.counters import HostCounters
from sbus_services.link.flows import LISTED, MAX_FLOWS, PRIVATE_KEY
from sbus_services.link.frames import Data, Line, Tail
from sbus_services.link.local_interest import HOSTED_HEAD
from sbus_services.link.loss_reports import MAX_COUNT
from sbus_services.link.message_runs import MessageRun, RunReader
from sbus_services.link.outgoing import is_secret
from sbus_services.link.rates import Rate
from sbus_services.link.rules import Rules

WALKS_PER_SECOND = 2
WALKS_AT_ONCE = 20
"""How often frames of a host may have all its lines looked at. Beyond that a loss is reported later; until then messages can be ignored."""

MAX_PENDING = 65_536
"""Gaps that are remembered for lines that the host has not confirmed yet. Beyond them their number is unknown."""


class Deliver(Protocol):
    """Where messages and losses go, in order."""

    def publish(self, body: bytes, count: int) -> None:
        """Publish *count* packets, each after its length, on the local bus."""

    def report_lost(self, lines: Iterable[Line], count: int) -> None:
        """Report *count* lost messages, or an unknown number (0), to the clients that need one of *lines*."""

    def moment(self) -> tuple[float, int]:
        """Return what changes when time passes, and when a local client subscribes."""


@dataclass(slots=True)
class _Flow:
    """What is known of a flow: the last number that came or was reported as lost, and one of its keys."""

    key: bytes
    last: int = 0


class Incoming:
    """The flows of one host, *origin*. *matching* returns this host's lines of interest that match a key of it."""

    def __init__(
        self,
        rules: Rules,
        origin: str,
        matching: Callable[[bytes], list[Line]],
        deliver: Deliver,
        counters: HostCounters,
        *,
        tickets: BlobTickets,
    ) -> None:
        self._rules = rules
        self._origin = origin
        self._matching = matching
        self._deliver = deliver
        self._counters = counters
        self._tickets = tickets
        self._batch = _Batch(deliver, counters)
        self._head = HOSTED_HEAD + origin.encode("ascii") + b"/"
        self._flows: dict[int, _Flow] = {}
        self._floor = 0
        self._beats: dict[str, int] = {}
        self._losses = 0
        self._pending: dict[Line, dict[int, int]] = {}
        """Missing messages by flow, for lines of which it is unknown whether the flow includes them."""
        self._pending_count = 0
        self._pending_overflow = False
        self._unknown: set[Line] = set()
        """Lines with a report of an unknown loss at the moment ``_unknown_moment``, and nothing published after it."""
        self._unknown_moment = (0.0, 0)
        self._walks = Rate(WALKS_PER_SECOND, WALKS_AT_ONCE)
        self.version = 0
        """Lines up to this version of the interest are served, if they concern the host."""
        self.served: dict[Line, int] = {}
        """Lines that the host has confirmed, with the first flow that includes each."""
        self._interrupted: set[Line] = set()
        """Lines that it had confirmed, and has to confirm again."""

    def reset(self) -> None:
        """Forget everything, because the host runs from scratch; report an unknown loss to all lines that it served."""
        self.report_unknown(self.served)
        self.interrupt()
        self._flows.clear()
        self._beats.clear()
        self._pending.clear()
        self._pending_count, self._pending_overflow = 0, False
        self._floor = self._losses = 0

    def interrupt(self) -> None:
        """Wait until the host confirms all lines again: what it publishes before that may be missing."""
        self._interrupted.update(self.served)
        self.served.clear()
        self.version = 0

    def may_walk(self) -> bool:
        """Return whether a frame of the host may have all its lines looked at now, and count it."""
        return self._walks.take(self._deliver.moment()[0])

    def report_served(self) -> bool:
        """Report an unknown loss to all lines that are served. Return False, without a report, if that came too often."""
        may_walk = self.may_walk()
        if may_walk:
            self.report_unknown(self.served)
        return may_walk

    def report_unknown(self, lines: Iterable[Line]) -> None:
        """Report that an unknown number of messages for *lines* may be missing, unless that has just been reported to the same clients.

        One frame can show it in several ways. A report of an earlier moment is not enough: clients may have asked for the present state of
        things since then, and something published later may be missing.
        """
        moment = self._deliver.moment()
        if moment != self._unknown_moment:
            self._unknown.clear()
            self._unknown_moment = moment
        lines = [line for line in lines if line not in self._unknown]
        if lines:
            self._unknown.update(lines)
            self._counters.unknown_losses += 1
            self._deliver.report_lost(lines, 0)

    def data(self, head: Data, runs: list[MessageRun], tails: Iterable[Tail] = (), *, direct: bool) -> None:
        """Handle a frame. *direct*: it came for this host alone, so private messages are allowed in it."""
        self._counters.frames += 1
        self._end_flows(tails)
        flow = self._flow(head.flow, PRIVATE_KEY if is_secret(runs[0].key) else runs[0].key)
        end = head.number + head.messages - 1
        if flow is None or not head.number or end <= flow.last:
            self._counters.duplicates += head.messages
            return
        repeated = max(0, flow.last + 1 - head.number)
        self._counters.duplicates += repeated
        self._report(*self._advance(head.flow, flow, head.number - 1))
        flow.last = end
        self._unknown.clear()
        for run in _without_first(runs, repeated):
            self._pass_on(head.flow, flow, run, direct=direct)
        self._batch.publish()

    def _pass_on(self, number: int, flow: _Flow, run: MessageRun, *, direct: bool) -> None:
        """Publish messages, and report those that are too long here: their heads are longer than at their origin."""
        head = self._local_head(run, direct=direct)
        if head is None:
            return
        if head and len(head) + run.longest <= MAX_PACKET_BYTES:
            self._batch.add(RunReader(run, head))
            return
        for single in run.singles():
            if head and len(head) + single.longest <= MAX_PACKET_BYTES:
                self._batch.add(RunReader(single, head))
                continue
            # The notice comes between the messages before and after the lost one.
            self._batch.publish()
            self._counters.too_long += 1
            self._report(self._miss(number, flow, 1), 1)

    def heartbeat(self, beat: int, losses: int, floor: int, tails: Iterable[Tail]) -> None:
        """Handle a heartbeat for all hosts."""
        if losses != self._losses and self.report_served():
            self._losses = losses
        self.tails("all", beat, tails)
        if floor > self._floor:
            self._floor = floor
            for number in [number for number in self._flows if number < floor]:
                del self._flows[number]

    def tails(self, scope: str, beat: int, tails: Iterable[Tail], first: int = 1) -> None:
        """Handle the last numbers of flows in heartbeat *beat* of *scope*, ``all`` or ``direct``; its first heartbeat was *first*."""
        before = self._beats.get(scope)
        if before is None or beat - max(before, first - 1) <= LISTED or self.report_served():
            self._beats[scope] = beat
        self._end_flows(tails)

    def _end_flows(self, tails: Iterable[Tail]) -> None:
        """Report what is missing of flows up to their last numbers: to the same lines once."""
        missing: dict[tuple[Line, ...], int] = {}
        for tail in tails:
            flow = self._flow(tail.flow, tail.key)
            if flow is not None:
                lines, count = self._advance(tail.flow, flow, tail.last)
                if lines:
                    missing[lines] = missing.get(lines, 0) + count
        for lines, count in missing.items():
            self._report(lines, count)

    def applied(self, lines: Iterable[Line], first: int, beat: int, version: int = 0) -> None:
        """Note that flows from *first* on include *lines*, all those up to *version*, and that heartbeats after *beat* list them."""
        lines = list(lines)
        self.version = max(self.version, version)
        self.report_unknown([line for line in lines if line in self._interrupted])
        self._interrupted.difference_update(lines)
        for line in lines:
            self.served[line] = first
            count = sum(count for number, count in self._forget_pending(line).items() if number >= first)
            if count:
                self._report((line,), count)
        if self._pending_overflow:
            self._pending_overflow = False
            self.report_unknown(lines)
        for scope in ("all", "direct"):
            self._beats.setdefault(scope, beat)

    def withdrawn(self, line: Line) -> None:
        """Note that nothing more is wanted for *line*."""
        self.served.pop(line, None)
        self._interrupted.discard(line)
        self._unknown.discard(line)
        self._forget_pending(line)

    def _forget_pending(self, line: Line) -> dict[int, int]:
        """Return the gaps that waited for *line*, by flow."""
        gaps = self._pending.pop(line, {})
        self._pending_count -= len(gaps)
        return gaps

    def _flow(self, number: int, key: bytes) -> _Flow | None:
        """Return the flow with that number, or None if it has ended."""
        flow = self._flows.get(number)
        if flow is None and number >= self._floor:
            flow = self._flows[number] = _Flow(key)
            if len(self._flows) > 2 * MAX_FLOWS:
                self._floor = sorted(self._flows)[MAX_FLOWS]
                self._flows = {each: kept for each, kept in self._flows.items() if each >= self._floor}
                flow = self._flows.get(number)
        return flow

    def _advance(self, number: int, flow: _Flow, last: int) -> tuple[tuple[Line, ...], int]:
        """Note that *flow* has come to the number *last*. Return the lines that miss messages of it, and how many."""
        count = last - flow.last
        if count <= 0:
            return (), 0
        flow.last = last
        return self._miss(number, flow, count), count

    def _miss(self, number: int, flow: _Flow, count: int) -> tuple[Line, ...]:
        """Return the lines that *flow* includes and that miss *count* messages of it; keep the number for lines still unknown."""
        if flow.key == PRIVATE_KEY:
            self._counters.lost_secrets += min(count, MAX_COUNT)
            return ()
        included = []
        for line in self._matching(flow.key):
            first = self.served.get(line)
            if first is None:
                self._postpone(line, number, count)
            elif number >= first:
                included.append(line)
        return tuple(included)

    def _postpone(self, line: Line, number: int, count: int) -> None:
        """Remember a gap until the host confirms *line*."""
        gaps = self._pending.setdefault(line, {})
        if number not in gaps:
            if self._pending_count >= MAX_PENDING:
                self._pending_overflow = True
                return
            self._pending_count += 1
        gaps[number] = gaps.get(number, 0) + count

    def _report(self, lines: tuple[Line, ...], count: int) -> None:
        """Report *count* lost messages to *lines*, if there are any."""
        if not lines:
            return
        if count > MAX_COUNT:
            self.report_unknown(lines)
        else:
            self._counters.lost += count
            self._deliver.report_lost(lines, count)

    def _local_head(self, run: MessageRun, *, direct: bool) -> bytes | None:
        """Return what precedes the payloads on the local bus, None if the rules do not let them in, or nothing if the key is too long."""
        key = run.key
        if key.startswith(b"!/"):
            own = bool(self._rules.secret_head) and key.startswith(self._rules.secret_head)
            if not direct or own or not self._rules.exchanges_secrets(self._origin) or not is_secret(key):
                self._counters.refused_secrets += run.messages
                return None
            local = key
        else:
            rule = self._rules.import_of(self._origin, key)
            if rule is None:
                self._counters.refused_by_import += run.messages
                return None
            if rule.max_blob:
                self._tickets.note(self._origin, run, rule.max_blob, (EVERY_HOST,))
            local = key if rule.shared else self._head + key
        if len(local) > MAX_KEY_BYTES:
            return b""
        # Never a plain MSG: on this bus that would be a message of the local user of the link.
        return b"CMSG !/from/!/host/%b/%b\0MSG %b\0" % (self._origin.encode("ascii"), run.sender, local)


class _Batch:
    """Packets for the local bus, which are published together, and counted."""

    def __init__(self, deliver: Deliver, counters: HostCounters) -> None:
        self._deliver = deliver
        self._counters = counters
        self._parts: list[bytes] = []
        self._size = 0
        self._count = 0

    def add(self, messages: RunReader) -> None:
        """Add messages, and publish what is full."""
        while messages.left:
            body, count = messages.take(MAX_BATCH_BYTES - len(BATCH_HEAD) - self._size, is_first=not self._count)
            if not count:
                self.publish()
                continue
            self._parts.append(body)
            self._size += len(body)
            self._count += count

    def publish(self) -> None:
        """Publish what was added."""
        if self._count:
            body, count = b"".join(self._parts), self._count
            self._parts, self._size, self._count = [], 0, 0
            self._counters.messages += count
            self._counters.bytes += len(body) - count * LENGTH_BYTES
            self._deliver.publish(body, count)


def _without_first(runs: Iterable[MessageRun], count: int) -> Iterator[MessageRun]:
    """Yield *runs* without their first *count* messages."""
    for run in runs:
        if count >= run.messages:
            count -= run.messages
        elif count:
            yield run.without_first(count)
            count = 0
        else:
            yield run
