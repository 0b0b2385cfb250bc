"""The table ``links`` computed in plain Python, as the reference for that of Spark: nothing is shared but the numbers of the manual."""

from __future__ import annotations

import datetime
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sbus_archive.record.layout import HOUR_NS
from sbus_archive.record.schema import Row

_MINUTE_NS = 60 * 10**9
_END_NS = HOUR_NS + 600 * 10**9
_TOP = 1000
_SUMS = ("alive", "messages", "bytes", "lost", "unknown_losses", "duplicates", "rejected", "disconnects", "dropped")
_HOST_REJECTED = ("malformed", "stale", "refused_by_import", "too_long", "refused_secrets", "lines_refused", "changes_refused")
_LARGEST = 2**48

Counts = dict[str, Any]


@dataclass(slots=True)
class _State:
    ts: int
    name: tuple[str, str]
    started: int
    spooled: int
    omitted: int
    entries: dict[str, Counts]


@dataclass(slots=True)
class _Piece:
    """Part of a row: what one difference, or one state, adds to it."""

    at: int
    name: tuple[str, str]
    peer: str | None
    counts: Counts
    spooled: int | None
    states: int


def link_lines(record: Mapping[str, list[Row]]) -> list[tuple[Any, ...]]:
    """Return the rows of the table for *record*, rows by host: date, hour, and the columns."""
    return [line for host, rows in record.items() for line in _lines_of(host, rows)]


def _lines_of(host: str, rows: list[Row]) -> Iterator[tuple[Any, ...]]:
    by_hour: defaultdict[int, list[_Piece]] = defaultdict(list)
    for piece in _pieces(rows):
        by_hour[piece.at // HOUR_NS].append(piece)
    for hour, pieces in by_hour.items():
        start = datetime.datetime.fromtimestamp(hour * HOUR_NS // 10**9, datetime.UTC)
        for (at, realm, link, peer), same in _grouped(pieces).items():
            minute = datetime.datetime.fromtimestamp(at * _MINUTE_NS // 10**9, datetime.UTC)
            sums = [sum(piece.counts[name] for piece in same) for name in _SUMS]
            spooled = max((piece.spooled for piece in same if piece.spooled is not None), default=None)
            yield (
                start.strftime("%Y-%m-%d"), start.hour, minute, host, realm, link, peer,
                *sums, spooled, sum(piece.states for piece in same),
            )  # fmt: skip


def _grouped(pieces: list[_Piece]) -> dict[tuple[int, str, str, str | None], list[_Piece]]:
    """Return the pieces of each row; beyond the largest hosts they share one."""
    weights: Counter[str] = Counter()
    for piece in pieces:
        if piece.peer:
            weights[piece.peer] += piece.counts["messages"]
    kept = {"", *sorted(weights, key=lambda peer: (-weights[peer], peer))[:_TOP]}
    groups: defaultdict[tuple[int, str, str, str | None], list[_Piece]] = defaultdict(list)
    for piece in pieces:
        groups[piece.at // _MINUTE_NS, *piece.name, piece.peer if piece.peer in kept else None].append(piece)
    return groups


def _pieces(rows: list[Row]) -> Iterator[_Piece]:
    hours = {row.ts // HOUR_NS for row in rows}
    last: dict[tuple[tuple[str, str], int], _State] = {}
    for row in sorted(rows, key=lambda row: (row.ts // HOUR_NS, row.seq)):
        if row.kind != "message" or row.key != "link/state" or row.vouched is not None:
            continue
        if row.uid != 0 and row.unit != "sbus-link.service":
            continue
        state = _state_of(row)
        if state is None or state.started // HOUR_NS > row.ts // HOUR_NS:
            continue
        before = last.get((state.name, state.started))
        last[state.name, state.started] = state
        yield _Piece(row.ts, state.name, "", dict.fromkeys(_SUMS, 0), state.spooled, 1)
        begin = min(state.started, row.ts) if before is None else before.ts
        hour = begin // HOUR_NS
        if hour in hours and row.ts < hour * HOUR_NS + _END_NS:
            for peer, counts in _differences(before, state, max(0, row.ts - begin)):
                yield _Piece(begin, state.name, peer, counts, None, 0)


def _differences(before: _State | None, state: _State, passed: int) -> Iterator[tuple[str, Counts]]:
    for peer, now in state.entries.items():
        then = before.entries.get(peer) if before is not None else None
        if then is None and before is not None and before.omitted:
            continue
        grown = {name: max(0, now[name] - (then[name] if then else 0)) for name in _SUMS[1:-2]}
        grown["dropped"] = max(0, now["dropped"] - (then["dropped"] if then else 0))
        was_alive = then is not None and then["alive"]
        if now["disconnects"] is None:
            grown["disconnects"] = int(was_alive and not now["alive"])
        else:
            grown["disconnects"] = max(0, now["disconnects"] - (then["disconnects"] if then else 0))
        yield peer, grown | {"alive": passed // 1000 if was_alive else 0}


def _state_of(row: Row) -> _State | None:
    """Return the state in a row, None if anything in it is not as it should be."""
    try:
        value = json.loads(row.payload or b"")
        if not isinstance(value, dict) or value["version"] != 1:
            return None
        _check(value)
        entries = {"": _own(value)} | {each["name"]: _of_host(each) for each in value["hosts"]}
        if len(entries) != len(value["hosts"]) + 1:
            return None
        return _State(
            row.ts, (value["realm"], value["host"]), int(value["started"] * 10**9),
            value["spooled_bytes"], value.get("hosts_omitted", 0), entries,
        )  # fmt: skip
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _check(value: Counts) -> None:
    """Raise ValueError if *value* has a name, a time or a counter that no link has."""
    for name in (value["realm"], value["host"], *(each["name"] for each in value["hosts"])):
        if not name or not name.replace("-", "").replace("_", "").isalnum():
            raise ValueError
    if not 0 <= value["started"] < 9e9 or not 0 <= value["spooled_bytes"] <= _LARGEST:
        raise ValueError


def _own(value: Counts) -> Counts:
    network, counters = value["network"], value["counters"]
    connects = network["connects"] - network["connected"]
    rejected = counters["rejected"] + counters["foreign_subjects"] + counters["hosts_refused"] + counters["patterns_refused"]
    ended = network.get("ended_handshakes", 0)
    dropped = counters["spool_dropped"] + counters["too_long"] + counters["over_rate"] + counters["refused_secrets"]
    return dict.fromkeys(_SUMS, 0) | {
        "alive": network["connected"],
        "rejected": rejected + network["forged"] + network["refused_connections"] + ended + value["bus_refusals"],
        "disconnects": max(0, connects) if value["transport"] == "nats" else None,
        "dropped": dropped + network["dropped"] + network["oversize"] + value["discarded_messages"],
    }


def _of_host(each: Counts) -> Counts:
    rejected = sum(each[name] for name in _HOST_REJECTED)
    same = ("alive", "messages", "bytes", "lost", "unknown_losses", "duplicates")
    return {name: each[name] for name in same} | {"rejected": rejected, "disconnects": each["silences"], "dropped": 0}
