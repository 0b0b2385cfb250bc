"""Records are written in order and never block the bus; lost and suppressed ones are counted and reported."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from sbus_programs.config import LogSettings, RateSettings
from sbus_programs.systemd.log_records import MAX_FACT_BYTES, Priority, Record, StandardErrorSink
from sbusd.broker.log import MAX_WAITING, BusLog, LogCounters, RateLimiter, Suppressed
from sbusd.broker.log_messages import (
    CLIENT_CONNECTED,
    INTERNAL_ERROR,
    MALFORMED_PACKET,
    RECORDS_DROPPED,
    SECRET_REFUSED,
    STARTED,
    SUPPRESSED,
)

WAIT = 30.0
"""When a thread that does not answer is a failure; no test waits that long when it succeeds."""

PLENTY = LogSettings(rate_per_cause_per_user=RateSettings(burst=100_000))


class Clock:
    """A clock that stands still but for the test."""

    now = 0.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


class Sink:
    """A sink that keeps its records, and hangs or fails on request."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.fails = False
        self.entered = threading.Semaphore(0)
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.summed_up = threading.Event()
        self.closed = False

    def write(self, record: Record) -> None:
        """Keep the record, or what the test wants instead."""
        self.entered.release()
        assert self.may_go_on.wait(WAIT)
        if self.fails:
            raise OSError("no journal")
        self.records.append(record)
        if record.message is SUPPRESSED:
            self.summed_up.set()

    def close(self) -> None:
        """Note it."""
        self.closed = True

    def hang(self) -> None:
        """Let the next write wait for ``may_go_on``."""
        self.may_go_on.clear()

    def wait_for_writes(self, count: int) -> None:
        """Return when *count* more writes have begun."""
        for _ in range(count):
            assert self.entered.acquire(timeout=WAIT)


@pytest.fixture
def sink() -> Iterator[Sink]:
    sink = Sink()
    yield sink
    sink.may_go_on.set()


def _journal(sink: Sink, settings: LogSettings = PLENTY, clock: Clock | None = None) -> BusLog:
    return BusLog(sink, settings, clock=clock or Clock())


def _summary(sink: Sink) -> list[Any]:
    return [(record.message, record.uid) for record in sink.records]


def test_records_are_written_in_order_with_all_they_say(sink: Sink) -> None:
    journal = _journal(sink)
    journal.record(STARTED, address="/run/s", version="1")
    journal.record(SECRET_REFUSED, uid=5, pid=6, connection=7, key=b"k", reason="no")
    journal.close(WAIT)
    assert sink.closed
    assert sink.records == [
        Record(STARTED, facts={"address": "/run/s", "version": "1"}),
        Record(SECRET_REFUSED, uid=5, pid=6, connection=7, key=b"k", facts={"reason": "no"}),
    ]
    assert journal.counters == LogCounters(written=2, suppressed=0, dropped=0, waiting=0)


def test_no_thread_is_started_before_the_first_record(sink: Sink) -> None:
    before = set(threading.enumerate())
    journal = _journal(sink)
    assert not set(threading.enumerate()) - before
    journal.record(STARTED)
    assert len(set(threading.enumerate()) - before) == 1
    journal.close(WAIT)
    assert not set(threading.enumerate()) - before


def test_a_journal_that_was_never_used_closes(sink: Sink) -> None:
    _journal(sink).close(WAIT)
    assert sink.records == []


def test_a_message_below_the_level_is_not_recorded(sink: Sink) -> None:
    journal = _journal(sink)
    journal.record(CLIENT_CONNECTED)
    journal.close(WAIT)
    assert journal.counters == LogCounters(0, 0, 0, 0)
    debug = _journal(sink, LogSettings(level="debug"))
    debug.record(CLIENT_CONNECTED, uid=1)
    debug.close(WAIT)
    assert _summary(sink) == [(CLIENT_CONNECTED, 1)]


def test_an_error_of_the_bus_carries_its_traceback(sink: Sink) -> None:
    journal = _journal(sink)
    try:
        int("by the test")
    except ValueError as error:
        journal.record(INTERNAL_ERROR, error=error, where="here", reason="that")
    journal.close(WAIT)
    assert sink.records[0].trace.startswith("Traceback")
    assert sink.records[0].trace.endswith("ValueError: invalid literal for int() with base 10: 'by the test'\n")


def test_long_facts_are_cut(sink: Sink) -> None:
    journal = _journal(sink)
    journal.record(SECRET_REFUSED, key=b"k" * 5000, reason="r" * 5000, count=10**30)
    journal.close(WAIT)
    (record,) = sink.records
    assert record.key == b"k" * MAX_FACT_BYTES
    assert record.facts == {"reason": "r" * (MAX_FACT_BYTES - 1) + "…", "count": 10**30}


