"""Messages, jobs and results of the store. Times are whole milliseconds, by the clocks of clocks.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from sbus.protocol.errors import SbusError

ErrorName = Literal["EDQUOT", "ENOSPC", "EMSGSIZE", "EINVAL", "ENOENT", "EACCES", "ESTALE", "EIO", "EBUSY"]

JobState = Literal["ready", "leased", "delayed", "dead"]

NO_UID = -1
"""The uid, gid or pid of a sender on another host."""


class EngineError(SbusError):
    """An operation that failed and changed nothing. ``code`` is the name of an error, ``reason`` says what failed and what to do.

    - EDQUOT: a limit of the user. ENOSPC: the disk or the stream is full. EMSGSIZE: the message is too long.
    - EINVAL: an argument cannot be used. ENOENT: no such stream, queue, reader or job.
    - EACCES: the file cannot be opened. ESTALE: the lease is over, or another worker has it.
    - EIO: the file is damaged, or the disk failed. EBUSY: the store is closed, or another process uses the file.
    """

    def __init__(self, code: ErrorName, reason: str) -> None:
        super().__init__(f"{code} {reason}")
        self.code: ErrorName = code
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Sender:
    """The publisher of a message. One on another host has its ``origin``, and no uid of this host: :data:`NO_UID`."""

    uid: int
    gid: int
    pid: int
    origin: str = ""


class NewMessage(NamedTuple):
    """A message to store: a tuple, because that is made faster than another object.

    ``id``: a second message with the same id, of the same user in the same stream within an hour, is not stored again.
    ``due_ms``: in a stream with a queue, the time before which no worker gets it; 0: at once. ``at_ms``: the same as a date.
    ``expires_ms``: the time at which it is removed; 0: never.
    """

    key: bytes
    payload: bytes
    sender: Sender
    id: bytes = b""
    due_ms: int = 0
    expires_ms: int = 0
    at_ms: int = 0


class PutResult(NamedTuple):
    """The number of a stored message in its stream. ``is_duplicate``: its id was known, and ``seq`` is that of the earlier one."""

    seq: int
    is_duplicate: bool = False


@dataclass(frozen=True, slots=True)
class Stored:
    """A message of a stream. ``time_ms`` is a date; ``expires_ms`` is 0 if it does not expire."""

    seq: int
    time_ms: int
    key: bytes
    payload: bytes
    sender: Sender
    expires_ms: int = 0


@dataclass(frozen=True, slots=True)
class Gap:
    """A place in a stream where messages are missing: at most ``count`` with keys that match ``pattern``; 0: an unknown number."""

    seq: int
    time_ms: int
    pattern: bytes
    count: int
    reason: str


@dataclass(frozen=True, slots=True)
class Worker:
    """A connection that takes jobs, and its user. ``identity`` tells it from others that had its number; 0: unknown."""

    connection: int
    uid: int
    identity: int = 0


@dataclass(frozen=True, slots=True)
class Released:
    """What became of the jobs of a worker that has disconnected: their queues, and their number."""

    queues: set[str]
    jobs: int
    until: int
    """The last lease that the worker can have had; 0 if no more of its jobs are left."""


@dataclass(frozen=True, slots=True)
class LeasedJob:
    """A job with a worker. ``tries`` counts this try; ``until_ms`` is the end of the lease as a date, ``lease_ms`` its length."""

    lease: int
    queue: str
    tries: int
    until_ms: int
    stored: Stored
    lease_ms: int = 0


class JobPage(NamedTuple):
    """The jobs that a worker has got. ``more``: there was none as far as the operation looked; call it again."""

    jobs: list[LeasedJob]
    more: bool = False


@dataclass(frozen=True, slots=True)
class JobInfo:
    """A job of a queue as ``jobs`` lists it.

    ``at_ms``: the date at which a delayed one is ready, a lease ends, or a dead one died. ``holder`` is the worker of a leased one.
    ``reason``: of its last failure, if it had one.
    """

    state: JobState
    stored: Stored
    tries: int
    at_ms: int = 0
    reason: str = ""
    holder: Worker | None = None


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A job that will not be tried again. It stays in the queue, in the state ``dead``."""

    queue: str
    seq: int
    key: bytes
    payload: bytes
    sender: Sender
    tries: int
    reason: str
    time_ms: int
    place: int = 0
    """Its place among the notes of dead letters."""


