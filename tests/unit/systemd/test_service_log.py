"""A service writes each log message to the journal with its facts, or to standard error as one line."""

from __future__ import annotations

import pytest

from sbusd.systemd.log_record import MAX_FACT_BYTES, LogMessage, Priority, Record
from sbusd.systemd.log_sink import LogSink, StandardErrorSink
from sbusd.systemd.service_log import ServiceLog

SUSPENDED = LogMessage("0" * 32, Priority.ERR, "suspended", "suspended: {reason}; times: {count}")


class Sink:
    """A sink that keeps the records, or fails."""

    def __init__(self, error: OSError | None = None) -> None:
        self.records: list[Record] = []
        self._error = error

    def write(self, record: Record) -> None:
        self.records.append(record)
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        pass


def test_a_message_is_a_record_with_its_facts() -> None:
    sink = Sink()
    ServiceLog("sbus-some", sink).record(SUSPENDED, reason="full", count=7)
    assert sink.records == [Record(SUSPENDED, facts={"reason": "full", "count": 7})]


def test_a_long_fact_is_cut() -> None:
    """A larger datagram would be lost: journald takes some 200 KiB."""
    sink = Sink()
    ServiceLog("sbus-some", sink).record(SUSPENDED, reason="r" * 300_000, count=10**30)
    assert sink.records == [Record(SUSPENDED, facts={"reason": "r" * MAX_FACT_BYTES, "count": 10**30})]


@pytest.mark.parametrize("sink", [None, StandardErrorSink("sbus-some")])
def test_a_person_reads_one_line(sink: LogSink | None, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOURNAL_STREAM", "1:2")
    ServiceLog("sbus-some", sink).record(SUSPENDED, reason="no\nroom\x1b[2J", count=3)
    assert capfd.readouterr().err == "sbus-some: suspended: no\\x0aroom\\x1b[2J; times: 3\n"


def test_a_record_that_cannot_be_written_ends_nothing() -> None:
    sink = Sink(OSError("the journal is gone"))
    ServiceLog("sbus-some", sink).record(SUSPENDED, reason="full", count=1)
    assert len(sink.records) == 1
