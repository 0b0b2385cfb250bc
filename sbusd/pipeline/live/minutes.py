"""Counters of each minute, by key prefix and user, with a bounded number of subjects. No I/O. Spec: sbus-live(8)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

MEASURES = ("messages", "bytes", "discarded", "lost", "denials")
"""The counters of a subject."""

MAX_SUBJECTS = 200
"""Subjects of each group that have counters of their own in a minute. A machine has a few dozen; a user can invent keys."""

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


@dataclass(slots=True)
class Minute:
    """The counters of one minute."""

    groups: dict[str, dict[str, Counts]] = field(default_factory=lambda: {ALL: {}, PREFIX: {}, USER: {}})
    others: dict[str, Counts] = field(default_factory=dict)
    """For each group: the sum of the subjects without counters of their own."""
    is_incomplete: bool = False
    """Whether messages of this minute may be missing."""

    def add(self, group: str, subject: str, counts: Iterable[int]) -> None:
        """Add *counts* to those of *subject*."""
        found = self.groups[group].setdefault(subject, [0] * len(MEASURES))
        for place, count in enumerate(counts):
            found[place] += count

    def trim(self) -> None:
        """Sum the subjects with the smallest counters, so that at most :data:`MAX_SUBJECTS` remain.

        The largest remain, so that a user who invents keys cannot displace the keys that others use.
        """
        for group, subjects in self.groups.items():
            if len(subjects) <= MAX_SUBJECTS:
                continue
            order = sorted(subjects, key=lambda subject: (-max(subjects[subject][0], *subjects[subject][2:]), subject))
            others = self.others.setdefault(group, [0] * len(MEASURES))
            for subject in order[MAX_SUBJECTS:]:
                for place, count in enumerate(subjects.pop(subject)):
                    others[place] += count

    def value(self, group: str, subject: str, measure: str) -> int:
        """Return one counter."""
        counts = self.groups[group].get(subject)
        return 0 if counts is None else counts[MEASURES.index(measure)]

    def to_json(self) -> dict[str, Any]:
        """Return the counters as JSON."""
        return {"groups": self.groups, "others": self.others, "incomplete": self.is_incomplete}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Return the counters of :meth:`to_json`. Raises KeyError, TypeError."""
        groups = {group: dict(value["groups"][group]) for group in (ALL, PREFIX, USER)}
        return cls(groups, dict(value["others"]), bool(value["incomplete"]))


@dataclass(slots=True)
class Minutes:
    """The last :data:`KEPT_MINUTES` minutes, by their number: minutes since 1970."""

    by_number: dict[int, Minute] = field(default_factory=dict)

    def fold(self, groups: Iterable[Group]) -> None:
        """Add the sums of one batch."""
        touched = set()
        for each in groups:
            minute = self.by_number.setdefault(each.minute, Minute())
            minute.add(ALL, "", each.counts)
            if each.prefix is not None:
                minute.add(PREFIX, each.prefix, each.counts)
            if each.uid is not None:
                minute.add(USER, str(each.uid), each.counts)
            touched.add(each.minute)
        for number in touched:
            self.by_number[number].trim()

    def mark_incomplete(self, first: int, last: int) -> None:
        """Mark the minutes from *first* to *last*, of those that are kept."""
        for number in range(max(first, last - KEPT_MINUTES + 1), last + 1):
            self.by_number.setdefault(number, Minute()).is_incomplete = True

    def forget(self, newest: int) -> None:
        """Drop minutes that are too old if *newest* is the current one, and those of a clock that was ahead."""
        for number in [number for number in self.by_number if not newest - KEPT_MINUTES < number <= newest + 1]:
            del self.by_number[number]