@dataclass(frozen=True, slots=True)
class EndedValue:
    """A key of *stream* that has no value any more: *message* is empty, of the user of the last one. *place* is that of its note."""

    place: int
    stream: str
    message: NewMessage


@dataclass(frozen=True, slots=True)
class Places:
    """Places up to which the notes of ended values and of dead letters were looked at, or are done."""

    ends: int = 0
    letters: int = 0


NOWHERE = Places()
"""Before the first place."""


@dataclass(frozen=True, slots=True)
class Rest:
    """Messages of a stream that were stored and perhaps not published, up to the number *last*; *gone* were removed before."""

    stream: str
    last: int
    messages: list[Stored]
    gone: int


@dataclass(frozen=True, slots=True)
class Taken:
    """What the bus has taken: of streams, the numbers up to which it has the messages; *never*: messages that cannot be published."""

    streams: Mapping[str, int] = field(default_factory=dict)
    places: Places = NOWHERE
    never: int = 0


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a stream. ``next_seq`` is where to read on; ``last_seq`` is the number of the newest message that was ever stored.

    A page without items is not the end: that is reached when ``next_seq`` is greater than ``last_seq``.
    """

    items: list[Stored | Gap]
    next_seq: int
    last_seq: int


@dataclass(frozen=True, slots=True)
class LastValues:
    """The newest messages of some keys, in the order of the keys. ``next_key`` is the next ``after_key``; None: this was the last one.

    There can be more even if ``items`` is empty.
    """

    items: list[Stored]
    next_key: bytes | None


@dataclass(frozen=True, slots=True)
class Purged:
    """What ``purge`` and ``forget`` removed. ``more``: call it again, from ``next_seq``."""

    count: int
    more: bool = False
    next_seq: int = 0


@dataclass(frozen=True, slots=True)
class Sweep:
    """What ``sweep`` did.

    ``ready``: queues that have jobs for workers again. ``dead``: new dead letters. ``removed``: messages that retention removed.
    ``ended``: connection and lease of each lease that was over. ``values``: keys that have no value any more.
    ``places``: up to which dead letters and values were looked at, for the next sweep. ``damaged``: stream and number of messages that
    were found damaged. ``lost``: streams that have lost messages, and the number of the gap.
    ``more``: call it again soon. ``next_ms``: the time of the next event, or
    0 if none is known.
    """

    ready: set[str] = field(default_factory=set)
    dead: list[DeadLetter] = field(default_factory=list)
    ended: list[tuple[int, int]] = field(default_factory=list)
    removed: int = 0
    more: bool = False
    next_ms: int = 0
    values: list[EndedValue] = field(default_factory=list)
    places: Places = NOWHERE
    damaged: list[tuple[str, int]] = field(default_factory=list)
    lost: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class UserStatistics:
    """What one user has in a stream. A user of another host has the name of the host in ``host``."""

    uid: int
    host: str
    messages: int
    bytes: int
    keys: int


@dataclass(frozen=True, slots=True)
class StreamStatistics:
    """The figures of a stream. ``keys`` is counted only if ``last`` is set. ``removed`` counts messages that retention removed."""

    name: str
    is_configured: bool
    messages: int
    bytes: int
    keys: int
    first_seq: int
    last_seq: int
    gaps: int
    readers: int
    removed: int
    users: list[UserStatistics]


@dataclass(frozen=True, slots=True)
class QueueStatistics:
    """The figures of a queue: its jobs by state, and the dead letters that retention removed."""

    name: str
    stream: str
    is_configured: bool
    ready: int
    leased: int
    delayed: int
    dead: int
    dropped_dead: int


@dataclass(frozen=True, slots=True)
class StoreStatistics:
    """The figures of the store. ``leases`` is the number of leased jobs of each user."""

    streams: list[StreamStatistics]
    queues: list[QueueStatistics]
    leases: Mapping[int, int]
    file_bytes: int
    open_gaps: int = 0
    """Gaps that are not acknowledged, of all streams: of the newest 1,000 of each."""
    open_missing: int = 0
    """Messages that are missing there, at least."""
    open_unknown: int = 0
    """Those of these gaps whose number of messages is unknown."""
    to_publish: int = 0
    """Messages of calls that the bus has not yet taken."""
    unpublished: int = 0
    """Messages that could never be published, of all runs of the store."""
    damaged: int = 0
    """Messages that the disk has changed, as far as they were read."""
    open_damaged: int = 0
    """Those that are not acknowledged."""
    is_date_doubted: bool = False
    """Whether the date has jumped, so that nothing is deleted because of it."""
