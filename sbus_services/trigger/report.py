"""What the trigger reports: records in the log, events on the bus, and its state."""

from __future__ import annotations

import json
import time
from collections import Counter, deque
from collections.abc import Sequence

from sbus_programs.systemd.log_records import LimitedLog
from sbus_services.trigger import log_messages
from sbus_services.trigger.jobs import Done
from sbus_services.trigger.rule_state import RuleState

MAX_EVENTS = 1_000
"""Events that wait until the bus accepts them."""

FIRED_KEY = "trigger/fired"
STATE_KEY = "trigger/state"

_LOGGED = {"wrong_sender", "invalid", "over_burst", "over_burst_of_all"}


class Report:
    """The reports about all rules."""

    def __init__(self, log: LimitedLog) -> None:
        self._log = log
        self.events: deque[bytes] = deque()
        self.events_dropped = 0
        self._fired: Counter[str] = Counter()

    def judged(self, state: RuleState, outcome: str) -> None:
        """Report the outcome of one message."""
        title = state.rule.title
        if outcome == "loop":
            seconds = f"{state.rule.loop.interval:g}"
            self._log.record_limited(log_messages.SUSPENDED, title, rule=title, seconds=seconds, reason=state.problem)
        elif outcome in _LOGGED:
            self._log.record_limited(log_messages.NOT_USED, f"{title} {outcome}", rule=title, reason=state.problem)

    def overflowed(self, state: RuleState) -> None:
        """Report a message that was not used because too many units wait."""
        self._log.record_limited(log_messages.OVERFLOW, state.rule.title, rule=state.rule.title)

    def lost(self, state: RuleState) -> None:
        """Report that messages for a rule were lost."""
        self._log.record_limited(log_messages.LOST, state.rule.title, rule=state.rule.title, lost=state.counts["lost"])

    def bus_available(self, bus: str) -> None:
        """Report that a connection to the bus works."""
        self._log.record_limited(log_messages.BUS_AVAILABLE, "bus", bus=bus)

    def bus_unavailable(self, reason: str) -> None:
        """Report that a connection to the bus has ended, or cannot be made."""
        self._log.record_limited(log_messages.BUS_UNAVAILABLE, "bus", reason=reason)

    def done(self, done: Done) -> None:
        """Report an action that has ended."""
        rule, firing = done.firing.rule, done.firing
        facts = {"rule": rule.title, "action": rule.action, "unit": firing.unit}
        if done.error:
            self._log.record_limited(log_messages.FAILED, rule.title, **facts, reason=done.error)
        else:
            self._fired[rule.title] += 1
            if self._fired[rule.title].bit_count() == 1:
                # The service manager logs each start: the record only has to show which rule has caused it.
                self._log.record(
                    log_messages.FIRED, **facts, omitted=self._fired[rule.title] // 2 - 1 if self._fired[rule.title] > 1 else 0
                )
        if len(self.events) >= MAX_EVENTS:
            self.events_dropped += 1
            return
        event: dict[str, object] = {**facts, "time": time.time_ns(), "messages": done.messages, "error": done.error or None}
        event["uid"] = None if firing.sender is None else firing.sender.uid
        self.events.append(json.dumps(event).encode())


def state_of(rules: Sequence[tuple[RuleState, int]], report: Report, *, now: float) -> dict[str, object]:
    """Return the state as an object for JSON: of each rule its counters, and the number of units that wait; *now* is that of the rules."""
    return {
        "rules": [
            {
                "name": state.rule.title,
                "action": state.rule.action,
                "unit": state.rule.unit,
                "busy_units": busy,
                "suspended_users": state.limits.suspended(now),
                "counts": dict(sorted(state.counts.items())),
            }
            for state, busy in rules
        ],
        "events_dropped": report.events_dropped,
    }


def totals_of(rules: Sequence[tuple[RuleState, int]], *, now: float) -> dict[str, object]:
    """Return the sums over all rules, which everyone may know."""
    counts: Counter[str] = Counter()
    for state, _ in rules:
        counts.update(state.counts)
    suspended = sum(state.limits.suspended(now) > 0 for state, _ in rules)
    names = ("messages", "actions", "succeeded", "failed", "coalesced", "lost", "gaps")
    return {"rules": len(rules), "suspended_rules": suspended, **{name: counts[name] for name in names}}
