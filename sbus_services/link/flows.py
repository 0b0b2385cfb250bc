"""Flows: which messages of this host share one sequence of numbers.

A flow has the messages whose keys match the same wanted patterns, so that each receiver of a flow receives all of it, and its numbers
have no gap for it. When a host begins to want a pattern, the pattern gets a new generation, and its messages go to new flows: no host
joins a flow in its middle. Numbers of flows are never used again.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from sbus_services.link.frames import MAX_FRAME_BYTES, MAX_TAILS, MAX_TAILS_BYTES, Tail, encode_tail

MAX_FLOWS = 4_096
"""Flows that a host can have. Beyond them the oldest ends, and its messages go to a new flow."""

PRIVATE_KEY = b"!/cred/"
"""The key of the flows with private messages."""

LISTED = 3
"""Heartbeats that list the last number of a flow after its last message. A receiver that misses all of them assumes a loss."""


@dataclass(slots=True, eq=False)
class Flow:
    """One sequence of numbers, for *target* alone, or for all hosts if that is None. *last* is the number used last.

    *sent* is the last number before which nothing waits for its frame. *changed* and *informed* are moments of `FlowTable`: when *sent* has
    changed, and when the receivers of this flow last got those of the others.
    """

    number: int
    target: str | None
    key: bytes
    last: int = 0
    sent: int = 0
    changed: int = 0
    informed: int = 0
    listings: int = 0
    """Heartbeats that still have to list it."""
    before: dict[int, Flow] = field(default_factory=dict)
    """Flows that had keys of the next frame, at most MAX_TAILS."""

    def take(self, count: int = 1) -> None:
        """Use the next *count* numbers."""
        self.last += count
        self.listings = LISTED


class FlowTable:
    """The flows of this host."""

    def __init__(self) -> None:
        self.next = 1
        """Number of the next new flow."""
        self.cut = 0
        """Flows that ended before LISTED heartbeats had listed their last number."""
        self.ended = 0
        """Flows that ended. After a change, `find` has to be asked again."""
        self.forgotten = 0
        """Losses that no gap in the numbers shows: hosts that were forgotten because they were silent, and messages lost before they came
        here. Each frame with messages has it, so a receiver reports a loss before newer messages."""
        self._moment = 0
        self._open: OrderedDict[tuple[str | None, bytes], Flow] = OrderedDict()
        self._listed: dict[str | None, dict[int, Flow]] = {}

    @property
    def floor(self) -> int:
        """No flow with a lower number gets a further message, or is listed again."""
        return next((flow.number for flow in self._open.values()), self.next)

    def find(self, target: str | None, patterns: Iterable[bytes], key: bytes) -> Flow:
        """Return the flow of messages for *target* that match exactly *patterns*, of which *key* is one. It is new if there is none."""
        identity = (target, _digest(patterns))
        flow = self._open.get(identity)
        if flow is None:
            flow = self._open[identity] = Flow(self.next, target, key)
            self.next += 1
            if len(self._open) > MAX_FLOWS:
                self._end(self._open.popitem(last=False)[1])
        return flow

    def mark(self, flow: Flow) -> None:
        """Have the next heartbeats list *flow*, after a number was taken."""
        self._listed.setdefault(flow.target, {})[flow.number] = flow

    def move(self, key_flows: Iterable[Flow], flow: Flow) -> None:
        """Have the next frame of *flow* report the numbers of *key_flows*, which had its key before, whatever others have changed."""
        for other in key_flows:
            if other is not flow and other.target in (None, flow.target) and other.listings and len(flow.before) < MAX_TAILS:
                flow.before[other.number] = other

    def note_sent(self, flow: Flow) -> None:
        """Have frames of other flows report the numbers of *flow*, all of which are in frames that were sent, or lost."""
        self._moment += 1
        flow.sent, flow.changed = flow.last, self._moment
        listed = self._listed.get(flow.target, {})
        if listed.pop(flow.number, None) is not None:
            listed[flow.number] = flow  # the latest is last

    def news_for(self, flow: Flow) -> bytes:
        """Return tails for the next frame of *flow*: those of flows that have changed since its last one, so that their ends are known.

        A receiver then reports what is missing of them before it publishes newer messages. Flows for one host alone do not concern others.
        """
        body: list[bytes] = []
        size = 0
        for other in itertools.chain(flow.before.values(), self._changed_since(flow)):
            if len(body) == MAX_TAILS:
                break
            tail = encode_tail(Tail(other.number, other.sent, other.key))
            if size + len(tail) <= MAX_TAILS_BYTES:
                body.append(tail)
                size += len(tail)
        flow.before.clear()
        flow.informed = self._moment
        return b"".join(body)

    def targets(self) -> list[str]:
        """Return the hosts that have ever had flows of their own."""
        return [target for target in self._listed if target is not None]

    def forget(self, target: str) -> None:
        """Stop heartbeats about flows for *target* alone."""
        self._listed.pop(target, None)

    def tails(self, target: str | None) -> bytes:
        """Return the body of the next heartbeat about flows for *target*: at most 64 KiB; those listed before come first."""
        listed = self._listed.get(target, {})
        body: list[bytes] = []
        size = 0
        for flow in sorted(listed.values(), key=lambda flow: flow.listings):
            tail = encode_tail(Tail(flow.number, flow.last, flow.key))
            if size + len(tail) > MAX_FRAME_BYTES:
                break
            body.append(tail)
            size += len(tail)
            flow.listings -= 1
            if not flow.listings:
                del listed[flow.number]
        return b"".join(body)

    def _changed_since(self, flow: Flow) -> Iterator[Flow]:
        """Yield the other flows for its receivers that have changed since its last frame, the latest first."""
        if flow.key == PRIVATE_KEY:
            return
        for scope in (None,) if flow.target is None else (None, flow.target):
            for other in reversed(self._listed.get(scope, {}).values()):
                if other is flow or not other.sent or other.key == PRIVATE_KEY or other.number in flow.before:
                    continue
                if other.changed <= flow.informed:
                    break
                yield other

    def _end(self, flow: Flow) -> None:
        """Note that *flow* gets no further message."""
        self.ended += 1
        if self._listed.get(flow.target, {}).pop(flow.number, None) is not None:
            self.cut += 1


def _digest(patterns: Iterable[bytes]) -> bytes:
    """Return a short name for a sequence of patterns, however long they are."""
    digest = hashlib.sha256()
    for pattern in patterns:
        digest.update(len(pattern).to_bytes(4, "little"))
        digest.update(pattern)
    return digest.digest()[:16]
