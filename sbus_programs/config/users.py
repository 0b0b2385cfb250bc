"""Users and groups, by name or number, and the user ids of their containers: getpwnam(3), getgrnam(3), subuid(5).

An unknown name is an error for a command, and a marked id for a bus that has to start.

A user can connect with thousands of the ids that subuid(5) gives. They must not take the place of users with an account in the metrics,
and in the quotas of the bus and its services they are one person with the user who has them. Rights are those of the id itself.
"""

from __future__ import annotations

import grp
import os
import pwd
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from threading import Event, Thread
from typing import NamedTuple

from sbus.protocol.errors import SbusError
from sbus_programs.config.quantities import Spelling, is_whole, show

IsSubordinate = Callable[[int], bool]
"""Whether a user id is a subordinate one."""

SUBUID = Path("/etc/subuid")

WATCH_SECONDS = 10.0
"""Time between two looks at the file."""

START_SECONDS = 1.0
"""For how long the start of a bus waits for the first look, which looks up names of users."""

_ROOT = frozenset({0})

_MAX_BYTES = 4 << 20
"""Part of the file that is read: a hundred thousand users."""


class SubordinateRange(NamedTuple):
    """The ids from *first* on, *size* of them; *owner* is the uid of the user who has them, None if the name is unknown."""

    first: int
    size: int
    owner: int | None


class SubordinateIds:
    """The ranges of one file. Of several that have an id, the one that begins last counts."""

    def __init__(self, ranges: Iterable[SubordinateRange] = ()) -> None:
        self._ranges = sorted(ranges, key=lambda each: each.first)
        self._firsts = [each.first for each in self._ranges]
        self._ends = list(accumulate((each.first + each.size for each in self._ranges), max))
        """The greatest end of each range and those before it."""

    def __len__(self) -> int:
        """Return the number of ranges."""
        return len(self._ranges)

    def __contains__(self, uid: int) -> bool:
        """Return whether *uid* is a subordinate id."""
        return self.range_of(uid) is not None

    def range_of(self, uid: int) -> SubordinateRange | None:
        """Return the range that has *uid*, None if it is not a subordinate id."""
        place = bisect_right(self._firsts, uid) - 1
        while place >= 0 and uid < self._ends[place]:
            found = self._ranges[place]
            if uid < found.first + found.size:
                return found
            place -= 1
        return None

    def charged(self, uid: int, owners: Collection[int]) -> int:
        """Return the uid of the user whose quotas *uid* takes: of a subordinate id, that of the user who has it.

        If that is one of *owners* or unknown, the first id of the range is charged for all: a container does not have the quotas of an
        owner.
        """
        found = None if uid in owners else self.range_of(uid)
        if found is None:
            return uid
        return found.first if found.owner is None or found.owner in owners else found.owner


def no_ids(_uid: int) -> bool:
    """Return False: no id is a subordinate one."""
    return False


def accounts_first(uids: Iterable[int], is_subordinate: IsSubordinate) -> list[int]:
    """Return *uids*, those that are not subordinate first, and by number."""
    return sorted(uids, key=lambda uid: (is_subordinate(uid), uid))


def subordinate_ids(file: Path = SUBUID) -> IsSubordinate:
    """Read *file*, and return which ids are subordinate ones: none, if it is not readable."""
    return read_ranges(file, lambda _name: None).__contains__


def read_ranges(file: Path, uid_of: Callable[[str], int | None]) -> SubordinateIds:
    """Read *file*, and return its ranges: none, if it is not readable. *uid_of* returns the uid of a name."""
    try:
        with file.open("rb") as opened:
            lines = opened.read(_MAX_BYTES).decode("utf-8", "replace").split("\n")
    except OSError:
        lines = []
    return SubordinateIds(found for line in lines if (found := _range_of(line, uid_of)) is not None)


def _range_of(line: str, uid_of: Callable[[str], int | None]) -> SubordinateRange | None:
    """Return the range in a line ``USER:FIRST:COUNT``, None if it has none."""
    user, _, numbers = line.partition(":")
    first, _, count = numbers.partition(":")
    if not (first.isdecimal() and count.isdecimal()) or len(first) > 10 or len(count) > 10:
        return None
    return SubordinateRange(int(first), int(count), int(user) if user.isdecimal() and len(user) <= 10 else uid_of(user))


def look_up(name: str) -> int | None:
    """Return the uid of the user *name*, None if it is unknown. This can ask a directory service, and take seconds."""
    try:
        return pwd.getpwnam(name).pw_uid
    except (KeyError, ValueError, OSError):
        return None


class SubordinateIdsWatch:
    """Reads the file on a thread of its own, at once and again when it changes. Call :meth:`close` at the end."""

    def __init__(
        self,
        report: Callable[[SubordinateIds], None],
        file: Path = SUBUID,
        *,
        uid_of: Callable[[str], int | None] = look_up,
        seconds: float = WATCH_SECONDS,
    ) -> None:
        """*report* is called in the thread with what the file has."""
        self._report = report
        self._file = file
        self._uid_of = uid_of
        self._seconds = seconds
        self._was_read = Event()
        self._is_closed = Event()
        self._thread = Thread(target=self._run, name="subuid", daemon=True)

    def start(self, wait_seconds: float = START_SECONDS) -> None:
        """Start the thread, and wait until it has read the file, at most *wait_seconds*. Raises RuntimeError if no thread is left."""
        self._thread.start()
        self._was_read.wait(wait_seconds)

    def close(self) -> None:
        """Let the thread end. It is not waited for, because it can be in a look-up."""
        self._is_closed.set()

    def _run(self) -> None:
        """Read the file whenever it has changed."""
        known: object = ()
        while not self._is_closed.is_set():
            found = self._identity()
            if found != known:
                self._report(read_ranges(self._file, self._uid_of))
                known = found
            self._was_read.set()
            self._is_closed.wait(self._seconds)

    def _identity(self) -> object:
        """Return what differs when the file has changed; None without a file."""
        try:
            status = os.stat(self._file)
        except OSError:
            return None
        return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


