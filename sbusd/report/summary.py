"""The report in three lines for a terminal."""

from __future__ import annotations

import datetime
from typing import Any

from sbusd.report.digest import Digest


def summary_of(digest: Digest) -> list[str]:
    """Return three lines: coverage, traffic, problems."""
    data = digest.data
    return [_covered(digest), _sent(data), _wrong(digest)]


def _covered(digest: Digest) -> str:
    """Return the period and the hosts."""
    period = digest.covers.period
    if period is None:
        return "no rows in this period"
    hosts = sorted(digest.covers.hosts)
    named = ", ".join(hosts[:3]) + (f" and {len(hosts) - 3} more" if len(hosts) > 3 else "")
    return f"{_utc(period[0])} to {_utc(period[1])} UTC on {named}: {_many(digest.covers.records, 'row')}"


def _sent(data: dict[str, Any]) -> str:
    """Return the traffic, with the busiest user and key."""
    traffic = data["traffic"]
    messages = sum(traffic["messages"])
    if not messages:
        return "no messages"
    key, user = (_busiest(traffic, column, data[names]) for column, names in (("key", "keys"), ("user", "users")))
    size, recipients = sum(traffic["bytes"]), sum(traffic["recipients"])
    return (
        f"{_many(messages, 'message')} of {_many(size, 'byte')} to {_many(recipients, 'recipient')}; busiest key {key}, busiest user {user}"
    )


def _busiest(traffic: dict[str, list[int]], column: str, names: tuple[str, ...]) -> str:
    """Return the name with the most messages."""
    sums: dict[int, int] = {}
    for number, messages in zip(traffic[column], traffic["messages"], strict=True):
        sums[number] = sums.get(number, 0) + messages
    return names[max(sums, key=lambda number: sums[number])]


def _wrong(digest: Digest) -> str:
    """Return failed calls, losses, refusals and missing rows."""
    data = digest.data
    calls, losses = data["calls"], data["losses"]
    failed = sum(sum(calls[name]) for name in ("errors", "timeouts", "unanswered"))
    lost = sum(count for count, cause in zip(losses["count"], losses["cause"], strict=True) if cause == "lost")
    whole = "nothing is known to be missing" if digest.covers.is_whole else f"parts of the record are missing{_silent(digest)}"
    called, refused = _many(sum(calls["calls"]), "call"), _many(sum(data["security"]["events"]), "refusal")
    return f"{called}, {failed:,} failed; {_many(lost, 'message')} lost, {refused}; {whole}"


def _silent(digest: Digest) -> str:
    """Return the hosts that stopped recording, as a suffix; empty if there are none."""
    hosts = [f"{name} for {_many(hours, 'hour')}" for name, hours in sorted(digest.covers.silent.items())]
    more = f" and {len(hosts) - 3} more" if len(hosts) > 3 else ""
    return f"; no rows of {', '.join(hosts[:3])}{more}" if hosts else ""


def _many(count: int, what: str) -> str:
    """Return *count* with the noun *what* in the right form."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _utc(nanoseconds: int) -> str:
    """Return a time for people."""
    return datetime.datetime.fromtimestamp(nanoseconds // 10**9, datetime.UTC).strftime("%Y-%m-%d %H:%M")
