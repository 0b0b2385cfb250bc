"""Decides which alerts are raised and cleared, minute by minute. No I/O. Spec: sbus-live(8), ALERTS.

An alert is raised once and cleared once: the bounds for the two differ (hysteresis). In a minute with missing messages a low value proves
nothing, so it neither raises nor clears an alert.
"""

from __future__ import annotations

import datetime
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sbus_archive.pipeline.live.minutes import MAX_RAISED, PREFIX, Minute, escape
from sbus_programs.config.live import ANOMALY, Anomaly, LiveSettings, Threshold

SIGMA = 1.4826
"""Factor from the median absolute deviation to the standard deviation of a normal distribution."""

OWN_PREFIX = "alert/"
"""Keys of alerts are not subjects, so that an alert does not cause the next one."""


class Usual(NamedTuple):
    """The usual number of messages of a prefix: median and median absolute deviation (MAD) of the minutes of an hour of the week."""

    median: float
    mad: float


@dataclass(frozen=True, slots=True)
class Alert:
    """One change of an alert."""

    rule: str
    subject: str
    is_raised: bool
    measure: str
    value: int
    threshold: float
    minute: int

    def key(self) -> bytes:
        """Return the key ``alert/RULE/SUBJECT``."""
        return f"{OWN_PREFIX}{self.rule}/{escape(self.subject)}".encode()

    def payload(self, host: str) -> bytes:
        """Return the JSON object that is published. Its ``id`` is the same if the message is repeated."""
        state = "raised" if self.is_raised else "cleared"
        started = datetime.datetime.fromtimestamp(self.minute * 60, datetime.UTC)
        digest = hashlib.sha256(json.dumps([host, self.rule, self.subject, self.minute, state]).encode()).hexdigest()[:32]
        value: dict[str, object] = {"id": digest, "state": state, "rule": self.rule, "subject": self.subject}
        value |= {"measure": self.measure, "value": self.value, "threshold": self.threshold}
        value |= {"minute": started.strftime("%Y-%m-%dT%H:%MZ"), "host": host}
        return json.dumps(value).encode()


Raised = dict[str, set[str]]
"""For each rule: the subjects whose alert is raised."""


def decide(
    settings: LiveSettings, minute: Minute, number: int, usual: Mapping[str, Usual] | None, raised: Raised
) -> tuple[list[Alert], int]:
    """Return the changes that the finished minute *number* causes, and how many were suppressed; update *raised*.

    *usual* has the prefixes whose usual number is known; None: it is known of no prefix, so no anomaly is raised or cleared. Alerts of a
    prefix or rule that is gone are cleared.
    """
    changes = [change for rule in settings.thresholds for change in _of_threshold(rule, minute, number, raised.get(rule.name, set()))]
    if usual is not None:
        changes += _of_anomaly(settings.anomaly, minute, number, usual, raised.get(ANOMALY, set()))
    gone = raised.keys() - {rule.name for rule in settings.thresholds} - {ANOMALY}
    changes += [Alert(rule, subject, False, "none", 0, 0, number) for rule in sorted(gone) for subject in sorted(raised[rule])]
    return _applied(changes, raised)


def _applied(changes: Sequence[Alert], raised: Raised) -> tuple[list[Alert], int]:
    """Return those of *changes* that the limit allows, and the number of the others."""
    allowed, suppressed = [], 0
    # First those that make room.
    for change in sorted(changes, key=lambda change: change.is_raised):
        subjects = raised.setdefault(change.rule, set())
        if not change.is_raised:
            subjects.discard(change.subject)
        elif sum(map(len, raised.values())) >= MAX_RAISED:
            suppressed += 1
            continue
        else:
            subjects.add(change.subject)
        allowed.append(change)
    for rule in [rule for rule, subjects in raised.items() if not subjects]:
        del raised[rule]
    return allowed, suppressed


def _of_threshold(rule: Threshold, minute: Minute, number: int, raised: set[str]) -> Iterator[Alert]:
    """Yield the changes of one threshold."""
    for subject in sorted(set(minute.groups[rule.by]) | raised):
        value = minute.value(rule.by, subject, rule.measure)
        if subject in raised:
            if value <= rule.cleared_at and not minute.is_incomplete:
                yield Alert(rule.name, subject, False, rule.measure, value, rule.cleared_at, number)
        elif value >= rule.raise_at and not _is_own(rule.by, subject):
            yield Alert(rule.name, subject, True, rule.measure, value, rule.raise_at, number)


def _of_anomaly(settings: Anomaly, minute: Minute, number: int, usual: Mapping[str, Usual], raised: set[str]) -> Iterator[Alert]:
    """Yield the changes of unusual numbers of messages. A raised alert is cleared within half of the bound."""
    for subject in sorted(set(usual) | raised):
        value = minute.value(PREFIX, subject, "messages")
        known = usual.get(subject)
        if known is None:
            # There is nothing to compare with in this hour of the week.
            if not minute.is_incomplete:
                yield Alert(ANOMALY, subject, False, "messages", value, 0, number)
            continue
        bound = max(settings.deviations * SIGMA * known.mad, float(settings.min_difference))
        distance = abs(value - known.median)
        if minute.is_incomplete and value < known.median + bound:
            continue
        if subject in raised:
            if distance <= bound / 2:
                yield Alert(ANOMALY, subject, False, "messages", value, bound / 2, number)
        elif distance > bound and not _is_own(PREFIX, subject):
            yield Alert(ANOMALY, subject, True, "messages", value, bound, number)


def _is_own(group: str, subject: str) -> bool:
    """Return whether *subject* is a prefix of alerts."""
    return group == PREFIX and f"{subject}/".startswith(OWN_PREFIX)