class ChargedUsers:
    """Says which user a service charges for a uid. Each service that has quotas of users counts by this, and by the uid alone before the
    first :meth:`start`.

    The answer about a uid can change. Release what was charged from the user that :meth:`of` returned when it was charged.
    """

    def __init__(self, ids: SubordinateIds | None = None) -> None:
        """Begin with *ids*, for tests."""
        self.ids = SubordinateIds() if ids is None else ids
        """What the file has: another object after each change."""
        self._watch: SubordinateIdsWatch | None = None

    def start(self, file: Path = SUBUID, wait_seconds: float = START_SECONDS) -> None:
        """Read *file* on a thread whenever it changes. Wait for it at most *wait_seconds*. Raises RuntimeError if no thread is left."""
        self._watch = SubordinateIdsWatch(self._set, file)
        self._watch.start(wait_seconds)

    def close(self) -> None:
        """Let the thread end."""
        if self._watch is not None:
            self._watch.close()

    def of(self, uid: int) -> int:
        """Return the user that is charged for *uid*: of a subordinate id, the user who has it, but never root. A number below 0, which
        services use for hosts, stays as it is."""
        return self.ids.charged(uid, _ROOT)

    def _set(self, ids: SubordinateIds) -> None:
        self.ids = ids


NO_ID = (1 << 32) - 1
"""Not an id of any user or group: to the kernel it means "none", setuid(2). A rule about it matches no client."""

LAST_ID = NO_ID - 1
"""The greatest id of a user or group."""

_are_allowed: ContextVar[bool] = ContextVar("_are_allowed", default=False)


class UnknownUserError(SbusError, ValueError):
    """The user does not exist on this machine."""


class UnknownGroupError(SbusError, ValueError):
    """The group does not exist on this machine."""


class UnknownId(int):
    """:data:`NO_ID` instead of the id of an unknown name; ``reason`` is for the administrator."""

    reason: str

    def __new__(cls, reason: str) -> UnknownId:
        """Return the id."""
        made = super().__new__(cls, NO_ID)
        made.reason = reason
        return made


@dataclass(frozen=True, slots=True)
class UserId(Spelling):
    """A user in a configuration file: a name, or a number with or without quotes."""

    def parse(self, value: object) -> int:
        """Return the id of the user. Raises ValueError if it is unknown, unless unknown ids are allowed."""
        return _USERS.parse(value)


@dataclass(frozen=True, slots=True)
class GroupId(Spelling):
    """A group in a configuration file: a name, or a number with or without quotes."""

    def parse(self, value: object) -> int:
        """Return the id of the group. Raises ValueError if it is unknown, unless unknown ids are allowed."""
        return _GROUPS.parse(value)


def find_uid(user: str) -> int:
    """Return the id of *user*. Digits are the id itself, whether or not it has a name; anything else is a name.

    Raises:
        UnknownUserError: no user has that name, or the number is not a user id.
    """
    return _USERS.find(user)


@contextmanager
def unknown_ids_allowed() -> Iterator[None]:
    """In this context an unknown name in a configuration is an :class:`UnknownId` instead of an error."""
    token = _are_allowed.set(True)
    try:
        yield
    finally:
        _are_allowed.reset(token)


@dataclass(frozen=True, slots=True)
class _Database:
    """A database of the system: of users, or of groups."""

    name: str
    noun: str
    error: type[UnknownUserError | UnknownGroupError]
    look_up: Callable[[str], int]

    def find(self, name: str) -> int:
        """Return the id of *name*, or of a number in digits. Raises ``error``."""
        if name.isascii() and name.isdigit():
            # Ten digits hold every id; int() of a very long string of digits raises.
            return self._checked(int(name) if len(name) <= 10 else -1, show(name))
        if not name or "\0" in name:
            raise self.error(f"invalid {self.noun} name {show(name)}")
        try:
            return self.look_up(name)
        except (KeyError, UnicodeEncodeError):
            raise self.error(f"unknown {self.noun} {show(name)}; use a name that `getent {self.name}` lists, or a number") from None

    def parse(self, value: object) -> int:
        """Return the id that *value* in a file means. Raises ValueError."""
        if isinstance(value, str):
            try:
                return self.find(value)
            except self.error as error:
                if not _are_allowed.get():
                    raise
                return UnknownId(str(error))
        if isinstance(value, UnknownId):
            return value
        if is_whole(value):
            return self._checked(value, str(value))
        raise ValueError(f"must be the name or number of a {self.noun}, not {show(value)}")

    def _checked(self, number: int, shown: str) -> int:
        """Return *number* if it is a valid id. Raises ``error``."""
        if not 0 <= number <= LAST_ID:
            raise self.error(f"invalid {self.noun} id {shown}: must be 0 to {LAST_ID}")
        return number


_USERS = _Database("passwd", "user", UnknownUserError, lambda name: pwd.getpwnam(name).pw_uid)
_GROUPS = _Database("group", "group", UnknownGroupError, lambda name: grp.getgrnam(name).gr_gid)