class TestRate:
    """A cause is recorded about one user only so often."""

    SETTINGS = LogSettings(rate_per_cause_per_user=RateSettings(burst=2, interval=10.0))

    def test_suppressed_records_are_reported_with_the_next_record(self, sink: Sink) -> None:
        clock = Clock()
        journal = _journal(sink, self.SETTINGS, clock)
        for _ in range(5):
            journal.record(MALFORMED_PACKET, uid=5)
        journal.record(MALFORMED_PACKET, uid=6)
        assert journal.counters.suppressed == 3
        clock.now = 10.0
        journal.record(STARTED)
        journal.close(WAIT)
        assert _summary(sink) == [(MALFORMED_PACKET, 5)] * 2 + [(MALFORMED_PACKET, 6), (SUPPRESSED, 5), (STARTED, None)]
        reported = sink.records[3]
        assert reported.text == "suppressed 3 records of type malformed-packet from uid 5"
        assert reported.priority == MALFORMED_PACKET.priority == Priority.NOTICE

    def test_they_are_reported_at_the_end_of_an_idle_interval(self, sink: Sink) -> None:
        # With the real clock, and an interval as short as it can be: how long it takes does not matter, only that it comes.
        journal = BusLog(sink, LogSettings(rate_per_cause_per_user=RateSettings(burst=1, interval=0.1)))
        while not journal.counters.suppressed:
            journal.record(MALFORMED_PACKET, uid=5)
        assert sink.summed_up.wait(WAIT)
        journal.close(WAIT)

    def test_they_are_reported_at_the_end(self, sink: Sink) -> None:
        journal = _journal(sink, self.SETTINGS)
        for _ in range(5):
            journal.record(MALFORMED_PACKET, uid=5)
        journal.close(WAIT)
        assert sink.records[-1].text == "suppressed 3 records of type malformed-packet from uid 5"
        assert journal.counters == LogCounters(written=3, suppressed=3, dropped=0, waiting=0)


