"""A call to each member of a group. No I/O. Spec: sbus-rpc(7) §6.

The bus is asked for the members first; then each gets a request at its own address. One request to the whole group would get more or
fewer responses than the list has members whenever the group changes between the two.
"""

from __future__ import annotations

import math
from collections import deque

from sbus.bus_calls import Call, RequestCall
from sbus.errors import TimedOut
from sbus.operations import Begin, Deadline, Operation, Settle, members
from sbus.protocol.credentials import Peer
from sbus.protocol.errors import SbusError
from sbus.rpc.calls import MAX_CONCURRENT_REQUESTS, Answer, Caller, Invocation, Outcome
from sbus.rpc.cancellation import withdraw
from sbus.rpc.pending_requests import PendingRequest


class GroupCall:
    """A call to each member of a group: call :meth:`next` until it returns None, then :meth:`close`."""

    def __init__(self, caller: Caller, request: Invocation) -> None:
        self._caller = caller
        self._request = request
        self._queue: deque[Peer] | None = None
        self._active: dict[PendingRequest, tuple[Peer, Deadline]] = {}

    def next(self) -> Operation[Outcome | None]:
        """Return the outcome of the next member, in the order of completion, or None after the last.

        Raises:
            SbusError: the bus could not be asked for the members, or the connection ended before all requests were sent.
        """
        if self._queue is None:
            self._queue = deque((yield from members(self._caller.session, self._request.key, self._request.deadline())))
        while True:
            if self._queue and len(self._active) <= MAX_CONCURRENT_REQUESTS // 2:
                yield from self._send_some(self._queue)
            if (outcome := self._take_done()) is not None:
                return outcome
            if not self._active:
                if not self._queue:
                    return None
                continue
            soonest = min((deadline for _, deadline in self._active.values()), key=_remaining)
            try:
                yield Settle(list(self._active), soonest)
            except TimedOut:
                self._give_up_late()

    def close(self) -> None:
        """Stop waiting for responses. Harmless when already closed."""
        for pending in self._active:
            withdraw(self._caller.session, pending)
            self._caller.requests.close(pending)
        self._active.clear()

    def _send_some(self, queue: deque[Peer]) -> Operation[None]:
        """Send the request to as many more members as may wait at the same time, and find out which of them are connected."""
        deadline = self._request.deadline()
        sent: list[tuple[PendingRequest, RequestCall, list[Call]]] = []

        def start() -> list[Call]:
            while self._caller.requests.answers and queue and len(self._active) < MAX_CONCURRENT_REQUESTS:
                peer = queue.popleft()
                sent.append(self._caller.send(self._request, deadline, peer))
                self._active[sent[-1][0]] = (peer, deadline)
            return [call for _, _, calls in sent for call in calls]

        while not sent:
            yield from self._caller.prepare(deadline)
            yield Begin(start, deadline)
        absent: list[PendingRequest] = []
        for pending, call, calls in sent:
            self._caller.note_watched(calls)
            if call.error is not None:
                pending.finish(call.error)
            elif call.is_undeliverable:
                absent.append(pending)
        if absent:
            yield from self._judge_absent(absent, deadline)

    def _judge_absent(self, absent: list[PendingRequest], deadline: Deadline) -> Operation[None]:
        """Distinguish members that have left from mere subscribers of the key, which are not services and have no outcome."""
        there = {peer.connection for peer in (yield from members(self._caller.session, self._request.key, deadline))}
        for pending in absent:
            peer, _ = self._active[pending]
            if peer.connection in there:
                self._close(pending)
            else:
                pending.undelivered()

    def _take_done(self) -> Outcome | None:
        """Return the outcome of a request that is done, and forget it; None if no request is done."""
        for pending, (peer, _) in self._active.items():
            if pending.is_done:
                self._close(pending)
                return self._outcome(peer, pending)
        return None

    def _give_up_late(self) -> None:
        """Fail the requests whose deadline has passed."""
        for pending, (_, deadline) in self._active.items():
            if deadline.remaining() == 0:
                withdraw(self._caller.session, pending)
                pending.finish(self._caller.late(self._request, pending))

    def _close(self, pending: PendingRequest) -> None:
        """Forget a request."""
        del self._active[pending]
        self._caller.requests.close(pending)

    def _outcome(self, peer: Peer, pending: PendingRequest) -> Outcome:
        """Return the outcome of a request that is done."""
        error: SbusError | None = pending.error
        return Outcome(peer, None if error else Answer.of(pending), error)


def _remaining(deadline: Deadline) -> float:
    """Return the remaining seconds, for comparison."""
    remaining = deadline.remaining()
    return math.inf if remaining is None else remaining
