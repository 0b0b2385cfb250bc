"""The samples of each metric, made from what the bus has answered, and their labels for users. The library is not needed here."""

from __future__ import annotations

import pwd
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from sbus.bus_documents import JsonObject
from sbus_services.metrics import definitions
from sbus_services.metrics.definitions import Metric
from sbus_services.metrics.snapshot import Snapshot

OTHER = "other"
"""The value for all users together that have no series of their own."""


def user_labels(uids: Iterable[int]) -> dict[int, str]:
    """Return a label for each of *uids*, all of them different. It reads the user database, which may block."""
    return {uid: _label(uid) for uid in uids}


def _label(uid: int) -> str:
    """Return the name of a user. A name of digits, :data:`OTHER`, or a name that two users have would mean another user."""
    try:
        name = pwd.getpwuid(uid).pw_name
        is_certain = name not in ("", OTHER) and not name.isdigit() and name.isprintable() and pwd.getpwnam(name).pw_uid == uid
    except (KeyError, OverflowError):
        return str(uid)
    return name if is_certain else str(uid)


Sample = tuple[tuple[str, ...], float]
"""The values of the labels, and the value."""


@dataclass(frozen=True, slots=True)
class Family:
    """A metric with its samples. Of a metric of the kind INFO the values of the labels are all there is."""

    metric: Metric
    samples: tuple[Sample, ...]


def bus_families(snapshot: Snapshot, labels: Mapping[int, str], seconds: float) -> Iterator[Family]:
    """Yield what the bus has answered, which took *seconds*; *labels* are the names of the chosen users."""
    stats = snapshot.stats
    version, plane = (str(stats.get(name, "")) for name in ("version", "switch"))
    yield _single(definitions.UP, 1)
    yield _single(definitions.SCRAPE_SECONDS, seconds)
    yield Family(definitions.INFO, (((version, plane), 1),))
    if isinstance(start := stats.get("counted_since"), int | float):
        yield _single(definitions.START, start)
    yield from _singles(definitions.BUS, _part(stats, "counters"))
    yield from _singles(definitions.CONTROL, _part(stats, "control"))
    log = _part(stats, "log")
    yield Family(definitions.LOG_RECORDS, tuple(((result,), _number(log, result)) for result in definitions.LOG_RESULTS))
    yield _single(definitions.LOG_WAITING, _number(log, definitions.LOG_WAITING.field))
    yield from _user_families(snapshot, labels)


def down_families(seconds: float) -> Iterator[Family]:
    """Yield what is known of a bus that has not answered for a time in *seconds*."""
    yield _single(definitions.UP, 0)
    yield _single(definitions.SCRAPE_SECONDS, seconds)


def _user_families(snapshot: Snapshot, labels: Mapping[int, str]) -> Iterator[Family]:
    """Yield the metrics of users."""
    chosen = sorted(snapshot.chosen)
    named = {uid: labels.get(uid, str(uid)) for uid in chosen}
    counters = _part(snapshot.stats, "counters")
    for metric in definitions.USER_GAUGES:
        values = {uid: _number(snapshot.users.get(uid, {}), metric.field) for uid in chosen}
        # Requests at different times can disagree.
        rest = max(0, _number(counters, metric.field) - sum(values.values()))
        yield _of_users(metric, ((named[uid], value) for uid, value in values.items()), rest)
    for metric in definitions.USER_USAGE:
        yield _of_users(metric, ((named[uid], _number(snapshot.users.get(uid, {}), metric.field)) for uid in chosen))
    yield Family(definitions.USER_LIMIT, tuple(_by_quota(chosen, named, snapshot.users, definitions.USER_LIMIT.field)))
    unnamed = [totals for uid, totals in snapshot.totals.items() if uid not in snapshot.chosen] + [snapshot.other]
    for metric in definitions.USER_COUNTERS:
        rest = sum(_number(totals, metric.field) for totals in unnamed)
        yield _of_users(metric, ((named[uid], _number(snapshot.totals[uid], metric.field)) for uid in chosen), rest)
    yield _refusals(snapshot, chosen, named, unnamed)


def _refusals(snapshot: Snapshot, chosen: list[int], named: Mapping[int, str], unnamed: list[JsonObject]) -> Family:
    """Return the refusals of users, by quota."""
    metric = definitions.USER_REFUSALS
    samples = list(_by_quota(chosen, named, snapshot.totals, metric.field))
    sums: dict[str, float] = {}
    for totals in unnamed:
        refused = _part(totals, metric.field)
        for quota in refused:
            sums[quota] = sums.get(quota, 0) + _number(refused, quota)
    samples += [((OTHER, quota), count) for quota, count in sorted(sums.items())]
    return Family(metric, tuple(samples))


def _by_quota(chosen: list[int], named: Mapping[int, str], users: Mapping[int, JsonObject], member: str) -> Iterator[Sample]:
    """Yield the numbers in *member* of each user, by quota."""
    for uid in chosen:
        values = _part(users.get(uid, {}), member)
        yield from (((named[uid], quota), _number(values, quota)) for quota in sorted(values) if values[quota] is not None)


def _of_users(metric: Metric, values: Iterable[tuple[str, float]], rest: float | None = None) -> Family:
    """Return the values of users by name, and unless it is None the *rest* of other users."""
    samples = [((name,), value * metric.scale) for name, value in values]
    if rest is not None:
        samples.append(((OTHER,), rest * metric.scale))
    return Family(metric, tuple(samples))


def labelled(metric: Metric, values: Mapping[str, float]) -> Family:
    """Return a metric that has one label, with the values by label."""
    return Family(metric, tuple(((label,), value) for label, value in values.items()))


def _singles(metrics: Iterable[Metric], values: JsonObject) -> Iterator[Family]:
    """Yield metrics without labels, those that this bus has."""
    return (_single(metric, _number(values, metric.field)) for metric in metrics if metric.field in values)


def _single(metric: Metric, value: float) -> Family:
    """Return a metric without labels."""
    return Family(metric, (((), value),))


def _part(whole: JsonObject, name: str) -> JsonObject:
    """Return the object *name* of an answer, an empty one if there is none."""
    part = whole.get(name)
    return part if isinstance(part, dict) else {}


def _number(values: JsonObject, name: str) -> float:
    """Return a number of an answer, 0 if there is none."""
    value = values.get(name)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else 0
