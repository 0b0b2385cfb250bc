"""The tables of the pipeline computed in plain Python, as the reference for those of Spark.

Nothing is shared with the pipeline but the names of columns and the numbers of the manual. A table is a list of tuples: date, hour, and
the table's columns, sorted.
"""

from __future__ import annotations

import datetime
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from sbus.protocol.keys import KeySpace
from sbus_archive.record.layout import HOUR_NS
from sbus_archive.record.schema import Row, key_bytes
from tests.support.link_tallies import link_lines

Place = tuple[str, int, str]
Rows = Mapping[str, list[Row]]
"""The record: rows by host."""

Lines = list[tuple[Any, ...]]
Counted = tuple[tuple[Any, ...], tuple[int, ...]]
"""Key columns, and what is to be added up for them."""
_UTC = datetime.UTC
_TOP = 1000
_CALL_NS = 600 * 10**9


def tables_of(record: Rows) -> dict[str, Lines]:
    """Return all tables of *record*."""
    hours: defaultdict[Place, list[Row]] = defaultdict(list)
    for host, rows in record.items():
        for row in rows:
            hours[_place(row.ts, host)].append(row)
    made: dict[str, Lines] = {}
    for name, measure in _MEASURES.items():
        lines = [
            (place[0], place[1], *line)
            for place, rows in hours.items()
            for line in measure(place, sorted(rows, key=lambda row: row.seq), hours)
        ]
        made[name] = in_order(lines)
    made["links"] = in_order(link_lines(record))
    return made


def in_order(lines: Iterable[Iterable[Any]]) -> Lines:
    """Return *lines*, whose values are of any type, in an order of their own, and moments in one time zone."""
    plain = [tuple(value.astimezone(_UTC) if isinstance(value, datetime.datetime) else value for value in line) for line in lines]
    return sorted(plain, key=lambda line: [repr(value) for value in line])


