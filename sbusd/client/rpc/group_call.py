"""A call to each member of a group. No I/O. Spec: sbus-rpc(7) §6.

First the members, then a request to each at its own address, tracked on its own: a request to the whole group with the members' list
beside it would be answered by more or by fewer than are on the list whenever the group changes between the two.
"""

from __future__ import annotations

import math
from collections import deque

from sbusd.client.bus_queries import RequestCall
from sbusd.client.deadline import Deadline
from sbusd.client.errors import TimedOut
from sbusd.client.members import members
from sbusd.client.operation import Begin, Procedure, Settle
from sbusd.client.pending_replies import Call
from sbusd.client.rpc.calls import AT_ONCE, Answer, Caller, Invocation, Outcome
from sbusd.client.rpc.pending_requests import Outstanding
from sbusd.protocol.errors import SbusError
from sbusd.protocol.peers import Peer


class Sweep:
    """A call to many, in work: call :meth:`next` until it returns None, then :meth:`close`."""

    def __init__(self, caller: Caller, request: Invocation) -> None:
        self._caller = caller
        self._request = request
        self._queue: deque[Peer] | None = None
        self._active: dict[Outstanding, tuple[Peer, Deadline]] = {}

    def next(self) -> Procedure[Outcome | None]:
        """Return what came of the next member, in the order in which that is known, or None when all have been told.

        Raises:
            SbusError: the members could not be asked for, or the connection ended before the request was sent to all.
        """
        if self._queue is None:
            self._queue = deque((yield from members(self._caller.session, self._request.key, self._request.deadline())))
        while True:
            if self._queue and len(self._active) <= AT_ONCE // 2:
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
        """Wait for no answer any more. Harmless when done already."""
        for outstanding in self._active:
            self._caller.table.close(outstanding)
        self._active.clear()

    def _send_some(self, queue: deque[Peer]) -> Procedure[None]:
        """Send the request to as many more as may be under way, and find out which of them are there."""
        deadline = self._request.deadline()
        sent: list[tuple[Outstanding, RequestCall, list[Call]]] = []

        def start() -> list[Call]:
            while self._caller.table.answers and queue and len(self._active) < AT_ONCE:
                peer = queue.popleft()
                sent.append(self._caller.send(self._request, deadline, peer))
                self._active[sent[-1][0]] = (peer, deadline)
            return [call for _, _, calls in sent for call in calls]

        while not sent:
            yield from self._caller.prepare(deadline)
            yield Begin(start, deadline)
        absent: list[Outstanding] = []
        for outstanding, call, calls in sent:
            self._caller.note_watched(calls)
            if call.error is not None:
                outstanding.finish(call.error)
            elif call.is_undeliverable:
                absent.append(outstanding)
        if absent:
            yield from self._judge_absent(absent, deadline)

    def _judge_absent(self, absent: list[Outstanding], deadline: Deadline) -> Procedure[None]:
        """Tell those who have left the group, or the bus, from those who only listen to it and never were to be called."""
        there = {peer.connection for peer in (yield from members(self._caller.session, self._request.key, deadline))}
        for outstanding in absent:
            peer, _ = self._active[outstanding]
            if peer.connection in there:
                self._close(outstanding)
            else:
                outstanding.undelivered()

    def _take_done(self) -> Outcome | None:
        """Return what came of a request that is done, and forget it."""
        for outstanding, (peer, _) in self._active.items():
            if outstanding.is_done:
                self._close(outstanding)
                return self._outcome(peer, outstanding)
        return None

    def _give_up_late(self) -> None:
        """Fail those whose time is over."""
        for outstanding, (_, deadline) in self._active.items():
            if deadline.remaining() == 0:
                outstanding.finish(self._caller.late(self._request, outstanding))

    def _close(self, outstanding: Outstanding) -> None:
        """Forget a request."""
        del self._active[outstanding]
        self._caller.table.close(outstanding)

    def _outcome(self, peer: Peer, outstanding: Outstanding) -> Outcome:
        """Return what came of a request that is done."""
        error: SbusError | None = outstanding.error
        return Outcome(peer, None if error else Answer.of(outstanding), error)


def _remaining(deadline: Deadline) -> float:
    """Return the seconds that are left, for comparison."""
    remaining = deadline.remaining()
    return math.inf if remaining is None else remaining
