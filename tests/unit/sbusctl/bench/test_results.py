"""What the workers' reports say together."""

from __future__ import annotations

from array import array

from sbusctl.bench.results import COLUMNS, RunResult, result_of
from sbusctl.bench.workers import Plan, PublisherReport, SubscriberReport

SECOND = 10**9


def published(count: int, begin: int, end: int, cpu: float = 0.1, refusals: int = 0) -> PublisherReport:
    return PublisherReport(count, begin, end, cpu, refusals, "no right" if refusals else "")


def received(count: int, last: int, *times: int, cpu: float = 0.1) -> SubscriberReport:
    return SubscriberReport(count, last, cpu, 0, array("q", times))


def result(*reports: PublisherReport | SubscriberReport) -> RunResult:
    publishers = [each for each in reports if isinstance(each, PublisherReport)]
    subscribers = [each for each in reports if isinstance(each, SubscriberReport)]
    return result_of(Plan(len(publishers), len(subscribers), 64, None, 3.0), publishers, subscribers)


def test_rates_run_from_the_first_beginning_to_the_last_end() -> None:
    made = result(
        published(100, 10 * SECOND, 12 * SECOND),
        published(300, 11 * SECOND, 14 * SECOND),
        received(400, 15 * SECOND, 2000, 1000),
        received(400, 13 * SECOND, 3000),
    )
    shown = made.as_json()
    assert (shown["published"], shown["publish_seconds"], shown["publish_rate"]) == (400, 4.0, 100.0)
    assert (shown["delivered"], shown["deliver_seconds"], shown["deliver_rate"]) == (800, 5.0, 160.0)
    assert shown["deliver_bytes_rate"] == 160.0 * 64
    assert shown["latency"] == {"p50": 2e-06, "p90": 3e-06, "p99": 3e-06, "max": 3e-06}
    assert (shown["lost"], shown["refused"]) == (0, 0)
    assert made.notes() == []


def test_missing_messages_count_as_lost_and_rejected_ones_do_not() -> None:
    made = result(published(100, 0, SECOND, refusals=10), received(90, SECOND), received(85, SECOND))
    assert (made.lost, made.refused) == (5, 10)
    refused, lost = made.notes()
    assert refused == "64B: the bus refused 10 messages: no right"
    assert lost.startswith("64B: 5 messages lost: ")


def test_programs_that_were_always_busy_are_named_as_the_limit() -> None:
    (note,) = result(published(9, 0, SECOND, cpu=0.95), received(9, SECOND, cpu=0.5)).notes()
    assert note.startswith("64B: the publishers were CPU-bound")
    (note,) = result(published(9, 0, SECOND, cpu=0.95), received(9, SECOND, cpu=0.97)).notes()
    assert note.startswith("64B: the publishers and the subscribers were CPU-bound")


def test_without_subscribers_nothing_is_delivered_nor_lost() -> None:
    made = result(published(50, 0, SECOND))
    assert (made.delivered, made.lost, made.as_json()["deliver_rate"]) == (0, 0, 0.0)
    assert len(made.cells()) == len(COLUMNS)


def test_a_row_has_a_cell_for_each_column() -> None:
    made = result(published(1_000_000, 0, SECOND), received(1_000_000, 2 * SECOND, 63_000))
    assert made.cells() == ("64B", "1M", "1M", "1M", "500k", "31M", "0", "0", "63us", "63us", "63us", "63us")