def _place(ts: int, host: str) -> Place:
    moment = datetime.datetime.fromtimestamp(ts // 10**9, _UTC)
    return moment.strftime("%Y-%m-%d"), moment.hour, host


def _reached_nobody(row: Row) -> bool:
    return row.recipients == 0 and not row.discarded


def _minute(ts: int) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(ts // (60 * 10**9) * 60, _UTC)


def _moment(ts: int) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(ts // 10**9, _UTC) + datetime.timedelta(microseconds=ts % 10**9 // 1000)


def _prefix(key: str | None) -> str | None:
    return None if key is None else "/".join(key.split("/")[:2])


def _kept(weights: Mapping[str | None, int]) -> set[str]:
    """Return the values that keep rows of their own."""
    named = [value for value in weights if value is not None]
    return set(sorted(named, key=lambda value: (-weights[value], value.encode()))[:_TOP])


def _summed(lines: Iterable[Counted]) -> dict[tuple[Any, ...], list[int]]:
    """Return the sums of the second parts for each first part."""
    sums: dict[tuple[Any, ...], list[int]] = {}
    for key, values in lines:
        known = sums.setdefault(key, [0] * len(values))
        for position, value in enumerate(values):
            known[position] += value
    return sums


def _folded(lines: Sequence[Counted], at: int, weigh: Callable[[tuple[int, ...]], int]) -> list[Counted]:
    """Return *lines* with null in the key's column *at* wherever its value is not one of the heaviest."""
    weights: Counter[str | None] = Counter()
    for key, values in lines:
        weights[key[at]] += weigh(values)
    kept = _kept(weights)
    return [((*key[:at], key[at] if key[at] in kept else None, *key[at + 1 :]), values) for key, values in lines]


def _traffic(place: Place, rows: list[Row], _: object) -> Lines:
    lines = [
        (
            (_minute(row.ts), place[2], _prefix(row.key), row.uid),
            (1, row.payload_bytes or 0, row.recipients or 0, row.queued or 0, row.discarded or 0, int(_reached_nobody(row))),
        )
        for row in rows
        if row.kind == "message"
    ]
    return [(*key, *sums) for key, sums in _summed(_folded(lines, 2, lambda values: values[0])).items()]


def _users(place: Place, rows: list[Row], _: object) -> Lines:
    def counts(row: Row) -> tuple[int, ...]:
        is_message = row.kind == "message"
        return (
            int(row.kind == "connect"),
            int(is_message),
            (row.payload_bytes or 0) * is_message,
            (row.recipients or 0) * is_message,
            int(is_message and row.call_role == "request"),
            int(is_message and row.call_role == "reply"),
            int(row.kind == "subscribe"),
            (1 if row.lost is None else row.lost) * (row.kind == "denial"),
            (row.lost or 0) * (row.kind == "loss"),
        )

    kinds = {"message", "connect", "subscribe", "denial", "loss"}
    lines = [((place[2], row.uid, row.unit), counts(row)) for row in rows if row.kind in kinds and row.conn != 0]
    return [(*key, *sums) for key, sums in _summed(lines).items()]


def _losses(place: Place, rows: list[Row], _: object) -> Lines:
    lines: list[Counted] = []
    for row in rows:
        is_message = row.kind == "message"
        if row.kind not in {"message", "loss", "disconnect", "tap_loss", "gap", "restart"} or (is_message and not row.discarded):
            continue
        if row.kind == "disconnect" and not row.lost:
            continue
        cause = {"message": "discarded", "loss": "lost", "disconnect": "abandoned"}.get(row.kind, row.kind)
        uid, unit = (row.uid, row.unit) if row.kind in {"message", "loss", "disconnect"} else (None, None)
        key = (_minute(row.ts), place[2], cause, uid, unit, _prefix(row.key) if is_message else None, None if is_message else row.reason)
        lines.append((key, (1, (row.discarded if is_message else row.lost) or 0, _towards_zero(row.duration or 0))))
    return [(*key, *sums) for key, sums in _summed(_folded(lines, 5, lambda values: values[1])).items()]


def _towards_zero(nanoseconds: int) -> int:
    return -(-nanoseconds // 1000) if nanoseconds < 0 else nanoseconds // 1000


def _security(place: Place, rows: list[Row], _: object) -> Lines:
    classes = {"EACCES": "denial", "EPERM": "denial", "EDQUOT": "quota", "EMFILE": "quota"}
    denials = [row for row in rows if row.kind == "denial"]
    lines = []
    for row in denials:
        key = (place[2], classes.get(row.code or "", "misbehaviour"), row.code, row.reason, row.uid, row.unit, row.key)
        lines.append((key, (1 if row.lost is None else row.lost,)))
    folded = _folded(_folded(lines, 6, lambda values: values[0]), 3, lambda values: values[0])
    times: defaultdict[tuple[Any, ...], list[int]] = defaultdict(list)
    for row, (key, _values) in zip(denials, folded, strict=True):
        times[key].append(row.ts)
    return [(*key, *sums, _moment(min(times[key])), _moment(max(times[key]))) for key, sums in _summed(folded).items()]


def _disconnects(place: Place, rows: list[Row], _: object) -> Lines:
    lines = [((place[2], row.uid, row.unit, row.code, row.reason), (1, row.lost or 0)) for row in rows if row.kind == "disconnect"]
    return [(*key, *sums) for key, sums in _summed(_folded(lines, 4, lambda values: values[0])).items()]


def _relay(place: Place, rows: list[Row], _: object) -> Lines:
    attempts = [row for row in rows if row.kind == "relay"]
    folded = _folded(
        [((place[2], row.twin, row.call_cmd, row.code), (1, int((row.attempt or 0) > 1))) for row in attempts], 2, lambda values: values[0]
    )
    members: defaultdict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row, (key, _values) in zip(attempts, folded, strict=True):
        members[key].append(row)
    lines = []
    for key, sums in _summed(folded).items():
        calls = {row.call_id for row in members[key]} - {None}
        longest = max((row.duration for row in members[key] if row.duration is not None), default=None)
        lines.append((*key, *sums, len(calls), None if longest is None else _towards_zero(longest)))
    return lines


def _calls(place: Place, rows: list[Row], hours: Mapping[Place, list[Row]]) -> Lines:
    following = hours.get(_place(rows[0].ts + HOUR_NS, place[2]), [])
    replies = sorted((row for row in [*rows, *following] if row.kind == "message" and row.call_role == "reply"), key=lambda row: row.seq)
    requests: dict[int, Row] = {}
    for row in rows:
        if row.kind == "message" and row.call_role == "request" and row.call_id is not None:
            requests.setdefault(row.call_id, row)
    judged = [(_judged(place[2], request, _first_reply(request, replies))) for request in requests.values()]
    folded = _folded([(key, values) for key, values, _ in judged], 1, lambda values: values[0])
    latencies: defaultdict[tuple[Any, ...], list[int]] = defaultdict(list)
    for (key, _values), (*_old, latency) in zip(folded, judged, strict=True):
        if latency is not None:
            latencies[key].append(latency)
    return [(*key, *sums, *_measured(latencies[key])) for key, sums in _summed(folded).items()]


def _first_reply(request: Row, replies: list[Row]) -> Row | None:
    for reply in replies:
        if reply.call_id == request.call_id and reply.seq > request.seq and 0 <= reply.ts - request.ts <= _CALL_NS:
            return reply
    return None


def _judged(host: str, request: Row, reply: Row | None) -> tuple[tuple[Any, ...], tuple[int, ...], int | None]:
    parties = (host, request.call_cmd, request.uid, request.unit, reply and reply.uid, reply and reply.unit)
    if reply is None:
        return parties, (1, 0, 0, 0, 1, int(_reached_nobody(request))), None
    late = request.call_exp is not None and reply.ts - request.ts > request.call_exp * 10**9
    return parties, (1, int(not late), int(not late and bool(reply.call_failed)), int(late), 0, 0), (reply.ts - request.ts) // 1000


def _measured(latencies: list[int]) -> tuple[Any, ...]:
    """Return percentiles, the longest, and the histogram."""
    if not latencies:
        return None, None, None, None, []
    histogram = Counter(_bucket(latency)[0] for latency in latencies)
    ordered = sorted(latencies)
    ranks = [-(-len(ordered) * percent // 100) - 1 for percent in (50, 90, 99)]
    return (
        *(min(_bucket(ordered[rank])[1], ordered[-1]) for rank in ranks),
        ordered[-1],
        [{"bucket": bucket, "calls": histogram[bucket]} for bucket in sorted(histogram)],
    )


def _bucket(latency: int) -> tuple[int, int]:
    """Return the number of a latency's bucket and its largest latency: counted up from the first, bucket by bucket."""
    number, first, width = 0, 0, 1
    while latency >= first + width:
        number, first = number + 1, first + width
        if number >= 64 and number % 32 == 0:
            width *= 2
    return number, first + width - 1


def _flows(place: Place, rows: list[Row], _: object) -> Lines:
    space = KeySpace()
    active: dict[tuple[int, str], Row] = {}
    deliveries: list[Counted] = []
    for row in rows:
        _note(active, row)
        if row.kind != "message" or not row.recipients:
            continue
        sender, size = (place[2], row.uid, row.unit, _prefix(row.key)), row.payload_bytes or 0
        reached: dict[int, Row] = {}
        for (conn, pattern), begun in active.items():
            is_earlier = conn not in reached or begun.seq < reached[conn].seq
            if row.key is not None and is_earlier and space.matches(key_bytes(pattern), key_bytes(row.key)):
                reached[conn] = begun
        for conn in row.missed or ():
            reached.pop(conn, None)
        if row.to_conn is not None:
            reached = {conn: begun for conn, begun in reached.items() if conn == row.to_conn}
        if row.missed == [] or len(reached) > row.recipients:
            reached.clear()
        deliveries += [((*sender, begun.uid, begun.unit), (1, size)) for begun in reached.values()]
        rest = row.recipients - len(reached)
        deliveries.append(((*sender, None, None), (rest, rest * size)))
    folded = _folded([each for each in deliveries if each[1][0]], 3, lambda values: values[0])
    return [(*key, *sums) for key, sums in _summed(folded).items()]


def _note(active: dict[tuple[int, str], Row], row: Row) -> None:
    """Keep *active* up to date."""
    if row.kind == "restart":
        active.clear()
    elif row.kind == "disconnect":
        for known in [known for known in active if known[0] == row.conn]:
            del active[known]
    elif row.conn is not None and row.key is not None:
        if row.kind in {"snapshot", "subscribe"}:
            active.setdefault((row.conn, row.key), row)
        elif row.kind == "unsubscribe":
            active.pop((row.conn, row.key), None)


_MEASURES: dict[str, Callable[[Place, list[Row], Mapping[Place, list[Row]]], Lines]] = {
    "traffic": _traffic,
    "users": _users,
    "flows": _flows,
    "calls": _calls,
    "losses": _losses,
    "security": _security,
    "disconnects": _disconnects,
    "relay": _relay,
}
