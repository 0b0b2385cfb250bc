"""An index entry: what the index says about one segment. Spec: sbus-record(5)."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Self

from sbusd.archive.record.layout import SegmentName, hour_of

INDEX_VERSION = 1
"""Readers reject later versions, because they would miss rows without notice."""

MAX_ENTRY_BYTES = 64 << 10
"""Maximum length of an index entry. Most have less than a thousand bytes."""

OTHERS = -1
"""The ``uid`` of segments with rows of users that are not listed. No user has it: system calls use it for "no change"."""

Removal = Literal["quota", "retention"]
"""Why a segment was removed: the quota was exceeded, or the retention time was over."""


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """The index entry of one segment.

    ``path`` is relative to the archive; times are nanoseconds since 1970, UTC; ``sha256`` and ``bytes`` describe the file.
    ``removed_at`` is set
    when the segment is removed. The entry is kept, so that a later computation of the hour knows that the hour is incomplete.
    """

    path: str
    date: str
    hour: int
    host: str
    rows: int
    bytes: int
    sha256: str
    min_ts: int
    max_ts: int
    first_seq: int
    last_seq: int
    kinds: Mapping[str, int] = field(default_factory=dict)
    """Number of rows of each kind."""
    missing: int = 0
    """Number of rows that are known to be missing: the counts of ``tap_loss`` and ``gap``."""
    payloads_cut: int = 0
    payloads_left_out: int = 0
    uid: int | None = None
    """The user that is charged for all rows of a dedicated segment; :data:`OTHERS` for rows of users that are not listed; None for a
    common segment."""
    users: Mapping[str, int] = field(default_factory=dict)
    """Bytes of each user's rows, before compression; a bounded number of users."""
    unnamed: int = 0
    """Bytes of the rows of all users that ``users`` does not list, before compression."""
    removed_at: int | None = None
    removed_because: Removal | None = None
    version: int = INDEX_VERSION

    @property
    def name(self) -> SegmentName:
        """The name of the segment."""
        return SegmentName.parse(self.path)

    @property
    def is_removed(self) -> bool:
        """Whether retention removed the segment."""
        return self.removed_at is not None

    def to_json(self) -> str:
        """Return the entry as one line of JSON, without a newline."""
        return json.dumps(dataclasses.asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the entry for *text*. Unknown fields of the same version are ignored.

        Raises:
            ValueError: it is invalid, or of a later version; the text says what is wrong.
        """
        try:
            value = json.loads(text)
        except json.JSONDecodeError:
            raise ValueError("invalid index entry: not JSON") from None
        except RecursionError:
            raise ValueError("invalid index entry: nested too deeply") from None
        version = value.get("version") if isinstance(value, dict) else None
        if version is None:
            raise ValueError("invalid index entry: not a JSON object with a version")
        if version != INDEX_VERSION:
            raise ValueError(f"unsupported version {version!r}: this program reads version {INDEX_VERSION}. Upgrade it")
        known = {name: value[name] for name in _TYPES if name in value}
        for name, kinds in _TYPES.items():
            if name not in _OPTIONAL and name not in known:
                raise ValueError(f"invalid index entry: {name!r} is missing")
            if name in known and (not isinstance(known[name], kinds) or isinstance(known[name], bool)):
                raise ValueError(f"invalid index entry: {name!r} has the wrong type")
        if not all(uid.isdecimal() and type(size) is int for uid, size in known.get("users", {}).items()):
            raise ValueError("invalid index entry: 'users' has the wrong type")
        entry = cls(**known)
        if entry.name != SegmentName(entry.date, entry.hour, entry.host, entry.name.first_seq):
            raise ValueError(f"invalid index entry: path {entry.path!r} does not match date, hour and host")
        # Retention and the search for replies use them; an entry has no checksum of its own.
        if not (hour_of(entry.min_ts) == hour_of(entry.max_ts) == entry.name.start_ns and entry.min_ts <= entry.max_ts):
            raise ValueError("invalid index entry: 'min_ts' and 'max_ts' are not in its hour")
        return entry


_NUMBERS = ("hour", "rows", "bytes", "min_ts", "max_ts", "first_seq", "last_seq", "missing", "payloads_cut", "payloads_left_out", "unnamed")

_OPTIONAL = frozenset({"kinds", "missing", "payloads_cut", "payloads_left_out", "uid", "users", "unnamed", "removed_at", "removed_because"})

_NONE = type(None)

_TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("path", "date", "host", "sha256"), (str,)),
    **dict.fromkeys(_NUMBERS, (int,)),
    "kinds": (dict,),
    "uid": (int, _NONE),
    "users": (dict,),
    "removed_at": (int, _NONE),
    "removed_because": (str, _NONE),
}
"""The fields of an entry without the version, and their JSON types; booleans are not numbers."""
