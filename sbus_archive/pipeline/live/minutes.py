"""Counters of each minute, by key prefix and user, with a bounded number of subjects. No I/O. Spec: sbus-live(8)."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self
from urllib.parse import quote, unquote_to_bytes

from sbus_programs.config.live import Threshold

_KEPT = 200
_CHECKSUM = 16
_CUT_SEQUENCE = re.compile("%.?$")

MAX_ENCODED = _KEPT + 1 + _CHECKSUM
"""Maximum length of a subject with percent-encoding."""


def shortened(subject: str) -> str:
    """Return *subject*, or the beginning of a longer one with ``~`` and its checksum. A shortened subject is returned unchanged."""
    # Each character has at least one encoded character, so the rest of a key of 4096 bytes need not be encoded.
    if len(subject) <= MAX_ENCODED and len(_encoded(subject)) <= MAX_ENCODED:
        return subject
    # Cut sequences and characters are dropped.
    begin = _CUT_SEQUENCE.sub("", _encoded(subject[:_KEPT])[:_KEPT])
    kept = unquote_to_bytes(begin).decode("utf-8", "ignore")
    return f"{kept}~{hashlib.sha256(subject.encode('utf-8', 'surrogatepass')).hexdigest()[:_CHECKSUM]}"


def escape(subject: str) -> str:
    """Return *subject* as one segment of a key: shortened and percent-encoded; the empty one is ``all``."""
    return _encoded(shortened(subject)) or "all"


def _encoded(text: str) -> str:
    """Return *text* with percent-encoding."""
    return quote(text, safe="", errors="surrogatepass")


MEASURES = ("messages", "bytes", "discarded", "lost", "denials", "slow")
"""The counters of a subject."""

MAX_SUBJECTS = 200
"""Subjects of each group that have counters of their own in a minute. A machine has a few dozen; a user can invent keys."""

MAX_RAISED = 1000
"""Alerts that are raised at the same time. More are counted as suppressed."""

MAX_IMPORTANT = 400
"""More subjects of each group with counters of their own: those with a usual number, and those at or above a threshold."""

MAX_PUBLISHERS = 8
"""Publishers of a prefix in a minute that are stored."""

KEPT_MINUTES = 60

ALL, PREFIX, USER = "all", "prefix", "user"
"""The groups. The group ``all`` has a single subject, the empty text."""

Counts = list[int]
"""Values in the order of :data:`MEASURES`."""


class Group(NamedTuple):
    """The sums of the rows of one batch with the same minute, prefix and user; *counts* as in :data:`MEASURES`."""

    minute: int
    prefix: str | None
    uid: int | None
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Important:
    """Which subjects decide about alerts, so that their counters are not summed with others."""

    raised: Mapping[str, Container[str]] = field(default_factory=dict)
    """For each group: the subjects whose alert is raised, at most :data:`MAX_RAISED`."""
    usual: Container[str] = frozenset()
    """The prefixes whose usual number of messages is known."""
    thresholds: tuple[Threshold, ...] = ()

    def has(self, group: str, subject: str, counts: Counts) -> bool:
        """Return whether *subject* can cause an alert with *counts*."""
        if group == PREFIX and subject in self.usual:
            return True
        return any(rule.by == group and counts[MEASURES.index(rule.measure)] >= rule.raise_at for rule in self.thresholds)


@dataclass(slots=True)
class Minute:
    """The counters of one minute."""

    groups: dict[str, dict[str, Counts]] = field(default_factory=lambda: {ALL: {}, PREFIX: {}, USER: {}})
    others: dict[str, Counts] = field(default_factory=dict)
    """For each group: the sum of the subjects without counters of their own."""
    publishers: dict[str, list[int]] = field(default_factory=dict)
    """For each prefix: the users who used it first, at most :data:`MAX_PUBLISHERS`; -1 is an unknown user."""
    is_incomplete: bool = False
    """Whether messages of this minute may be missing."""

    def add(self, group: str, subject: str, counts: Iterable[int]) -> None:
        """Add *counts* to those of *subject*."""
        found = self.groups[group].setdefault(subject, [0] * len(MEASURES))
        for place, count in enumerate(counts):
            found[place] += count

    def add_publisher(self, prefix: str, uid: int | None) -> None:
        """Store that the user *uid* has used *prefix*."""
        found = self.publishers.setdefault(prefix, [])
        user = -1 if uid is None else uid
        if user not in found and len(found) < MAX_PUBLISHERS:
            found.append(user)

    def trim(self, important: Important) -> None:
        """Sum the subjects that matter least, so that the number of subjects is bounded.

        Subjects whose alert is raised remain, and up to :data:`MAX_IMPORTANT` subjects that are *important*. Of the others
        :data:`MAX_SUBJECTS` remain. Users are treated alike: the largest prefix of each user comes first, then the second of each user, and
        so on. So a user who invents keys, also with many messages, displaces only a user who has as many prefixes.
        """
        for group, subjects in self.groups.items():
            if len(subjects) <= MAX_SUBJECTS:
                continue
            free_important, free = MAX_IMPORTANT, MAX_SUBJECTS
            raised = important.raised.get(group, ())
            for subject in self._in_order(group):
                if subject in raised:
                    continue
                if free_important and important.has(group, subject, subjects[subject]):
                    free_important -= 1
                elif free:
                    free -= 1
                else:
                    others = self.others.setdefault(group, [0] * len(MEASURES))
                    for place, count in enumerate(subjects.pop(subject)):
                        others[place] += count
                    if group == PREFIX:
                        self.publishers.pop(subject, None)

    def _in_order(self, group: str) -> list[str]:
        """Return the subjects of *group*, those that matter most first."""
        subjects = self.groups[group]
        by_size = sorted(subjects, key=lambda subject: (-max(subjects[subject][0], *subjects[subject][2:]), subject))
        if group != PREFIX:
            return by_size
        larger = Counter[int]()
        places = {}
        for subject in by_size:
            users = self.publishers.get(subject) or [-1]
            # A user who also uses the prefix of another user cannot make it matter less.
            places[subject] = min(larger[user] for user in users)
            larger.update(users)
        return sorted(by_size, key=places.__getitem__)

    def value(self, group: str, subject: str, measure: str) -> int:
        """Return one counter."""
        counts = self.groups[group].get(subject)
        return 0 if counts is None else counts[MEASURES.index(measure)]

    def to_json(self) -> dict[str, Any]:
        """Return the counters as JSON."""
        return {"groups": self.groups, "others": self.others, "publishers": self.publishers, "incomplete": self.is_incomplete}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Return the counters of :meth:`to_json`. Raises KeyError, TypeError, AttributeError."""
        groups = {group: dict(value["groups"][group]) for group in (ALL, PREFIX, USER)}
        publishers = {prefix: list(users) for prefix, users in value["publishers"].items()}
        others = dict(value["others"])
        return cls(groups, others, publishers, bool(value["incomplete"]))