class TestTrouble:
    """A journal that fails or hangs."""

    def test_a_journal_that_hangs_blocks_nothing(self, sink: Sink) -> None:
        journal = _journal(sink)
        sink.hang()
        journal.record(STARTED)
        sink.wait_for_writes(1)
        for _ in range(MAX_WAITING + 7):
            journal.record(MALFORMED_PACKET)
        assert journal.counters == LogCounters(written=0, suppressed=0, dropped=7, waiting=MAX_WAITING + 1)
        sink.may_go_on.set()
        journal.close(WAIT)
        assert journal.counters == LogCounters(written=MAX_WAITING + 2, suppressed=0, dropped=7, waiting=0)
        assert [record.message for record in sink.records[:3]] == [STARTED, RECORDS_DROPPED, MALFORMED_PACKET]
        assert sink.records[1].text == "lost 7 records that could not be written"

    def test_the_end_does_not_wait_for_a_journal_that_hangs(self, sink: Sink) -> None:
        journal = _journal(sink)
        sink.hang()
        journal.record(STARTED)
        sink.wait_for_writes(1)
        journal.record(MALFORMED_PACKET)
        journal.close(0.0)
        assert journal.counters == LogCounters(written=0, suppressed=0, dropped=1, waiting=1)
        assert not sink.closed  # it is still in use

    def test_dropped_records_are_reported_when_the_journal_works_again(self, sink: Sink) -> None:
        journal = _journal(sink)
        sink.fails = True
        sink.hang()
        journal.record(STARTED)
        sink.wait_for_writes(1)
        journal.record(SECRET_REFUSED)
        sink.may_go_on.set()
        sink.wait_for_writes(1)
        while journal.counters.waiting:
            pass
        assert journal.counters == LogCounters(written=0, suppressed=0, dropped=2, waiting=0)
        sink.fails = False
        journal.record(MALFORMED_PACKET)
        journal.close(WAIT)
        assert [record.message for record in sink.records] == [MALFORMED_PACKET, RECORDS_DROPPED]
        assert sink.records[1].facts == {"count": 2}
        assert journal.counters == LogCounters(written=2, suppressed=0, dropped=2, waiting=0)

    def test_a_sink_that_is_wrong_does_not_end_the_writer(self, sink: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
        journal = _journal(sink)
        monkeypatch.setattr(sink, "write", None)
        journal.record(STARTED)
        journal.close(WAIT)
        assert journal.counters == LogCounters(written=0, suppressed=0, dropped=1, waiting=0)

    def test_without_a_thread_records_wait_for_one(self, sink: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(thread: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        journal = _journal(sink)
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", fail)
            journal.record(STARTED)
        assert journal.counters.waiting == 1
        journal.record(MALFORMED_PACKET)
        journal.close(WAIT)
        assert [record.message for record in sink.records] == [STARTED, MALFORMED_PACKET]

    def test_records_after_the_end_are_counted(self, sink: Sink) -> None:
        journal = _journal(sink)
        journal.close(WAIT)
        journal.record(STARTED)
        assert journal.counters == LogCounters(written=0, suppressed=0, dropped=1, waiting=0)


def test_a_journal_is_opened_for_where_the_bus_runs(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("JOURNAL_STREAM", raising=False)
    journal = BusLog.open(LogSettings(), background=False)
    journal.record(STARTED, address="/run/s", version="1")
    journal.close(WAIT)
    assert capfd.readouterr().err == "sbusd: ready at /run/s, version 1\n"
    assert StandardErrorSink.__name__ in repr(vars(journal))


def test_a_new_level_and_rate_apply_at_once_after_a_report_of_suppressed_records() -> None:
    sink = Sink()
    journal = BusLog(sink, LogSettings(rate_per_cause_per_user=RateSettings(burst=1)), clock=Clock())
    for _ in range(3):
        journal.record(SECRET_REFUSED, uid=5, reason="r")
    journal.configure(LogSettings(level="debug", rate_per_cause_per_user=RateSettings(burst=2)))
    for message in (SECRET_REFUSED, CLIENT_CONNECTED):
        for _ in range(2):
            journal.record(message, uid=5, reason="r")
    journal.configure(LogSettings(level="err", rate_per_cause_per_user=RateSettings(burst=2)))
    journal.record(SECRET_REFUSED, uid=6, reason="r")
    journal.close(WAIT)
    assert [record.message for record in sink.records] == [
        *(SECRET_REFUSED, SUPPRESSED),
        *(SECRET_REFUSED, SECRET_REFUSED, CLIENT_CONNECTED, CLIENT_CONNECTED),
    ]
    assert sink.records[1].facts["count"] == 2


def test_a_burst_passes_and_the_rest_is_counted() -> None:
    limiter: RateLimiter[str] = RateLimiter(2, 10.0)
    assert [limiter.allows("a", 1, now) for now in (0.0, 1.0, 2.0, 9.9)] == [True, True, False, False]
    assert limiter.ended(9.9) == []
    assert limiter.next_end() == 10.0
    assert limiter.ended(10.0) == [Suppressed("a", 1, 2)]
    assert limiter.next_end() is None
    assert limiter.allows("a", 1, 10.0)


def test_a_window_that_left_nothing_out_ends_in_silence() -> None:
    limiter: RateLimiter[str] = RateLimiter(1, 10.0)
    limiter.allows("a", 1, 0.0)
    assert limiter.ended(10.0) == []
    assert len(limiter) == 0


def test_causes_and_users_have_windows_of_their_own() -> None:
    limiter: RateLimiter[str] = RateLimiter(1, 10.0)
    assert all(limiter.allows(cause, uid, 0.0) for cause in "ab" for uid in (None, 0, 1))
    assert not any(limiter.allows(cause, uid, 1.0) for cause in "ab" for uid in (None, 0, 1))


def test_windows_end_in_the_order_in_which_they_were_opened() -> None:
    limiter: RateLimiter[str] = RateLimiter(1, 10.0)
    for number in range(3):
        limiter.allows("a", number, float(number))
        limiter.allows("a", number, float(number))
    assert limiter.ended(11.0) == [Suppressed("a", 0, 1), Suppressed("a", 1, 1)]
    assert limiter.next_end() == 12.0


def test_many_users_cost_no_more_memory_and_do_not_suppress_known_ones() -> None:
    limiter: RateLimiter[str] = RateLimiter(2, 10.0, max_windows=3)
    assert limiter.allows("a", 0, 0.0)
    passed = sum(limiter.allows("a", uid, 1.0) for uid in range(1, 1001))
    assert passed == 2 + 2  # two with a window of their own, and two of all the others together
    assert len(limiter) == 4
    assert limiter.allows("a", 0, 2.0)
    assert limiter.next_end() == 10.0
    assert limiter.ended(11.0) == [Suppressed("a", None, 996)]
    assert len(limiter) == 0


def test_the_crowds_window_ends_as_any_other() -> None:
    limiter: RateLimiter[str] = RateLimiter(1, 10.0, max_windows=1)
    limiter.allows("a", 0, 5.0)
    limiter.allows("a", 1, 6.0)
    limiter.allows("b", 1, 7.0)
    assert limiter.ended(15.0) == []
    assert limiter.next_end() == 16.0
    assert limiter.allows("a", 2, 15.0)  # there is room again
    assert limiter.ended(17.0) == []
    assert len(limiter) == 1
