"""The requests to sbus-store(8): messages to put, and the parts of calls. No I/O. Spec: sbus-store(8), "CALLS"."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from sbusd.client.arguments import check_count, check_seconds, check_type
from sbusd.client.encoding import Data, payload_bytes, to_bytes
from sbusd.client.errors import PayloadTooLarge
from sbusd.protocol.errors import ErrorCode, ProtocolError
from sbusd.protocol.framed_data import MAX_DATA_BYTES, MAX_FRAMES, framed_data, message_frame
from sbusd.protocol.keys import text_of

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

MOST_JOBS = 64
"""The jobs of one call of ``store/take``."""

RENEWALS = 3
"""A lease is renewed when a third of it has passed, so that two failures in a row lose nothing."""

_HEAD_BYTES = 64
"""The rest of a request with messages."""


@dataclass(frozen=True, slots=True)
class NewMessage:
    """A message to put: *key* and *payload*, and the options of ``put``, times in seconds.

    Raises:
        ValueError: an option is invalid, or both *delay* and *at* are set.
        ProtocolError: *key* has a NUL.
    """

    key: str | bytes
    payload: Data = b""
    id: str = ""
    delay: float | None = None
    at: float | None = None
    expire: float | None = None

    def __post_init__(self) -> None:
        if self.delay is not None and self.at is not None:
            raise ValueError("delay and at are both set; remove one of them")
        for name, value in (("delay", self.delay), ("at", self.at), ("expire", self.expire)):
            if value is not None:
                check_seconds(value, name)
        check_type(self.id, str, "id", "str")

    @property
    def frame(self) -> bytes:
        """Its frame. Raises ProtocolError if the key has a NUL."""
        key = to_bytes(self.key)
        if b"\0" in key:
            raise ProtocolError(ErrorCode.EINVAL, f"invalid key {key[:64]!r}: contains a NUL")
        return message_frame(key, payload_bytes(self.payload))

    @property
    def options(self) -> dict[str, object]:
        """The options that are set."""
        values = {"id": self.id or None, "delay": self.delay, "at": self.at, "expire": self.expire}
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
            raise PayloadTooLarge(added, MAX_DATA_BYTES - _HEAD_BYTES)
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
    """Return the data of a call without messages; omit members without a value. Raises TypeError, ValueError: before anything is sent."""
    for name, value in members.items():
        if value is not None and value not in ("", ()):
            _check_member(name, value)
    return framed_data({name: value for name, value in members.items() if value is not None and value not in ("", ())})


_COUNTS = {"max": "count", "seq": "seq", "from": "start", "before": "before", "seqs": "seqs"}
_SECONDS = {"lease": "lease", "time": "since", "wait": "timeout", "after": "after"}
_TEXTS = ("stream", "queue", "state", "reader", "reason")
_STARTS = ("first", "last", "new")


def _check_member(name: str, value: object) -> None:
    """Check a member of a request; errors have the name of the argument. Raises TypeError, ValueError."""
    if name in _TEXTS:
        check_type(value, str, name, "str")
    elif name == "from" and isinstance(value, str):
        if value not in _STARTS:
            raise ValueError(f"invalid start {value!r}: must be a number, or one of {', '.join(_STARTS)}")
    elif name in _COUNTS:
        for each in value if isinstance(value, tuple) else (value,):
            check_count(each, _COUNTS[name])
    elif name in _SECONDS and not isinstance(value, str):  # after is also a key
        check_seconds(value, _SECONDS[name])


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
