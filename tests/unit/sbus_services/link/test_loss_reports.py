"""Loss notices of hosts: sent at once up to a rate, then merged, and never dropped."""

from __future__ import annotations

from collections.abc import Sequence

from sbus_services.link.loss_reports import (
    ALL_PACKETS_AT_ONCE,
    MAX_COUNT,
    MAX_EXACT,
    MAX_HELD_PATTERNS,
    MAX_ORIGINS,
    MERGE_SECONDS,
    PACKETS_AT_ONCE,
    LossReports,
)
from tests.support.link_recorders import RecordedBus


def _reports() -> tuple[LossReports, RecordedBus, list[tuple[str, int]]]:
    bus = RecordedBus()
    noted: list[tuple[str, int]] = []

    def note(origin: str, _patterns: Sequence[bytes], count: int) -> None:
        noted.append((origin, count))

    return LossReports(bus, note), bus, noted


def _exhaust(reports: LossReports, bus: RecordedBus, origin: str = "evil") -> None:
    for _ in range(PACKETS_AT_ONCE):
        reports.report(origin, [b"x"], 1, 0.0)
    assert len(bus.losses) == PACKETS_AT_ONCE
    bus.losses.clear()


def test_notices_over_the_rate_of_a_host_are_merged_and_keep_their_number() -> None:
    reports, bus, noted = _reports()
    _exhaust(reports, bus)
    for _ in range(1_000):
        reports.report("evil", [b"x"], 2, 0.0)
        reports.report("evil", [b"y", b"x", b"y"], 3, 0.0)
    reports.report("evil", [b"z"], 0, 0.0)
    reports.report("evil", [b"v"], MAX_COUNT, 0.0)
    reports.report("evil", [b"v"], 1, 0.0)
    assert bus.losses == []
    reports.report("good", [b"x"], 1, 0.0)
    assert bus.losses == [((b"x",), 1)]
    reports.send_due(0.5)
    assert len(bus.losses) == 1
    assert reports.next_due == MERGE_SECONDS
    reports.send_due(MERGE_SECONDS)
    assert bus.losses[1:] == [((b"x",), 2_000), ((b"x", b"y"), 3_000), ((b"v",), MAX_COUNT), ((b"v", b"z"), 0)]
    assert noted[-5:] == [("good", 1), ("evil", 2_000), ("evil", 3_000), ("evil", MAX_COUNT), ("evil", 0)]
    reports.report("evil", [b"x"], 1, MERGE_SECONDS)
    assert bus.losses[-1] == ((b"x",), 1)


def test_of_too_many_different_notices_the_number_is_unknown() -> None:
    reports, bus, _ = _reports()
    _exhaust(reports, bus)
    for number in range(MAX_EXACT + 2):
        reports.report("evil", [b"%03d" % number], 1, 0.0)
    reports.report("evil", [b"w%02d" % number for number in range(65)], 1, 0.0)
    reports.send_due(MERGE_SECONDS)
    assert [count for _, count in bus.losses] == [1] * MAX_EXACT + [0]
    assert bus.losses[-1][0][:2] == (b"016", b"017")
    assert len(bus.losses[-1][0]) == 2 + 65


def test_all_hosts_together_have_a_rate_and_each_gets_its_turn() -> None:
    reports, bus, _ = _reports()
    hosts = [f"h{number}" for number in range(ALL_PACKETS_AT_ONCE // PACKETS_AT_ONCE)]
    for host in hosts:
        _exhaust(reports, bus, host)
    wide = [b"%04d" % number for number in range(4_096)]
    for host in [*hosts, "late"]:
        reports.report(host, wide, 0, 0.0)
    assert bus.losses == []
    now, sent = 0.0, []
    while (due := reports.next_due) is not None:
        before = len(bus.losses)
        reports.send_due(now := max(now, due))
        sent.append(sum(-(-len(patterns) // 64) for patterns, _ in bus.losses[before:]))
    assert len(bus.losses) == len(hosts) + 1
    assert max(sent) <= 2_000
    assert len(sent) > 1


def test_what_is_kept_is_bounded() -> None:
    reports, bus, _ = _reports()
    _exhaust(reports, bus, "")
    for number in range(MAX_HELD_PATTERNS + 1):
        reports.report("", [b"%d" % number], 0, 0.0)
    assert [len(patterns) for patterns, _ in bus.losses] == [MAX_HELD_PATTERNS + 1]
    for number in range(2 * MAX_ORIGINS):
        reports.report(f"h{number}", [b"x"], 1, float(number))
    assert len(reports._origins) <= MAX_ORIGINS
