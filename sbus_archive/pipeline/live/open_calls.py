"""Calls without a reply so far, so that a reply in a later batch finds its request. Bounded, also for each user. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from sbus_archive.pipeline.live.minutes import MEASURES, Group

MAX_OPEN = 2000
"""Maximum number of open calls of all users; a busy machine has a few dozen."""

MAX_OPEN_OF_USER = 200
"""Maximum number of open calls of one user: one who calls and waits for no reply does not hide the calls of others."""

KEPT_SECONDS = 600
"""Time after which the reply to a request is not waited for: CALL_SECONDS of the tables, whose module needs PyArrow."""

_KEPT_NS = KEPT_SECONDS * 10**9
_MINUTE_NS = 60 * 10**9


class CallRequest(NamedTuple):
    """A request: its number, time in nanoseconds since 1970, key prefix, and user."""

    call_id: int
    ts: int
    prefix: str | None
    uid: int | None


class BatchCalls(NamedTuple):
    """The calls of one batch: requests without a reply in it, replies to earlier requests with their times, and sums of slow calls."""

    requests: tuple[CallRequest, ...] = ()
    replies: tuple[tuple[int, int], ...] = ()
    slow: tuple[Group, ...] = ()
    dropped: int = 0
    """Number of requests beyond the limit for each user, which were not read."""


@dataclass(slots=True)
class OpenCalls:
    """The open calls by number, the oldest first."""

    by_number: dict[int, CallRequest] = field(default_factory=dict)
    dropped: int = 0
    """Requests that were not kept because of the limits: a slow reply to one is not counted."""

    def fold(self, calls: BatchCalls, slow_ns: int) -> list[Group]:
        """Add the requests and replies of a batch; return the sums of slow calls. A call is slow if its reply came after *slow_ns*."""
        found = list(calls.slow)
        for call_id, ts in calls.replies:
            request = self.by_number.pop(call_id, None)
            if request is not None and ts - request.ts >= slow_ns:
                found.append(slow_group(ts // _MINUTE_NS, request.prefix, request.uid, 1))
        self._add(calls.requests)
        self.dropped += calls.dropped
        return found

    def _add(self, requests: Iterable[CallRequest]) -> None:
        """Add *requests*, in the order of their times, as far as the limits allow; forget those that are too old."""
        ordered = sorted(requests, key=lambda request: request.ts)
        if not ordered:
            return
        oldest = ordered[-1].ts - _KEPT_NS
        self.by_number = {number: each for number, each in self.by_number.items() if each.ts >= oldest}
        users = Counter(each.uid for each in self.by_number.values())
        for request in ordered:
            if users[request.uid] >= MAX_OPEN_OF_USER:
                self.dropped += 1
                continue
            if len(self.by_number) >= MAX_OPEN:
                (uid, _), *_ = users.most_common(1)
                oldest_of_user = next(number for number, each in self.by_number.items() if each.uid == uid)
                del self.by_number[oldest_of_user]
                users[uid] -= 1
                self.dropped += 1
            self.by_number[request.call_id] = request
            users[request.uid] += 1


def slow_group(minute: int, prefix: str | None, uid: int | None, count: int) -> Group:
    """Return *count* slow calls of the user *uid* whose replies came in *minute*; *prefix* is that of the key of the requests."""
    return Group(minute, prefix, uid, tuple(count if name == "slow" else 0 for name in MEASURES))
