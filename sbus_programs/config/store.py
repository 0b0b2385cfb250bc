"""The settings of the store, with their defaults. Spec: store.toml(5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from sbus.protocol.envelope import MAX_TWIN
from sbus.protocol.framed_data import MAX_DELAY_SECONDS, MIN_LEASE_SECONDS
from sbus.protocol.keys import MAX_KEY_BYTES, KeySpace, Reach, intersection, is_matchable
from sbus_programs.config.hosts import AbsoluteFile
from sbus_programs.config.quantities import Count, Duration, Size, Spelling, show
from sbus_programs.config.rules import KeyPrefix, Origin
from sbus_programs.config.users import GroupId, UserId

KEPT_ASIDE = ".damaged-"
"""Ends the name of the file with the messages, before a date, when it was found damaged and kept aside."""

MAX_STREAMS = 250
"""Maximum number of streams, and of queues."""

MAX_PATTERNS = 500
"""Maximum number of patterns of all streams together: each is compared with each other one."""

MAX_NAME_BYTES = 64
"""Maximum size of the name of a stream or a queue: it is a segment of keys."""

EVERY_TWIN = 0
"""The number in ``twins`` that means every other host."""

NEVER_STORED = ("store/", "queue/")
"""Prefixes of keys that no stream has: those of the calls of the store, and of its workers."""

_FORBID_UNKNOWN = {"extra": "forbid"}

_HUNDRED_YEARS = 36_525 * 86_400.0


@dataclass(frozen=True, slots=True)
class StoreName(Spelling):
    """The name of a stream or a queue."""

    def parse(self, value: object) -> str:
        """Return the name. Raises ValueError if it cannot be a segment of a key, or is not printable."""
        if isinstance(value, str) and value.isprintable() and value.strip() == value and not set(value) & {"/", "*"}:  # noqa: SIM102
            if 1 <= len(value.encode()) <= MAX_NAME_BYTES:
                return value
        raise ValueError(f'must be 1 to {MAX_NAME_BYTES} printable bytes without "/" and "*", such as "mail", not {show(value)}')


@dataclass(frozen=True, slots=True)
class StoredKeys(Spelling):
    """A pattern of the keys of a stream."""

    def parse(self, value: object) -> str:
        """Return the pattern. Raises ValueError if it matches no key, or reserved ones."""
        if not isinstance(value, str) or "\0" in value or len(value.encode("utf-8", "surrogatepass")) > MAX_KEY_BYTES:
            raise ValueError(f'must be a pattern of keys of at most {MAX_KEY_BYTES} bytes, such as "net/", not {show(value)}')
        if value.startswith("!/"):
            raise ValueError(f'the store does not keep private and reserved keys, which begin with "!/": {show(value)}')
        if head := next((head for head in NEVER_STORED if value.startswith(head)), None):
            raise ValueError(f'the store does not keep the keys of its calls and workers, which begin with "{head}": {show(value)}')
        if not is_matchable(value.encode()):
            raise ValueError(f'no key matches the pattern {show(value)}: remove what follows "*" in its segment')
        return value


@dataclass(frozen=True, slots=True)
class TwinOrEvery(Spelling):
    """The number of another host, or ``"*"`` for every host that its relay admits."""

    def parse(self, value: object) -> int:
        """Return the number, or EVERY_TWIN. Raises ValueError if it is invalid."""
        if value == "*":
            return EVERY_TWIN
        if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_TWIN:
            return value
        raise ValueError(f'must be the number of a host, 1 to {MAX_TWIN}, or "*" for every host, not {show(value)}')


@dataclass(frozen=True, slots=True)
class Period(Duration):
    """A duration as for :class:`Duration`, or ``"0"`` for no limit."""

    def parse(self, value: object) -> float:
        """Return the seconds. Raises ValueError if *value* is not a duration, or out of range."""
        if value == "0" or (value == 0 and not isinstance(value, bool)):
            return 0.0
        try:
            # Not super(): the decorator creates a class with slots a second time, which super() does not find.
            return Duration.parse(self, value)
        except ValueError as error:
            raise ValueError(f'{error}; "0" means no limit') from None


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """One ``[[stream]]``: the messages with some keys, in the order in which they were stored."""

    __pydantic_config__: ClassVar[dict[str, str]] = _FORBID_UNKNOWN

    name: Annotated[str, StoreName()]
    keys: tuple[Annotated[str, StoredKeys()], ...]
    last: Annotated[int, Count(0, 1_000, "more of one key are read from a stream that keeps all")] = 0
    max_keys: Annotated[int, Count(1, 100_000_000, "each key is an entry of an index")] = 100_000
    max_keys_per_user: Annotated[int, Count(1, 100_000_000, "each key is an entry of an index")] = 50_000
    retain: Annotated[float, Period(1.0, _HUNDRED_YEARS, "messages are removed once in a second")] = 0.0
    max_bytes: Annotated[int, Size(1 << 20, 1 << 50, "the largest message must fit")] = 1 << 30
    max_messages: Annotated[int, Count(0, 1 << 40, "a number of a message has 48 bits")] = 0
    max_bytes_per_user: Annotated[int, Size(1 << 20, 1 << 50, "the largest message must fit")] = 64 << 20
    publish: bool = True
    """Whether a message that is put is also published under its key after the commit."""
    on_subscribe: bool = False
    twins: tuple[Annotated[int, TwinOrEvery()], ...] = ()
    """The other hosts that may read it, by their numbers for the relay; 0: every host."""
    origin: Annotated[Origin, Origin()] = field(default_factory=Origin)

    def __post_init__(self) -> None:
        if not self.keys:
            raise ValueError(f'stream {show(self.name)} has no keys; write at least one pattern, such as keys = ["net/"]')
        if self.on_subscribe and not self.last:
            raise ValueError(f"stream {show(self.name)}: on_subscribe sends last values; set last = 1, or remove on_subscribe")

    def is_open_to(self, twin: int) -> bool:
        """Return whether the host with the number *twin* may read it."""
        return twin in self.twins or EVERY_TWIN in self.twins

    @property
    def patterns(self) -> tuple[bytes, ...]:
        """The patterns as bytes."""
        return tuple(pattern.encode() for pattern in self.keys)


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """One ``[[queue]]``: every message of a stream is a job for one worker."""

    __pydantic_config__: ClassVar[dict[str, str]] = _FORBID_UNKNOWN

    name: Annotated[str, StoreName()]
    stream: Annotated[str, StoreName()]
    lease: Annotated[float, Duration(MIN_LEASE_SECONDS, MAX_DELAY_SECONDS, "a worker renews the lease of a long job")] = 60.0
    tries: Annotated[int, Count(1, 1_000_000, "a job that never succeeds must end")] = 5
    backoff: tuple[Annotated[float, Duration(0.0, MAX_DELAY_SECONDS, "a job must end")], ...] = (1.0, 10.0, 60.0, 600.0)
    in_order: Literal["none", "key"] = "none"
    dead: Annotated[str, KeyPrefix()] = ""
    users: tuple[Annotated[int, UserId()], ...] = ()
    groups: tuple[Annotated[int, GroupId()], ...] = ()
    jobs_per_subscriber: Annotated[int, Count(0, 64, "a worker does its jobs before it gets others")] = 1
    origin: Annotated[Origin, Origin()] = field(default_factory=Origin)

    def __post_init__(self) -> None:
        if not self.backoff:
            raise ValueError(f'queue {show(self.name)}: backoff is empty; write at least one duration, such as ["1s"]')
        if self.dead.startswith("!/"):
            raise ValueError(f'queue {show(self.name)}: dead must be an ordinary prefix, not {show(self.dead)}: "!/" is reserved')


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """``[limits]``: what one user can use of the store."""

    __pydantic_config__: ClassVar[dict[str, str]] = _FORBID_UNKNOWN

    waiting_calls: Annotated[int, Count(1, 100_000, "the store keeps them in memory")] = 64
    readers: Annotated[int, Count(1, 1_000_000, "the store keeps them on disk")] = 64
    leases: Annotated[int, Count(1, 1_000_000, "the store checks them after a restart")] = 1_024
    pending_bytes: Annotated[int, Size(1 << 20, 1 << 30, "the store keeps them in memory")] = 8 << 20


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """``store.toml``: the settings of one store."""

    __pydantic_config__: ClassVar[dict[str, str]] = _FORBID_UNKNOWN

    bus: Annotated[str, AbsoluteFile()] = "/run/sbus.socket"
    file: Annotated[str, AbsoluteFile()] = "/var/lib/sbus-store/store.sqlite"
    state_interval: Annotated[int, Count(1, 3_600, "the state is a message on the bus")] = 10
    streams: Annotated[tuple[StreamSettings, ...], Field(alias="stream")] = field(default_factory=tuple)
    queues: Annotated[tuple[QueueSettings, ...], Field(alias="queue")] = field(default_factory=tuple)
    limits: StoreLimits = field(default_factory=StoreLimits)

    def __post_init__(self) -> None:
        if not self.file:
            raise ValueError("file is empty; write the path of the file with the messages")
        _check_names("stream", [each.name for each in self.streams])
        _check_names("queue", [each.name for each in self.queues])
        _check_patterns(self.streams)
        streams = {each.name: each for each in self.streams}
        queue_of: dict[str, str] = {}
        for queue in self.queues:
            stream = streams.get(queue.stream)
            if stream is None:
                raise ValueError(f"queue {show(queue.name)}: unknown stream {show(queue.stream)}; add a [[stream]] with this name")
            if stream.last:
                raise ValueError(f"queue {show(queue.name)}: stream {show(stream.name)} sets last, which removes jobs; remove last")
            if (other := queue_of.setdefault(queue.stream, queue.name)) != queue.name:
                raise ValueError(
                    f"queues {show(other)} and {show(queue.name)} have the same stream {show(queue.stream)}; use one queue for it"
                )
            if queue.dead and (inside := _pattern_inside(stream, queue.dead)):
                words = f"dead letters would come back as jobs, because {show(inside)} matches keys that begin with {show(queue.dead)}"
                raise ValueError(f"queue {show(queue.name)}: {words}; use another prefix")

    def stream(self, name: str) -> StreamSettings | None:
        """Return the stream with that name, or None."""
        return next((each for each in self.streams if each.name == name), None)

    def queue(self, name: str) -> QueueSettings | None:
        """Return the queue with that name, or None."""
        return next((each for each in self.queues if each.name == name), None)


def _check_names(kind: str, names: Sequence[str]) -> None:
    """Raise ValueError if there are too many *names*, or two equal ones."""
    if len(names) > MAX_STREAMS:
        raise ValueError(f"too many tables [[{kind}]]: {len(names)}, at most {MAX_STREAMS}")
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ValueError(f"duplicate [[{kind}]] with name = {show(name)}; keep one of them")
        seen.add(name)


def _check_patterns(streams: Sequence[StreamSettings]) -> None:
    """Raise ValueError if a key can match patterns of two streams."""
    count = sum(len(stream.keys) for stream in streams)
    if count > MAX_PATTERNS:
        raise ValueError(f"too many patterns in the keys of all streams: {count}, at most {MAX_PATTERNS}")
    seen: list[tuple[bytes, str]] = []
    for stream in streams:
        for pattern in stream.patterns:
            for other, name in seen:
                if name != stream.name and (both := intersection(pattern, other)) is not None:
                    keys = show(both.decode("utf-8", "replace"))
                    words = f"streams {show(name)} and {show(stream.name)} overlap: both store the keys {keys}"
                    raise ValueError(f"{words}; change the keys of one of them")
            seen.append((pattern, stream.name))


def _pattern_inside(stream: StreamSettings, prefix: str) -> str | None:
    """Return a pattern of *stream* that matches keys that begin with *prefix*, or None."""
    return next((each for each in stream.keys if Reach(KeySpace(), each.encode()).touches(prefix.encode())), None)