@dataclass(slots=True)
class Minutes:
    """The last :data:`KEPT_MINUTES` minutes, by their number: minutes since 1970."""

    by_number: dict[int, Minute] = field(default_factory=dict)
    changed: set[int] = field(default_factory=set, compare=False)
    """The minutes that have changed since the set was emptied."""

    def fold(self, groups: Iterable[Group], important: Important) -> None:
        """Add the sums of one batch. Long prefixes are shortened."""
        touched = set()
        for each in groups:
            minute = self.by_number.setdefault(each.minute, Minute())
            minute.add(ALL, "", each.counts)
            if each.prefix is not None:
                subject = shortened(each.prefix)
                minute.add(PREFIX, subject, each.counts)
                minute.add_publisher(subject, each.uid)
            if each.uid is not None:
                minute.add(USER, str(each.uid), each.counts)
            touched.add(each.minute)
        for number in touched:
            self.by_number[number].trim(important)
        self.changed |= touched

    def at(self, number: int) -> Minute:
        """Return a minute, an empty one if it has no counters."""
        if number not in self.by_number:
            self.by_number[number] = Minute()
            self.changed.add(number)
        return self.by_number[number]

    def mark_incomplete(self, first: int, last: int) -> None:
        """Mark the minutes from *first* to *last*, of those that are kept."""
        for number in range(max(first, last - KEPT_MINUTES + 1), last + 1):
            minute = self.at(number)
            if not minute.is_incomplete:
                minute.is_incomplete = True
                self.changed.add(number)

    def forget(self, newest: int) -> None:
        """Drop minutes that are too old if *newest* is the current one, and those of a clock that was ahead."""
        for number in [number for number in self.by_number if not newest - KEPT_MINUTES < number <= newest + 1]:
            del self.by_number[number]
            self.changed.discard(number)
