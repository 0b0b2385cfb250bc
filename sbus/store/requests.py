"""The requests to sbus-store(8): messages to put, and the parts of calls. No I/O. Spec: sbus-store(8), "CALLS"."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from sbus.arguments import LONGEST_TERM, check_count, check_seconds, check_type
from sbus.encoding import Data, payload_bytes, to_bytes
from sbus.errors import PayloadTooLarge
from sbus.protocol.errors import ErrorCode, ProtocolError
from sbus.protocol.framed_data import (
    LATEST_SECONDS,
    MAX_DATA_BYTES,
    MAX_DELAY_SECONDS,
    MAX_EXPIRE_SECONDS,
    MAX_FRAMES,
    MAX_MESSAGES,
    MIN_EXPIRE_SECONDS,
    MIN_LEASE_SECONDS,
    framed_data,
    message_frame,
)
from sbus.protocol.keys import text_of

WAIT_SECONDS = 25.0
"""How long one call waits for messages or jobs. A loop then calls again."""

ANSWER_SECONDS = 30.0
"""How long the store may take for an answer, beyond the wait that it was asked for."""

RESTART_SECONDS = 30.0
"""How long a client waits for a store that restarts."""

FIRST_PAUSE = 0.02
LONGEST_PAUSE = 1.0
"""Seconds between attempts while the store restarts: doubled each time."""

COMMIT_SECONDS = 1.0
"""Longest time between two commits of the position of a reader, while its loop goes on."""

RENEWALS = 3
"""A lease is renewed when a third of it has passed, so that two failures in a row lose nothing."""

_HEAD_BYTES = 64
"""The rest of a request with messages."""


@dataclass(frozen=True, slots=True)
class NewMessage:
    """A message to put: *key* and *payload*, and the options of ``put``, times in seconds.

    Raises:
        TypeError: an argument has a wrong type.
        ValueError: an option is invalid, or both *delay* and *at* are set.
        ProtocolError: *key* has a NUL.
    """

    key: str | bytes
    payload: Data = b""
    id: str | None = None
    delay: float | None = None
    at: float | None = None
    expire: float | None = None

    def __post_init__(self) -> None:
        key = to_bytes(self.key)
        if b"\0" in key:
            raise ProtocolError(ErrorCode.EINVAL, f"invalid key {key[:64]!r}: contains a NUL")
        payload_bytes(self.payload)
        if self.delay is not None and self.at is not None:
            raise ValueError("delay and at are both set; remove one of them")
        for name, value in self.options.items():
            _check_member(name, value)

    @property
    def frame(self) -> bytes:
        """Its frame."""
        return message_frame(to_bytes(self.key), payload_bytes(self.payload))

    @property
    def options(self) -> dict[str, object]:
        """The options that are set."""
        values = {"id": self.id, "delay": self.delay, "at": self.at, "expire": self.expire}
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True, slots=True)
class PutRequest:
    """The data of one call of ``store/put``. It can be sent twice if each message has an ``id``."""

    data: bytes
    count: int
    is_repeatable: bool


def put_requests(messages: Iterable[NewMessage]) -> Iterator[PutRequest]:
    """Yield the calls for *messages*, in order: as many messages in each as fit. Raises PayloadTooLarge, ProtocolError."""
    frames: list[bytes] = []
    options: list[dict[str, object]] = []
    size = 0
    for message in messages:
        check_type(message, NewMessage, "messages", "NewMessage objects")
        frame, option = message.frame, message.options
        added = len(frame) + 5 + len(framed_data(option))
        if added + _HEAD_BYTES > MAX_DATA_BYTES:
            raise PayloadTooLarge(added, MAX_DATA_BYTES - _HEAD_BYTES, advice="")
        if frames and (len(frames) >= MAX_FRAMES or size + added + _HEAD_BYTES > MAX_DATA_BYTES):
            yield _put_request(frames, options)
            frames, options, size = [], [], 0
        frames.append(frame)
        options.append(option)
        size += added
    if frames:
        yield _put_request(frames, options)


def _put_request(frames: Sequence[bytes], options: Sequence[dict[str, object]]) -> PutRequest:
    """Return the call for one part of the messages."""
    head = {"messages": options} if any(options) else {}
    return PutRequest(framed_data(head, frames), len(frames), all("id" in each for each in options))


def request_data(**members: object) -> bytes:
    """Return the data of a call without messages and without members of None. Raises TypeError, ValueError: before anything is sent.

    An empty value is never omitted: what the program gives must not mean the same as nothing, such as all dead letters instead of none.
    """
    given = {name: value for name, value in members.items() if value is not None}
    for name, value in given.items():
        _check_member(name, value)
    return framed_data(given)


def purge_data(
    stream: str | None, queue: str | None, before: int | None, pattern: str | bytes | None, seqs: Sequence[int] | None
) -> bytes | None:
    """Return the data of ``store/purge``, None if *seqs* are none at all. Raises TypeError, ValueError."""
    if (stream is None) == (queue is None):
        raise ValueError("stream or queue must be given, and not both")
    for name, value, owner in (("before", before, stream), ("pattern", pattern, stream), ("seqs", seqs, queue)):
        if value is not None and owner is None:
            raise ValueError(f"{name} is for a {'queue' if name == 'seqs' else 'stream'}: remove it, or name one")
    if seqs is not None:
        check_type(seqs, (list, tuple, range), "seqs", "a list of numbers")
    text = None if pattern is None else key_text(pattern, "pattern")
    if not text and text is not None:
        raise ProtocolError(ErrorCode.EINVAL, "invalid pattern '': it matches every message; to remove them all, leave it out")
    numbers = None if seqs is None else list(seqs)
    state = None if queue is None else "dead"
    data = request_data(stream=stream, queue=queue, before=before, pattern=text, seqs=numbers, state=state)
    return None if numbers == [] else data


def peek_data(queue: str | None, stream: str | None, state: str | None, after: int, count: int) -> bytes:
    """Return the data of ``store/peek``. Raises TypeError, ValueError."""
    if (stream is None) == (queue is None):
        raise ValueError("stream or queue must be given, and not both")
    if state is not None and queue is None:
        raise ValueError("state is for a queue: remove it, or name one")
    check_count(count, "count", 1, MAX_MESSAGES)
    check_count(after, "after")
    return request_data(queue=queue, stream=stream, state=state, after=after, max=count)


_COUNTS = {"max": ("count", 1), "seq": ("seq", 1), "from": ("start", 0), "before": ("before", 1), "seqs": ("seqs", 1)}
"""The names of the arguments, and the least value."""

_SECONDS = {
    "lease": ("lease", MIN_LEASE_SECONDS, MAX_DELAY_SECONDS),
    "delay": ("delay", 0, MAX_DELAY_SECONDS),
    "retry": ("after", 0, MAX_DELAY_SECONDS),
    "expire": ("expire", MIN_EXPIRE_SECONDS, MAX_EXPIRE_SECONDS),
    "at": ("at", 0, LATEST_SECONDS),
    "time": ("since", 0, LATEST_SECONDS),
    "wait": ("timeout", 0, LONGEST_TERM),
}
"""The names of the arguments, and the ranges."""

_NAMES = ("stream", "queue", "state", "reader", "id")
_STARTS = ("first", "last", "new")


def _check_member(name: str, value: object) -> None:
    """Check a member of a request; errors have the name of the argument. Raises TypeError, ValueError."""
    if name in _NAMES:
        check_type(value, str, name, "str")
        if not value:
            raise ProtocolError(ErrorCode.EINVAL, f"invalid {name} '': must not be empty")
    elif name == "from" and isinstance(value, str):
        if value not in _STARTS:
            raise ValueError(f"invalid start {value!r}: must be a number, or one of {', '.join(_STARTS)}")
    elif name in _COUNTS:
        for each in value if name == "seqs" and isinstance(value, list) else (value,):
            check_count(each, *_COUNTS[name])
    elif name in _SECONDS:
        argument, least, most = _SECONDS[name]
        check_seconds(value, argument, most, least)


def check_jobs(jobs: object, kind: type) -> None:
    """Raise TypeError unless *jobs* is a list or tuple of objects of *kind*."""
    check_type(jobs, (list, tuple), "jobs", "a list of jobs")
    for job in jobs if isinstance(jobs, list | tuple) else ():
        check_type(job, kind, "jobs", "a list of jobs")


def check_retry(after: float | None) -> None:
    """Check the time until a job is tried again. Raises TypeError, ValueError."""
    if after is not None:
        _check_member("retry", after)


def reason_text(reason: str) -> str | None:
    """Return the reason of a failure as it fits into a request, None for none. Raises TypeError."""
    check_type(reason, str, "reason", "str")
    return reason[:256] or None


def key_text(key: str | bytes, what: str = "key") -> str:
    """Return *key* as it is in JSON. Raises ProtocolError if it has a NUL."""
    return text_of(to_bytes(key, what))


class Pauses:
    """The times between attempts to call a store that restarts."""

    def __init__(self, now: float) -> None:
        self._end = now + RESTART_SECONDS
        self._next = FIRST_PAUSE

    def next(self, now: float) -> float | None:
        """Return the seconds to wait now, or None if it has been long enough."""
        if now >= self._end:
            return None
        pause, self._next = self._next, min(2 * self._next, LONGEST_PAUSE)
        return min(pause, self._end - now)
